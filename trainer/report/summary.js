// What is said of each run: its state, its figures, and where and with what it ran.

const STATES = {
  live: "live",
  finished: "finished",
  stopped: "stopped",
  failed: "failed",
  unknown: "end not recorded",
};

function facts(pairs) {
  return element("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [element("dt", null, name), element("dd", null, value)]));
}

function figure(value, name) {
  return value === null || value === "–" ? null : element("div", null, element("b", null, value), element("span", null, name));
}

function run_heading(run) {
  return element("h3", null, swatch(run_colour(run.index)), run.name,
    element("span", { class: `state ${run.state}` }, STATES[run.state] || run.state));
}

function summary_panel(run) {
  const last = run.x.step.length - 1;
  const speed = run.series.tokens_per_second ? median(run.series.tokens_per_second.mean) : null;
  const loss = run.series.loss ? run.series.loss.mean[last] : null;
  const session = run.sessions.at(-1) || {};
  const steps = run.last_step + (run.total_steps ? ` of ${whole_number(run.total_steps)}` : "");
  return element("div", { class: "panel summary", "data-run": run.name },
    run_heading(run),
    run.state === "live"
      ? element("p", { class: "notice" }, `This run is being written: the page has its steps up to ${whole_number(run.last_step)}. `
        + `Run distill report again for later ones.${run.holder ? " In use by " + run.holder + "." : ""}`)
      : null,
    element("div", { class: "figures" },
      figure(run.last_step === 0 ? "0" : steps, "steps"),
      figure(value_text(loss, ""), "last loss, nats/token" + inexact_text("loss", [run], ["steps"])),
      figure(value_text(speed, ""), "tokens/s, median"),
      figure(last >= 0 ? value_text(run.x.tokens[last], "") : "–", "tokens"),
      figure(last >= 0 ? duration_text(run.x.seconds[last]) : "–", "in steps")),
    facts([
      ["folder", element("span", { class: "code" }, run.path)],
      ["start", time_text(run.start)],
      ["end", run.state === "live" ? "still running" : time_text(run.end)],
      ["outcome", run.outcome],
      ["machine", [session.device, session.host].filter(Boolean).join(", on ") || run.device],
      ["ranks", session.ranks],
      ["program", session.program || run.program],
      ["starts", run.sessions.length > 1 ? run.sessions.length : null],
      ["checkpoints", run.checkpoints.join(", ")],
      ["model", run.model],
      ["last log line", element("span", { class: "code" }, run.last_line || "–")],
    ]),
    run.missing.map((text) => element("p", { class: "muted missing" }, text)));
}

function title_page() {
  const names = runs.map((run) => run.name).join(", ");
  document.title = `${names} – distill report`;
  document.getElementById("title").textContent = names;
  const live = runs.filter((run) => run.state === "live");
  document.getElementById("subtitle").textContent =
    live.length > 0 ? `Live: ${live.map((run) => `${run.name} up to step ${whole_number(run.last_step)}`).join("; ")}.` : "";
  document.getElementById("foot").textContent = `Written by ${data.program}, ${time_text(data.made)}.`;
}
