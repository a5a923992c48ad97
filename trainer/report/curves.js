// A chart of curves over the x axis: one or more lines of each run, smoothed, with what was recorded behind them.

class Curves extends Frame {
  // lines_of(run): [{ label, mean, min, max, exact, planned, dashed }], arrays as long as the run's x arrays; without min and
  // max where each point is one step. dots_of(run): [{ step, y }] of evaluations.
  constructor({ lines_of, dots_of, log_y, from_zero, ...frame }) {
    super(frame);
    this.lines_of = lines_of;
    this.dots_of = dots_of || (() => []);
    this.never_log = log_y === false;
    this.from_zero = from_zero;
  }

  shown_lines() {
    return visible_runs().flatMap((run) =>
      this.lines_of(run).map((line) => ({
        ...line,
        run,
        xs: run.x[state.axis],
        values: line.planned || line.exact ? line.mean : smoothed(line.mean, state.smoothing),
      })));
  }

  shown_dots() {
    return visible_runs().flatMap((run) =>
      this.dots_of(run).filter((dot) => is_number(dot.y)).map((dot) => ({ ...dot, run, x: dot[state.axis] })));
  }

  paint() {
    const log_y = state.log_y && !this.never_log, log_x = state.log_x;
    this.lines = this.shown_lines();
    this.dots = this.shown_dots();
    const fits_x = (x) => !log_x || x > 0;
    const xs = [...this.lines.flatMap((line) => [line.xs.find(fits_x), line.xs.at(-1)]), ...this.dots.map((dot) => dot.x)]
      .filter((x) => is_number(x) && fits_x(x));
    this.make_x(Math.min(...xs), Math.max(...xs), log_x);
    this.make_y(...this.y_range(log_y), log_y);
    this.axes();
    if (xs.length === 0) {
      this.note.textContent = "No values.";
      return;
    }
    this.note.textContent = "";
    this.event_lines();
    const clip = this.clip();
    for (const line of this.lines) {
      this.draw_line(clip, line);
    }
    this.draw_dots(clip);
    this.svg.append(clip);
  }

  // A group whose content ends at the axes.
  clip() {
    const id = `clip-${charts.indexOf(this)}`;
    this.svg.append(drawn("clipPath", { id }, drawn("rect", {
      x: MARGIN.left - 5, y: 0, width: Math.max(0, this.width - MARGIN.left - MARGIN.right + 10), height: this.height - MARGIN.bottom + 5,
    })));
    return drawn("g", { "clip-path": `url(#${id})` });
  }

  y_range(log) {
    const values = [];
    const inside = (x) => x >= this.x.low && x <= this.x.high;
    for (const line of this.lines) {
      for (const array of [line.values, line.min || line.mean, line.max || []]) {
        array.forEach((v, i) => {
          if (is_number(v) && inside(line.xs[i]) && (!log || v > 0)) {
            values.push(v);
          }
        });
      }
    }
    for (const dot of this.dots) {
      if (inside(dot.x) && (!log || dot.y > 0)) {
        values.push(dot.y);
      }
    }
    values.sort((a, b) => a - b);
    const cut = state.outliers ? Math.floor(values.length * 0.02) : 0;
    return [this.from_zero ? 0 : values[cut], values[values.length - 1 - cut]];
  }

  draw_line(group, line) {
    const style = run_colour(line.run.index);
    const dashed = line.dashed ? " dashed" : "";
    if (line.planned) {
      group.append(drawn("path", { class: "planned", style, d: this.path(line.xs, line.mean) }));
      return;
    }
    if (line.min) {
      group.append(drawn("path", { class: "band", style, d: this.band(line) }));
    }
    this.draw_extremes(group, line, style);
    if (line.values !== line.mean) {
      group.append(drawn("path", { class: "raw", style, d: this.path(line.xs, line.mean) }));
    }
    group.append(drawn("path", { class: "line" + dashed, style, d: this.path(line.xs, line.values) }));
    if (line.xs.length === 1 && is_number(line.values[0])) { // a path of one point shows nothing
      group.append(drawn("circle", { class: "cursor-dot", style, cx: this.x(line.xs[0]), cy: this.y(line.values[0]), r: 3 }));
    }
  }

