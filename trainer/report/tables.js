// Evaluations, configuration, plan, events and samples as tables.

function table(head, rows, attributes) {
  return element("div", { class: "scroll" }, element("table", attributes,
    element("thead", null, element("tr", null, head.map((name, i) =>
      element("th", { scope: "col", class: i > 0 && name.number !== false ? "number" : null }, name.text ?? name)))),
    element("tbody", null, rows)));
}

function evaluation_table(run) {
  const evals = run.evals;
  if (evals.length === 0) {
    return element("p", { class: "muted" }, "No evaluation was recorded (data.eval, eval.every, eval.at_start).");
  }
  const before = evals[0], after = evals.at(-1);
  const only = before === after;
  const names = Object.keys(after.values).filter((name) => name !== "valid_tokens" && is_number(after.values[name] ?? before.values[name]));
  const rows = names.map((name) => {
    const metric = metric_of(name);
    const [from, to] = [before.values[name], after.values[name]];
    const teacher = teacher_value(name, after.values);
    const change = !only && is_number(from) && is_number(to) && from !== 0 ? (to - from) / Math.abs(from) : null;
    const kind = change && metric.better ? (Math.sign(change) === metric.better ? "better" : "worse") : "";
    return element("tr", null,
      element("th", { scope: "row" }, metric.title + inexact_text(name, [run], ["evals"]), metric.unit && metric.unit !== "%" ? element("span", { class: "muted" }, ` ${metric.unit}`) : ""),
      element("td", { class: "number" }, value_text(from, metric.unit)),
      only ? null : element("td", { class: "number" }, value_text(to, metric.unit)),
      only ? null : element("td", { class: `number ${kind}` },
        change === null ? "–" : `${change > 0 ? "+" : change < 0 ? "−" : ""}${trimmed(Math.abs(100 * change), 3)} %`),
      element("td", { class: "number" }, teacher === null ? "–" : value_text(teacher, metric.unit)));
  });
  const head = only ? ["", `step ${before.step}`, "teacher"]
    : ["", `before (step ${before.step})`, `after (step ${after.step})`, "change", "teacher"];
  return element("div", null, table(head, rows, { class: "evaluation" }),
    element("p", { class: "muted" }, `${whole_number(after.values.valid_tokens)} held-out tokens; ${evals.length} of `
      + `${run.evals_recorded} evaluations are on this page. A KL of 0 and an agreement of 100 % are what the teacher has with itself.`));
}

function teacher_value(name, values) {
  const of = TEACHER_VALUES[name];
  if (!of || !is_number(values.forward_kl)) { // no teacher
    return null;
  }
  return of.from ? values[of.from] ?? null : of.value;
}

function configuration_table() {
  const keys = [...new Set(runs.flatMap((run) => run.config.map(([key]) => key)))];
  const values = runs.map((run) => new Map(run.config));
  const only = element("input", { type: "checkbox", id: "only-differences" });
  only.checked = runs.length > 1;
  const search = element("input", { type: "search", id: "find-key", placeholder: "find a key", "aria-label": "Find a key" });
  const rows = keys.map((key) => {
    const own = values.map((map) => map.get(key));
    const differs = own.some((value) => value !== own[0]);
    const node = element("tr", { class: differs ? "differs" : null, "data-key": key },
      element("th", { scope: "row", class: "code" }, key),
      own.map((value) => element("td", { class: "code" }, value === undefined ? "–" : value)));
    return { key, differs, node };
  });
  const none = element("p", { class: "muted" }, "The configurations do not differ.");
  const update = () => {
    for (const row of rows) {
      row.node.hidden = (only.checked && !row.differs) || !row.key.includes(search.value.trim());
    }
    none.hidden = runs.length < 2 || rows.some((row) => row.differs);
  };
  only.addEventListener("change", update);
  search.addEventListener("input", update);
  update();
  const controls = element("div", { class: "row" },
    runs.length > 1 ? element("label", null, only, " only what differs") : null, search);
  const head = ["key", ...runs.map((run) => ({ text: run.name, number: false }))];
  return element("div", { class: "panel" }, controls, none, table(head, rows.map((row) => row.node), { class: "configuration" }));
}

