// The page: its sections in order, and the controls.

function section(id, title, ...content) {
  document.getElementById("contents").append(element("a", { href: `#${id}` }, title));
  const heading = element("h2", { id: `${id}-title` }, title);
  document.getElementById("content").append(element("section", { id, "aria-labelledby": `${id}-title` }, heading, ...content));
}

// Every metric that any of the runs has, in the order of metrics.js and then of the files.
function metric_names() {
  const found = new Set(runs.flatMap((run) => [...Object.keys(run.series), ...run.evals.flatMap((e) => Object.keys(e.values))]));
  const listed = Object.keys(METRICS).filter((name) => found.has(name));
  return [...listed, ...[...found].filter((name) => !METRICS[name] && !name.startsWith("phase_seconds."))];
}

function has_chart(name) {
  const quiet = metric_of(name).quiet;
  const shows = (v) => is_number(v) && (!quiet || v !== 0);
  return runs.some((run) => (run.series[name]?.max || run.series[name]?.mean || []).some(shows)
    || run.evals.some((e) => shows(e.values[name])));
}

function metric_chart(name) {
  const metric = metric_of(name);
  return new Curves({
    id: `chart-${name.replace(/[^\w-]/g, "-")}`,
    title: metric.title + inexact_text(name, runs, ["steps", "evals"]),
    unit: metric.unit,
    lines_of: (run) => (run.series[name] ? [{ ...run.series[name], exact: metric.exact }] : []),
    dots_of: (run) => run.evals.map((e) => ({ step: e.step, tokens: e.tokens, seconds: e.seconds, y: e.values[name] })),
  }).node;
}

function curve_section() {
  const names = metric_names().filter((name) => metric_of(name).group !== "Memory" && has_chart(name));
  const groups = GROUPS.map((group) => {
    const own = names.filter((name) => metric_of(name).group === group);
    return own.length === 0 ? [] : [element("h3", null, group), element("div", { class: "grid" }, own.map(metric_chart))];
  });
  const text = "Lines: the recorded values, smoothed; the thin line behind is what was recorded, and a band reaches from the "
    + "smallest to the largest value where a point stands for several steps. A stroke with a dot: one of these values that is "
    + "far from the others. Circles: evaluations. Drag to zoom in, "
    + "double-click or Escape to see everything.";
  section("curves", "Learning curves", names.length > 0 ? [element("p", { class: "muted" }, text), groups]
    : element("p", { class: "muted" }, "No step was recorded yet."));
}

function evaluation_section() {
  section("evaluation", "Evaluation", element("div", { class: "grid wide" }, runs.map((run) =>
    element("div", { class: "panel", "data-run": run.name }, run_heading(run), evaluation_table(run)))));
}

function phase_section() {
  const timed = runs.filter((run) => Object.keys(run.series).some((name) => name.startsWith("phase_seconds.")));
  section("phases", "Phases of a step", timed.length === 0 ? element("p", { class: "muted" }, "No step was recorded yet.")
    : element("div", { class: "grid wide" }, timed.flatMap((run) => [
      new PhaseBars(run, { id: `phases-${run.index}`, title: timed.length > 1 ? `Seconds of a step: ${run.name}` : "Seconds of a step", height: 260 }).node,
      element("div", { class: "panel phase-table" }, run_heading(run), phase_table(run))])));
}

// The prediction of the start that a step belongs to.
function planned_bytes(run, value_of) {
  const planned = run.sessions.filter((session) => session.plan);
  return run.x.step.map((step) => {
    const session = planned.findLast((session) => session.first_step < step) || planned[0];
    return session ? value_of(session.plan.bytes) : null;
  });
}