  // One value among the thousands of a point's steps is a tip of the band that is too thin to be seen. A smallest or
  // largest value that is much farther from the mean than is usual in this line is drawn as a stroke with a dot.
  draw_extremes(group, { xs, mean, min, max }, style) {
    const MUCH = 4, SHORTEST = 8; // times the usual distance, pixels
    const ends = (min ? [min, max] : []).flatMap((array) => array.map((value, i) => ({ x: xs[i], value, mean: mean[i] })))
      .filter(({ x, value, mean }) => this.fits(x, value) && this.fits(x, mean))
      .map((end) => ({ ...end, length: Math.abs(this.y(end.value) - this.y(end.mean)) }));
    const usual = ends.length > 0 ? median(ends.map((end) => end.length)) : 0;
    for (const end of ends.filter(({ length }) => length > Math.max(SHORTEST, MUCH * usual))) {
      group.append(drawn("path", { class: "extreme", style, d: `M${this.point(end.x, end.mean)}L${this.point(end.x, end.value)}` }));
      group.append(drawn("circle", { class: "extreme-dot", style, cx: this.x(end.x), cy: this.y(end.value), r: 3 }));
    }
  }

  fits(x, y) {
    return is_number(y) && (!this.x.log || x > 0) && (!this.y.log || y > 0);
  }

  point(x, y) {
    return `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`;
  }

  // Interrupted where values are not known.
  path(xs, values) {
    let text = "", pen = "M";
    for (let i = 0; i < xs.length; ++i) {
      if (this.fits(xs[i], values[i])) {
        text += pen + this.point(xs[i], values[i]);
        pen = "L";
      } else {
        pen = "M";
      }
    }
    return text;
  }

  // Between the smallest and the largest value of the steps that share a point.
  band({ xs, min, max }) {
    let text = "", upper = [], lower = [];
    const close = () => {
      if (upper.length > 0) {
        text += "M" + upper.concat(lower.reverse()).join("L") + "Z";
      }
      upper = [];
      lower = [];
    };
    for (let i = 0; i < xs.length; ++i) {
      if (this.fits(xs[i], min[i]) && is_number(max[i])) {
        upper.push(this.point(xs[i], max[i]));
        lower.push(this.point(xs[i], min[i]));
      } else {
        close();
      }
    }
    close();
    return text;
  }

  draw_dots(group) {
    for (const run of visible_runs()) {
      const own = this.dots.filter((dot) => dot.run === run && this.fits(dot.x, dot.y));
      const style = run_colour(run.index);
      group.append(drawn("path", { class: "eval-line", style, d: this.path(own.map((d) => d.x), own.map((d) => d.y)) }));
      for (const dot of own) {
        group.append(drawn("circle", { class: "dot", style, cx: this.x(dot.x), cy: this.y(dot.y), r: own.length > 60 ? 2 : 3.5 }));
      }
    }
  }

  x_values() {
    const all = new Set((this.lines || []).flatMap((line) => line.xs));
    for (const dot of this.dots || []) {
      all.add(dot.x);
    }
    return [...all].filter((x) => x >= this.x.low && x <= this.x.high).sort((a, b) => a - b);
  }

  rows_at(x) {
    const rows = [];
    for (const line of this.lines) {
      if (line.xs.length === 0 || x > line.xs.at(-1) || x < line.xs[0]) {
        continue;
      }
      const i = nearest(line.xs, x);
      const recorded = value_text(line.mean[i], this.unit);
      const extremes = line.min && line.min[i] !== line.max[i]
        ? ` (${value_text(line.min[i], this.unit)} to ${value_text(line.max[i], this.unit)})` : "";
      const text = line.values === line.mean ? recorded + extremes
        : `${value_text(line.values[i], this.unit)}, recorded ${recorded}${extremes}`;
      const name = [runs.length > 1 ? line.run.name : "", line.label || ""].filter(Boolean).join(": ");
      rows.push({ x: line.xs[i], y: this.fits(line.xs[i], line.values[i]) ? line.values[i] : null,
        style: run_colour(line.run.index), name: name || "value", text });
    }
    for (const dot of this.dots) {
      if (dot.x === x) {
        rows.push({ x, y: null, style: run_colour(dot.run.index), text: value_text(dot.y, this.unit),
          name: `${runs.length > 1 ? dot.run.name + ": " : ""}evaluation` });
      }
    }
    return rows;
  }
}
