// The rounds of on-policy runs: a table with the time of each part, the judgement by position, and completions whose
// tokens have the colour of what the teacher says of them.

const ROUND_PARTS = [
  ["weights", "writing the weights"],
  ["engine", "the engine"],
  ["retokenize", "the teacher's tokens"],
  ["shard", "the token shard"],
  ["check", "the check"],
  ["train", "the steps"],
];

// better: as in METRICS. These numbers of a token can be its colour; `most`: where the colour is full.
const TOKEN_NUMBERS = {
  reverse_kl: { title: "KL(student, teacher)", most: 3 },
  forward_kl: { title: "KL(teacher, student)", most: 3 },
  loss: { title: "Loss", most: 3 },
  logprob: { title: "Log-probability under the student", most: -6 },
  entropy: { title: "Student's entropy", most: 4 },
};

function stacked_seconds(seconds, longest) {
  const known = ROUND_PARTS.map(([name, title], i) => ({ title, i, value: seconds?.[name] })).filter((p) => is_number(p.value) && p.value > 0);
  const all = sum(known.map((part) => part.value));
  const text = known.map((part) => `${part.title} ${duration_text(part.value)}`).join(", ");
  return element("div", { class: "stack", role: "img", "aria-label": text, style: `width: ${(100 * all / (longest || 1)).toFixed(2)}%` },
    known.map((part) => element("span", {
      style: `${part_colour(part.i)}; flex-grow: ${(part.value / all).toFixed(6)}`,
      title: `${part.title}: ${duration_text(part.value)}`,
    })));
}

function round_table(run) {
  const total = (round) => sum(ROUND_PARTS.map(([name]) => round.seconds?.[name]).filter(is_number));
  const longest = Math.max(...run.rounds.map(total));
  const per_cent = (value) => (is_number(value) ? `${trimmed(100 * value, 3)} %` : "–");
  const cell = (text) => element("td", { class: "number" }, text);
  const held_out = run.rounds.some((round) => round.held_out);
  const rows = run.rounds.map((round) => {
    const lengths = round.lengths || {}, judged = round.judged || {};
    return element("tr", { "data-round": round.number },
      element("th", { scope: "row" }, whole_number(round.number)),
      cell(whole_number(round.step)), cell(whole_number(round.completions)), cell(whole_number(round.completion_tokens)),
      cell([lengths.min, lengths.median, lengths.p90, lengths.max].map((n) => (is_number(n) ? whole_number(n) : "–")).join(" · ")),
      cell(per_cent(round.truncated)), cell(per_cent(round.repeated_4grams)), cell(value_text(round.entropy, "")),
      cell(value_text(judged.logprob_gap, "")), cell(value_text(judged.reverse_kl, "")), cell(per_cent(judged.agreement)),
      held_out ? cell(value_text(round.held_out?.reverse_kl, "")) : null,
      cell(duration_text(total(round))), element("td", { class: "stacked" }, stacked_seconds(round.seconds, longest)));
  });
  const head = ["round", "after step", "completions", "tokens", "length: min · median · p90 · max", "truncated", "4-grams repeated",
    "entropy", "log-prob gap", "KL(student, teacher)", "agreement",
    ...(held_out ? ["KL on held-out prompts"] : []), "time", { text: "of which", number: false }];
  return element("div", null,
    element("div", { class: "parts" }, ROUND_PARTS.map(([, title], i) => element("span", null, swatch(part_colour(i)), title))),
    table(head, rows, { class: "rounds" }),
    element("p", { class: "muted" }, `${run.rounds.length} of ${run.rounds_recorded} rounds. Entropy, gap and KL in nats for a token; the gap is `
      + "between the mean log-probability that the engine gave and the student's own. KL and agreement are those of the round's first "
      + "sequences, before they were learned; those on held-out prompts are of all completions of onpolicy.eval_prompts. With onpolicy.staleness 1 the engine's time passes while the round before is trained on."));
}

