// Titles, units and groups of the names in metrics.jsonl. A name that is not listed is shown as it is, in group "Other".

const GROUPS = ["Loss", "Teacher and student", "Optimizer", "Experts", "Speed", "Other"];

// unit "%": a fraction that is shown in per cent. better: which way is an improvement, -1 down, 1 up. exact: never
// smoothed. quiet: no chart where the value is always 0.
const METRICS = {
  loss: { title: "Loss", unit: "nats/token", group: "Loss", better: -1 },
  hard: { title: "Student's cross-entropy on the labels", unit: "nats/token", group: "Loss", better: -1 },
  soft: { title: "Divergence in the loss", unit: "nats/token", group: "Loss", better: -1 },
  teacher_ce: { title: "Teacher's cross-entropy on the labels", unit: "nats/token", group: "Loss" },
  z_loss: { title: "z-loss: squared log-sum-exp of the student's logits", unit: "", group: "Loss" },
  forward_kl: { title: "KL(teacher, student)", unit: "nats/token", group: "Teacher and student", better: -1 },
  reverse_kl: { title: "KL(student, teacher)", unit: "nats/token", group: "Teacher and student", better: -1 },
  agreement: { title: "Agreement: same most probable token", unit: "%", group: "Teacher and student", better: 1 },
  accuracy: { title: "Accuracy: most probable token is the label", unit: "%", group: "Teacher and student", better: 1 },
  student_entropy: { title: "Student's entropy", unit: "nats/token", group: "Teacher and student" },
  teacher_entropy: { title: "Teacher's entropy", unit: "nats/token", group: "Teacher and student" },
  teacher_dropped_mass: { title: "Teacher's probability of tokens that have no part in the loss", unit: "%", group: "Teacher and student" },
  boundary_share: { title: "Tokens where student and teacher both have a boundary in the text", unit: "%", group: "Teacher and student", quiet: true },
  span_share: { title: "Tokens in spans, which the teacher splits in another way", unit: "%", group: "Teacher and student", quiet: true },
  span_loss: { title: "Divergence of spans", unit: "nats/span", group: "Loss", better: -1 },
  student_lse: { title: "Log-sum-exp of the student's logits", unit: "", group: "Teacher and student" },
  teacher_lse: { title: "Log-sum-exp of the teacher's logits", unit: "", group: "Teacher and student" },
  grad_norm: { title: "Norm of the gradient before clipping", unit: "", group: "Optimizer" },
  float8_underflow_activations: { title: "Activations that float8 rounds to zero", unit: "%", group: "Optimizer" },
  float8_underflow_gradients: { title: "Gradients that float8 rounds to zero", unit: "%", group: "Optimizer" },
  float8_underflow_weight_gradients: { title: "Inputs times the scales of gradients that float8 rounds to zero", unit: "%", group: "Optimizer" },
  float8_bad_rows: { exact: true, title: "Rows with an infinite value or NaN, rounded to float8", unit: "rows", group: "Optimizer", quiet: true },
  float8_gradient_cosine: { title: "Cosine between the gradients in float8 and in the compute dtype", unit: "", group: "Optimizer", better: 1 },
  router_aux_loss: { title: "Routers' balance loss before its coefficient", unit: "", group: "Experts", better: -1 },
  router_entropy: { title: "Entropy of the routers' probabilities", unit: "nats/token", group: "Experts" },
  router_load: { title: "Tokens of a layer's busiest expert over the mean, mean over layers", unit: "", group: "Experts", better: -1 },
  router_highest_load: { title: "Tokens of a layer's busiest expert over the mean, worst layer", unit: "", group: "Experts", better: -1 },
  router_unused_experts: { exact: true, title: "Experts that no token of the step visited", unit: "experts", group: "Experts", better: -1, quiet: true },
  lr: { exact: true, title: "Learning rate", unit: "", group: "Optimizer" },
  skipped: { exact: true, title: "Skipped step: gradients not finite", unit: "0 or 1", group: "Optimizer", quiet: true },
  skipped_total: { exact: true, title: "Skipped steps so far", unit: "steps", group: "Optimizer", quiet: true },
  empty_steps: { exact: true, title: "Empty steps so far", unit: "steps", group: "Optimizer", quiet: true },
  tokens_per_second: { title: "Speed", unit: "tokens/s", group: "Speed" },
  seconds: { title: "Duration of a step", unit: "s", group: "Speed" },
  mfu_causal: { title: "MFU, attention counted as causal", unit: "%", group: "Speed" },
  mfu_full: { title: "MFU, attention counted in full", unit: "%", group: "Speed" },
  valid_tokens: { exact: true, title: "Tokens with a target in a step", unit: "tokens", group: "Speed" },
  gathers: { exact: true, title: "Units gathered in a step", unit: "units", group: "Speed", quiet: true },
  gathered_bytes: { exact: true, title: "Bytes of the units gathered in a step", unit: "bytes", group: "Speed", quiet: true },
  "teacher_read.bytes": { title: "Bytes read from the teacher's cache since the step before", unit: "bytes", group: "Speed", quiet: true },
  "teacher_read.bytes_per_second": { title: "Speed at which the teacher's cache is read", unit: "bytes/s", group: "Speed" },
  peak_memory_bytes: { title: "Peak memory", unit: "bytes", group: "Memory" },
  outside_allocator_bytes: { title: "In use outside the allocator", unit: "bytes", group: "Memory" },
  peak_reserved_bytes: { title: "Peak reserved by the allocator", unit: "bytes", group: "Memory" },
};

// Where the teacher stands in an evaluation: the metric that holds its value, or a constant that follows from the
// definition. The student's values are measured against it.
const TEACHER_VALUES = {
  hard: { from: "teacher_ce" },
  forward_kl: { value: 0 },
  reverse_kl: { value: 0 },
  soft: { value: 0 },
  agreement: { value: 1 },
  student_entropy: { from: "teacher_entropy" },
  student_lse: { from: "teacher_lse" },
};

const PHASES = {
  teacher: "teacher",
  forward: "forward pass",
  head: "loss head",
  backward: "backward pass",
  optimizer: "optimizer",
  communication: "waiting for communication",
  data: "waiting for data",
};

const EVENTS = {
  loss_spike: "loss spike",
  non_finite_step: "skipped step",
  empty_step: "empty step",
  teacher_worse_than_student: "teacher worse than the student",
  near_float8_error: "student near the float8 teacher's own error",
  resumption: "resumption",
  warning: "warning",
  error: "error",
  end: "end",
};

// " (lower bound)", " (estimate)": what the runs' values of a metric are, where they are not exact.
function inexact_text(name, of_runs, parts) {
  const found = new Set(of_runs.flatMap((run) => parts.map((part) => run.inexact?.[part]?.[name])).filter(Boolean));
  return found.size > 0 ? ` (${[...found].join(", ")})` : "";
}

function metric_of(name) {
  return METRICS[name] || { title: name, unit: "", group: "Other" };
}
