// What the controls say; every chart is drawn again when it changes.

const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs.map((run, index) => ({ ...run, index, visible: true }));
const state = { axis: "step", log_x: false, log_y: false, smoothing: 0.6, outliers: false, events: true, range: null };
const AXES = {
  step: { title: "Step", unit: "" },
  tokens: { title: "Tokens, padding included", unit: "" },
  seconds: { title: "Training time, the steps alone", unit: "s" },
};
const charts = [];
let drawing = 0;

function draw_soon() {
  if (!drawing) {
    drawing = requestAnimationFrame(() => {
      drawing = 0;
      draw_now();
    });
  }
}

function draw_now() {
  document.getElementById("reset-zoom").hidden = !state.range;
  for (const chart of charts) {
    chart.draw();
  }
}

function visible_runs() {
  return runs.filter((run) => run.visible);
}

// A step's place on the x axis that is chosen, from the points of the run: the last one that is not later.
function place_of_step(run, step) {
  if (state.axis === "step") {
    return step;
  }
  const i = last_up_to(run.x.step, step);
  return i < 0 ? 0 : run.x[state.axis][i];
}

function zoom_to(range) {
  state.range = range;
  draw_soon();
}
