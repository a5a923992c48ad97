// The part that all charts share: a panel with a title, an SVG as wide as the panel, axes, a cursor for pointer and
// keyboard with a box of values, and a range of x that is dragged to zoom in.

const MARGIN = { left: 54, right: 12, top: 8, bottom: 36 };

class Frame {
  constructor({ title, unit, height = 230, id }) {
    this.title = title;
    this.unit = unit || "";
    this.height = height;
    this.note = element("p", { class: "note" });
    this.svg = drawn("svg", { "aria-hidden": "true", focusable: "false" });
    this.tip = element("div", { class: "tip", role: "status", "aria-live": "polite", hidden: true });
    this.plot = element("div", {
      class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart",
      "aria-label": title + (unit ? `, ${unit}` : "") + ". The arrow keys move through the values.",
    }, this.svg);
    const shown_unit = unit === "%" ? "per cent" : unit;
    this.node = element("div", { class: "panel chart", id, "data-title": title },
      element("h3", null, title, shown_unit ? element("span", { class: "unit" }, shown_unit) : null),
      this.plot, this.tip, this.note);
    this.cursor = null; // the place on the x axis
    this.listen();
    charts.push(this);
    new ResizeObserver(() => {
      if (Math.abs(this.plot.clientWidth - (this.width || 0)) > 1) {
        this.draw();
      }
    }).observe(this.plot);
  }

  // Subclasses: x_values() of all that the cursor may stand at, ascending; rows_at(x) of the box; paint().
  draw() {
    this.width = this.plot.clientWidth;
    if (!this.width) {
      return;
    }
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.svg.replaceChildren();
    this.paint();
    this.draw_cursor();
  }

  make_x(low, high, log) {
    if (state.range) {
      [low, high] = state.range;
    }
    [low, high] = usable_range(log ? Math.max(low, 1e-12) : low, high, log);
    this.x = make_scale(low, high, MARGIN.left, this.width - MARGIN.right, log);
  }

  make_y(low, high, log) {
    [low, high] = usable_range(low, high, log);
    if (!log) {
      const room = (high - low) * 0.06;
      low = low >= 0 && low - room < 0 ? Math.min(low, 0) : low - room;
      high += room;
    }
    this.y = make_scale(low, high, this.height - MARGIN.bottom, MARGIN.top, log);
  }

