// The phases of a step as stacked bars over the x axis, one chart for each run; and the marks of events.

function part_colour(index) {
  return `--colour: var(--part-${index % 8}); fill: var(--part-${index % 8})`;
}

class PhaseBars extends Frame {
  constructor(run, frame) {
    super({ ...frame, unit: "s" });
    this.run = run;
    this.names = Object.keys(run.series).filter((name) => name.startsWith("phase_seconds."));
    this.node.append(element("div", { class: "parts" }, this.names.map((name, i) =>
      element("span", null, swatch(part_colour(i)), phase_title(name)))));
  }

  // Means over as many points as fit side by side.
  groups() {
    const xs = this.run.x[state.axis];
    const first = state.range ? Math.max(0, last_up_to(xs, state.range[0])) : 0;
    const last = state.range ? last_up_to(xs, state.range[1]) : xs.length - 1;
    const count = last - first + 1;
    const most = Math.max(1, Math.floor((this.width - MARGIN.left - MARGIN.right) / 8));
    const size = Math.max(1, Math.ceil(count / most));
    const groups = [];
    for (let i = first; i <= last; i += size) {
      const end = Math.min(i + size, last + 1);
      const before = i > 0 ? xs[i - 1] : xs.length > 1 ? Math.max(0, 2 * xs[0] - xs[1]) : 0;
      groups.push({ from: before, to: xs[end - 1], values: this.names.map((name) => mean(this.run.series[name].mean.slice(i, end))) });
    }
    return groups.filter((group) => group.values.some(is_number));
  }

  paint() {
    this.node.hidden = !this.run.visible;
    this.bars = this.groups();
    const highest = Math.max(...this.bars.map((bar) => sum(bar.values)));
    this.make_x(this.bars.length ? this.bars[0].from : NaN, this.bars.length ? this.bars.at(-1).to : NaN, false);
    this.make_y(0, this.bars.length ? highest : NaN, false);
    this.axes();
    this.note.textContent = this.bars.length === 0 ? "No values." : "";
    for (const bar of this.bars) {
      const left = Math.max(MARGIN.left, this.x(bar.from)), right = Math.min(this.x(bar.to), this.width - MARGIN.right);
      let bottom = 0;
      bar.values.forEach((value, i) => {
        if (is_number(value) && value > 0) {
          const top = bottom + value;
          this.svg.append(drawn("rect", {
            class: "bar", style: part_colour(i), x: left.toFixed(1), width: Math.max(1, right - left - 1).toFixed(1),
            y: this.y(top).toFixed(1), height: (this.y(bottom) - this.y(top)).toFixed(1),
          }));
          bottom = top;
        }
      });
    }
  }

  draw() {
    this.node.hidden = !this.run.visible;
    super.draw();
  }

  x_values() {
    return (this.bars || []).map((bar) => bar.to);
  }

  rows_at(x) {
    const bar = this.bars.find((bar) => bar.to >= x) || this.bars.at(-1);
    const all = sum(bar.values);
    const rows = bar.values.map((value, i) => ({ style: part_colour(i), name: phase_title(this.names[i]),
      text: `${duration_text(value)}, ${trimmed(100 * value / all, 3)} %` }));
    return [...rows.reverse(), { name: "the whole step", text: duration_text(all) }];
  }
}

function phase_title(name) {
  const phase = name.split(".")[1];
  return PHASES[phase] || phase;
}

function sum(values) {
  return values.reduce((a, b) => a + (b || 0), 0);
}

function mean(values) {
  const known = values.filter(is_number);
  return known.length > 0 ? sum(known) / known.length : null;
}

function median(values) {
  const known = values.filter(is_number).sort((a, b) => a - b);
  return known.length > 0 ? known[known.length >> 1] : null;
}

// A line of marks for each kind of event, over the x axis.
class EventMarks extends Frame {
  constructor(kinds, frame) {
    super({ ...frame, height: MARGIN.top + MARGIN.bottom + 24 * kinds.length });
    this.kinds = kinds;
  }

  paint() {
    const shown = visible_runs();
    const steps = shown.flatMap((run) => [0, ...run.events.map((e) => place_of_step(run, e.step)), run.x[state.axis].at(-1) || 0]);
    this.make_x(Math.min(...steps), Math.max(...steps), false);
    this.y = make_scale(-0.5, this.kinds.length - 0.5, MARGIN.top, this.height - MARGIN.bottom, false);
    this.axes({ y_ticks: false });
    this.kinds.forEach((kind, row) => {
      this.svg.append(
        drawn("line", { class: "grid-line", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: this.y(row), y2: this.y(row) }),
        drawn("text", { class: "axis-text", x: 0, y: this.y(row) - 5 }, EVENTS[kind] || kind));
      for (const run of shown) {
        for (const event of run.events.filter((e) => e.kind === kind)) {
          const at = this.x(place_of_step(run, event.step));
          if (at >= MARGIN.left - 1 && at <= this.width - MARGIN.right + 1) {
            this.svg.append(drawn("circle", { class: `event-mark ${kind}`, cx: at, cy: this.y(row), r: 4.5 },
              drawn("title", null, `${run.name}, step ${event.step}: ${event.text}`)));
          }
        }
      }
    });
  }

  x_values() {
    const all = visible_runs().flatMap((run) => run.events.map((e) => place_of_step(run, e.step)));
    return [...new Set(all)].filter((x) => x >= this.x.low && x <= this.x.high).sort((a, b) => a - b);
  }

  rows_at(x) {
    return visible_runs().flatMap((run) => run.events.filter((e) => place_of_step(run, e.step) === x)
      .slice(0, 8)
      .map((event) => ({ style: run_colour(run.index), name: EVENTS[event.kind] || event.kind,
        text: event.text.length > 70 ? event.text.slice(0, 69) + "…" : event.text })));
  }
}