function memory_section() {
  const charts_of = [];
  const has = (name) => runs.some((run) => run.series[name]);
  if (has("peak_memory_bytes")) {
    charts_of.push(new Curves({
      id: "chart-memory", title: "Peak memory of a step", unit: "bytes", log_y: false, from_zero: true, height: 260,
      lines_of: (run) => [
        run.series.peak_memory_bytes && { ...run.series.peak_memory_bytes, label: "measured", exact: true },
        { mean: planned_bytes(run, (bytes) => bytes.peak), label: "predicted", planned: true }].filter(Boolean),
    }).node);
  }
  if (has("peak_reserved_bytes")) {
    charts_of.push(new Curves({
      id: "chart-reserved", title: "Reserved by the allocator", unit: "bytes", log_y: false, from_zero: true, height: 260,
      lines_of: (run) => run.series.peak_reserved_bytes ? [
        { ...run.series.peak_reserved_bytes, label: "measured", exact: true },
        { mean: planned_bytes(run, (bytes) => bytes.peak + bytes.allocator_slack), label: "predicted", planned: true }] : [],
    }).node);
  }
  const on_cpu = runs.filter((run) => run.series.peak_memory_bytes && !run.series.peak_reserved_bytes);
  const note = on_cpu.length === 0 ? "" : ` On a CPU (${on_cpu.map((run) => run.name).join(", ")}) the measured peak is that of the `
    + "whole process, with the program, its libraries and the pages of files that it has read; the prediction is of tensors alone.";
  section("memory", "Memory and plan",
    charts_of.length === 0 ? element("p", { class: "muted" }, "No step was recorded yet.")
      : [element("p", { class: "muted" }, `Dashed: what the plan predicted before the run.${note}`),
        element("div", { class: "grid wide" }, charts_of)],
    element("h3", null, "Plan"), element("div", { class: "grid wide" }, runs.map(plan_panel)));
}

function event_section() {
  const found = new Set(runs.flatMap((run) => run.events.map((event) => event.kind)));
  const kinds = [...Object.keys(EVENTS).filter((kind) => found.has(kind)), ...[...found].filter((kind) => !EVENTS[kind])];
  section("events", "Events", kinds.length === 0
    ? element("p", { class: "muted" }, "No spike, skipped or empty step, resumption or warning was recorded.")
    : [new EventMarks(kinds, { id: "chart-events", title: "Events" }).node, event_table()]);
}

function sample_section() {
  const sampled = runs.filter((run) => run.samples.length > 0);
  section("samples", "Samples of generated text", sampled.length === 0
    ? element("p", { class: "muted" }, "No samples were recorded (samples.jsonl).")
    : sampled.map(samples_panel));
}

function legend() {
  const node = document.getElementById("legend");
  for (const run of runs) {
    const button = element("button", { type: "button", "aria-pressed": "true", title: run.path },
      swatch(run_colour(run.index)), run.name);
    button.addEventListener("click", () => {
      run.visible = !run.visible;
      button.setAttribute("aria-pressed", String(run.visible));
      draw_soon();
    });
    node.append(button);
  }
}

function control(id, event, change) {
  const node = document.getElementById(id);
  node.addEventListener(event, () => {
    change(node);
    draw_soon();
  });
}

function controls() {
  control("smoothing", "input", (node) => {
    state.smoothing = Number(node.value);
    document.getElementById("smoothing-value").textContent = state.smoothing.toFixed(2);
  });
  control("axis", "change", (node) => {
    state.axis = node.value;
    state.range = null;
  });
  control("log-x", "change", (node) => {
    state.log_x = node.checked;
    state.range = null;
  });
  control("log-y", "change", (node) => { state.log_y = node.checked; });
  control("outliers", "change", (node) => { state.outliers = node.checked; });
  control("show-events", "change", (node) => { state.events = node.checked; });
  control("reset-zoom", "click", () => { state.range = null; });
}

title_page();
legend();
controls();
section("summary", runs.length > 1 ? "Runs" : "Run", element("div", { class: "grid" }, runs.map(summary_panel)));
curve_section();
evaluation_section();
phase_section();
memory_section();
event_section();
sample_section();
round_section();
section("configuration", "Configuration", configuration_table());
draw_now();