function plan_panel(run) {
  const session = [...run.sessions].reverse().find((session) => session.plan);
  if (!session) {
    return element("div", { class: "panel" }, run_heading(run), element("p", { class: "muted" },
      "sessions.jsonl with the memory plan is missing: the run was made by a version that did not write it."));
  }
  const plan = session.plan, bytes = plan.bytes, peak = plan.phases[plan.peak_phase];
  const parts = Object.entries(peak.at_peak).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  return element("div", { class: "panel plan" }, run_heading(run),
    facts([
      ["predicted peak", `${bytes_text(bytes.peak)} of tensors, in phase ${plan.peak_phase}`],
      ["of the device", `${bytes_text(bytes.device)} of ${bytes_text(bytes.device_available)}`],
      ["on the host", bytes_text(bytes.host_activations + bytes.host_optimizer + bytes.host_checkpoint + (bytes.host_engine || 0))],
      ["activations", plan.activation],
      ["loss head", `at most ${whole_number(plan.head.chunk_size)} tokens at a time, ${bytes_text(plan.head.bytes)}`],
      ["predicted speed", `${short_number(plan.tokens_per_second)} tokens/s (${plan.machine})`],
    ]),
    table(["tensors at the predicted peak", "", "share"], parts.map(([name, value]) => element("tr", null,
      element("th", { scope: "row" }, name), element("td", { class: "number" }, bytes_text(value)),
      element("td", { class: "number" }, `${trimmed(100 * value / peak.peak, 3)} %`)))));
}

function phase_table(run) {
  const session = [...run.sessions].reverse().find((session) => session.plan);
  const names = Object.keys(run.series).filter((name) => name.startsWith("phase_seconds."));
  const measured = names.map((name) => mean(run.series[name].mean));
  const planned = names.map((name) => session?.plan.seconds?.[name.split(".")[1]] ?? null);
  const row = (name, m, p) => element("tr", null, element("th", { scope: "row" }, name),
    element("td", { class: "number" }, duration_text(m)),
    element("td", { class: "number" }, `${trimmed(100 * m / sum(measured), 3)} %`),
    session ? element("td", { class: "number" }, is_number(p) ? duration_text(p) : "–") : null);
  return table(["mean of all steps", "measured", "share", ...(session ? ["predicted"] : [])], [
    ...names.map((name, i) => row(phase_title(name), measured[i], planned[i])),
    row("the whole step", sum(measured), session?.plan.seconds?.step ?? null)]);
}

function event_table() {
  const all = runs.flatMap((run) => run.events.map((event) => ({ run, ...event })));
  all.sort((a, b) => a.step - b.step);
  const rows = all.map((event) => element("tr", { "data-kind": event.kind },
    element("td", { class: "number" }, whole_number(event.step)),
    element("td", null, EVENTS[event.kind] || event.kind),
    runs.length > 1 ? element("td", null, event.run.name) : null,
    element("td", null, time_text(event.time)),
    element("td", null, event.text)));
  const plain = (text) => ({ text, number: false });
  const head = [plain("step"), plain("kind"), ...(runs.length > 1 ? [plain("run")] : []), plain("time"), plain("what")];
  const left_out = runs.filter((run) => run.events_left_out > 0).map((run) =>
    element("p", { class: "muted" }, `${run.name}: ${whole_number(run.events_left_out)} further events are in its folder.`));
  return element("div", null, left_out, element("details", { open: all.length <= 30 },
    element("summary", null, `${all.length} events`), table(head, rows, { class: "events" })));
}

function samples_panel(run) {
  const steps = [...new Set(run.samples.map((sample) => sample.step))].sort((a, b) => a - b);
  const select = element("select", { "aria-label": `Step of the samples of ${run.name}` },
    steps.map((step) => element("option", { value: step }, `after step ${step}`)));
  select.value = String(steps.at(-1));
  const list = element("div", null);
  const part = (name, text) => text === null || text === undefined ? null
    : element("div", null, element("h4", null, name), element("pre", { dir: "auto" }, text));
  const update = () => list.replaceChildren(...run.samples.filter((sample) => String(sample.step) === select.value).map((sample) =>
    element("div", { class: "panel sample" },
      part(`Prompt ${sample.index ?? ""}`, sample.prompt),
      element("div", { class: "texts" }, part("Student", sample.student), part("Teacher", sample.teacher),
        part("Held-out continuation", sample.target)))));
  select.addEventListener("change", update);
  update();
  return element("div", { class: "samples", "data-run": run.name },
    element("div", { class: "row" }, swatch(run_colour(run.index)), run.name, select,
      run.samples_left_out > 0 ? element("span", { class: "muted" }, `${run.samples_left_out} older samples are in samples.jsonl alone`) : null),
    list);
}