// A chart of one number over the position in the completion, a line for each round.
function position_chart(run, name, title, unit) {
  const WIDTH = 560, HEIGHT = 230;
  const all = run.rounds.filter((round) => round.positions?.some((one) => is_number(one[name])));
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} by position in the completion` });
  const values = all.flatMap((round) => round.positions.map((one) => one[name])).filter(is_number);
  const last = Math.max(1, ...all.map((round) => round.positions.at(-1).end));
  const x = make_scale(0, last, MARGIN.left, WIDTH - MARGIN.right, false);
  const y = make_scale(...usable_range(0, Math.max(...values, 0) || 1, false), HEIGHT - MARGIN.bottom, MARGIN.top, false);
  for (const tick of ticks_of(y, 5, unit)) {
    svg.append(drawn("line", { class: "grid-line", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(tick), y2: y(tick) }),
      drawn("text", { class: "axis-text", x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, value_text(tick, unit)));
  }
  for (const tick of ticks_of(x, 6, "")) {
    svg.append(drawn("text", { class: "axis-text", x: x(tick), y: HEIGHT - MARGIN.bottom + 16, "text-anchor": "middle" }, short_number(tick)));
  }
  svg.append(drawn("text", { class: "axis-title", x: WIDTH / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "Token of the completion"));
  all.forEach((round, i) => {
    const known = round.positions.filter((one) => is_number(one[name]));
    const share = all.length > 1 ? i / (all.length - 1) : 1;
    const style = `${run_colour(run.index)}; stroke-opacity: ${(0.2 + 0.8 * share).toFixed(2)}; fill-opacity: ${(0.2 + 0.8 * share).toFixed(2)}`;
    const points = known.map((one) => [x((one.begin + one.end) / 2), y(one[name])]);
    svg.append(drawn("path", { class: "line", style, d: points.map(([a, b], j) => `${j ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("") }));
    known.forEach((one, j) => svg.append(drawn("circle", { class: "position-dot", style, cx: points[j][0].toFixed(1), cy: points[j][1].toFixed(1), r: 3 },
      drawn("title", null, `round ${round.number}, tokens ${one.begin} to ${one.end}: ${value_text(one[name], unit)} (${whole_number(one.tokens)} tokens)`))));
  });
  return element("div", { class: "panel chart positions", id: `positions-${name.replace("_", "-")}-${run.index}`, "data-title": title },
    element("h3", null, title, unit === "" ? element("span", { class: "unit" }, "nats/token") : null), svg,
    element("p", { class: "note" }, all.length > 1 ? `Rounds ${all[0].number} (pale) to ${all.at(-1).number}.` : ""));
}

function token_span(completion, i, name) {
  const { most } = TOKEN_NUMBERS[name];
  const value = completion[name][i];
  const share = is_number(value) ? Math.min(1, Math.max(0, value / most)) : 0;
  const known = completion.texts?.[i];
  const lines = [`token ${i}, id ${completion.ids[i]}`,
    ...Object.entries(TOKEN_NUMBERS).map(([key, { title }]) => `${title}: ${value_text(completion[key][i], "")}`),
    !is_number(completion.agrees[i]) ? "the distributions are not compared here: the teacher's tokens end elsewhere"
      : completion.agrees[i] ? "the teacher's most probable token is the student's, too" : "the teacher's most probable token is another one"];
  return element("span", {
    class: `token${known ? "" : " id"}`, title: lines.join("\n"), "data-share": share.toFixed(3),
    style: `background: color-mix(in srgb, var(--bad) ${(70 * share).toFixed(1)}%, transparent)`,
  }, known || `[${completion.ids[i]}]`);
}

function judged_panel(completion, name) {
  const more = completion.completion_tokens - completion.ids.length;
  return element("div", { class: "panel sample judged" },
    element("h4", null, `Prompt, ${whole_number(completion.prompt_tokens)} tokens`),
    element("pre", { dir: "auto" }, completion.prompt ?? "(its text is not known: the student's folder has no tokenizer)"),
    element("h4", null, `Completion, ${whole_number(completion.completion_tokens)} tokens`),
    element("pre", { class: "tokens", dir: "auto" }, completion.ids.map((_, i) => token_span(completion, i, name)),
      more > 0 ? element("span", { class: "muted" }, ` … ${whole_number(more)} more`) : null));
}

function judged_samples(run) {
  if (run.round_samples.length === 0) {
    return element("p", { class: "muted" }, "No completions with the teacher's judgement are in the run folder.");
  }
  const numbers = run.round_samples.map((one) => one.number).sort((a, b) => a - b);
  const rounds = element("select", { "aria-label": `Round of ${run.name}` }, numbers.map((n) => element("option", { value: n }, `round ${n}`)));
  rounds.value = String(numbers.at(-1));
  const names = element("select", { "aria-label": "What gives a token its colour" },
    Object.entries(TOKEN_NUMBERS).map(([name, { title }]) => element("option", { value: name }, title)));
  const list = element("div", null);
  const update = () => {
    const found = run.round_samples.find((one) => String(one.number) === rounds.value);
    list.replaceChildren(...found.completions.map((completion) => judged_panel(completion, names.value)));
  };
  rounds.addEventListener("change", update);
  names.addEventListener("change", update);
  update();
  return element("div", { class: "judged-samples", "data-run": run.name },
    element("div", { class: "row" }, swatch(run_colour(run.index)), run.name, rounds, "colour:", names), list);
}

function round_section() {
  const with_rounds = runs.filter((run) => run.rounds.length > 0);
  if (with_rounds.length === 0) {
    return; // no run is on-policy
  }
  section("rounds", "On-policy rounds", with_rounds.map((run) => [
    element("div", { class: "panel" }, run_heading(run), round_table(run)),
    run.rounds.some((round) => round.positions) ? element("div", { class: "grid wide" },
      position_chart(run, "reverse_kl", "KL(student, teacher) by position", ""),
      position_chart(run, "agreement", "Agreement by position", "%")) : null,
    element("h3", null, "What the teacher says of the student's words"),
    judged_samples(run)]));
}