  axes({ y_ticks = true } = {}) {
    const { width, height, x, y } = this;
    const bottom = height - MARGIN.bottom, axis = AXES[state.axis];
    if (y_ticks) {
      for (const tick of ticks_of(y, 5, this.unit)) {
        const at = y(tick);
        this.svg.append(
          drawn("line", { class: "grid-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }),
          drawn("text", { class: "axis-text", x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" },
            value_text(tick, this.unit)));
      }
    }
    const count = Math.max(2, Math.floor((width - MARGIN.left) / 90));
    for (const tick of ticks_of(x, count, axis.unit)) {
      const at = x(tick);
      const anchor = at > width - 30 ? "end" : "middle";
      this.svg.append(
        drawn("line", { class: "axis-line", x1: at, x2: at, y1: bottom, y2: bottom + 4 }),
        drawn("text", { class: "axis-text", x: at, y: bottom + 16, "text-anchor": anchor }, value_text(tick, axis.unit)));
    }
    this.svg.append(
      drawn("line", { class: "axis-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
      drawn("text", {
        class: "axis-title", x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 4, "text-anchor": "middle",
      }, axis.title + (axis.unit === "s" ? " (h:mm:ss)" : "")));
  }

  // Lines at the events of the runs that are shown.
  event_lines() {
    if (!state.events) {
      return;
    }
    for (const run of visible_runs()) {
      for (const event of run.events) {
        const at = this.x(place_of_step(run, event.step));
        if (event.kind !== "end" && at >= MARGIN.left && at <= this.width - MARGIN.right) {
          this.svg.append(drawn("line", {
            class: `event-line ${event.kind}`, x1: at, x2: at, y1: MARGIN.top, y2: this.height - MARGIN.bottom,
          }));
        }
      }
    }
  }

  listen() {
    let from = null; // where a drag began
    const x_of = (event) => event.clientX - this.svg.getBoundingClientRect().left;
    this.plot.addEventListener("pointerdown", (event) => {
      from = event.pointerType === "mouse" && event.button === 0 ? x_of(event) : null;
    });
    this.plot.addEventListener("pointermove", (event) => {
      const at = x_of(event);
      this.dragged = from !== null && Math.abs(at - from) > 6 ? [Math.min(from, at), Math.max(from, at)] : null;
      this.move_to(this.x && this.x.invert(at));
    });
    this.plot.addEventListener("pointerup", () => {
      if (this.dragged) {
        const clamp = (p) => Math.min(Math.max(p, MARGIN.left), this.width - MARGIN.right);
        const range = this.dragged.map((p) => this.x.invert(clamp(p)));
        this.dragged = null;
        if (range[1] > range[0]) {
          zoom_to(range);
        }
      }
      from = null;
    });
    this.plot.addEventListener("pointerleave", () => {
      from = this.dragged = null;
      this.move_to(null);
    });
    this.plot.addEventListener("dblclick", () => zoom_to(null));
    this.plot.addEventListener("blur", () => this.move_to(null));
    this.plot.addEventListener("keydown", (event) => this.on_key(event));
  }

  on_key(event) {
    const xs = this.x_values();
    const far = event.shiftKey ? 10 : 1;
    const now = this.cursor === null ? -1 : nearest(xs, this.cursor);
    const target = { ArrowRight: now + far, ArrowLeft: (now < 0 ? xs.length : now) - far, Home: 0, End: xs.length - 1 }[event.key];
    if (event.key === "Escape") {
      this.move_to(null);
      zoom_to(null);
    } else if (target !== undefined && xs.length > 0) {
      event.preventDefault();
      this.move_to(xs[Math.min(Math.max(target, 0), xs.length - 1)]);
    }
  }

  move_to(x) {
    this.cursor = x;
    this.draw_cursor();
  }

  draw_cursor() {
    this.layer?.remove();
    this.tip.hidden = true;
    const xs = this.cursor === null || !this.x ? [] : this.x_values();
    if (xs.length === 0) {
      return;
    }
    const x = xs[nearest(xs, this.cursor)];
    const at = this.x(x);
    this.layer = drawn("g", { class: "cursor-layer" });
    if (this.dragged) {
      const [a, b] = this.dragged;
      this.layer.append(drawn("rect", {
        class: "selection", x: a, width: b - a, y: MARGIN.top, height: this.height - MARGIN.bottom - MARGIN.top,
      }));
    }
    if (at < MARGIN.left - 1 || at > this.width - MARGIN.right + 1) {
      this.svg.append(this.layer);
      return;
    }
    this.layer.append(drawn("line", { class: "cursor", x1: at, x2: at, y1: MARGIN.top, y2: this.height - MARGIN.bottom }));
    const rows = this.rows_at(x);
    for (const row of rows) {
      if (is_number(row.y)) {
        this.layer.append(drawn("circle", { class: "cursor-dot", style: row.style, cx: this.x(row.x), cy: this.y(row.y), r: 4 }));
      }
    }
    this.svg.append(this.layer);
    this.show_tip(x, at, rows);
  }

  show_tip(x, at, rows) {
    const axis = AXES[state.axis];
    this.tip.replaceChildren(
      element("div", { class: "muted" },
        `${axis.title.split(",")[0]} ${axis.unit === "s" ? duration_text(x) : whole_number(x)}`),
      element("table", null, rows.map((row) => element("tr", null,
        element("td", null, row.style ? swatch(row.style) : ""), element("td", { class: "name" }, row.name),
        element("td", null, row.text)))));
    this.tip.hidden = false;
    const left = this.plot.offsetLeft + at;
    const flip = at > this.width / 2;
    this.tip.style.top = `${this.plot.offsetTop + 4}px`;
    this.tip.style.left = flip ? "auto" : `${left + 12}px`;
    this.tip.style.right = flip ? `${this.node.clientWidth - left + 12}px` : "auto";
  }
}
