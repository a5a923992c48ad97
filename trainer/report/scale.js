// Axes: from values to places on the screen, and the values at which ticks stand.

// Maps [low, high] to [from, to]; with `log`, values must be positive.
function make_scale(low, high, from, to, log) {
  const place = log ? Math.log10 : (v) => v;
  const a = place(low), b = place(high);
  const size = b - a || 1;
  const scale = (v) => from + ((place(v) - a) / size) * (to - from);
  scale.invert = (p) => {
    const v = a + ((p - from) / (to - from)) * size;
    return log ? 10 ** v : v;
  };
  scale.low = low;
  scale.high = high;
  scale.log = log;
  return scale;
}

// A range that has an extent, and is positive where the axis is logarithmic.
function usable_range(low, high, log) {
  if (!is_number(low) || !is_number(high)) {
    return log ? [1, 10] : [0, 1];
  }
  if (low === high) {
    const room = log ? low * 0.5 : Math.abs(low) * 0.05 || 1;
    return log ? [low / 1.5, high * 1.5] : [low - room, high + room];
  }
  return [low, high];
}

const DURATIONS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000,
];

function tick_step(size, count, unit) {
  const rough = size / Math.max(1, count);
  if (unit === "s" && rough >= 1) {
    return DURATIONS.find((d) => d >= rough) || Math.ceil(rough / 864000) * 864000;
  }
  if (unit === "bytes" && rough >= 1024) {
    const base = 1024 ** Math.floor(Math.log2(rough) / 10);
    return base * 2 ** Math.ceil(Math.log2(rough / base));
  }
  const base = 10 ** Math.floor(Math.log10(rough));
  return base * [1, 2, 5, 10].find((m) => m * base >= rough * 0.999999);
}

function ticks_of(scale, count, unit) {
  return scale.log ? log_ticks(scale, count) : linear_ticks(scale.low, scale.high, count, unit);
}

function linear_ticks(low, high, count, unit) {
  const step = tick_step(high - low, count, unit);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && ticks.length < 50; ++i) {
    ticks.push(i * step);
  }
  return ticks;
}

function log_ticks(scale, count) {
  const first = Math.ceil(Math.log10(scale.low) - 1e-9), last = Math.floor(Math.log10(scale.high) + 1e-9);
  if (last - first < 1) { // less than a decade between ticks: ordinary steps
    return linear_ticks(scale.low, scale.high, count).filter((v) => v > 0);
  }
  const every = Math.max(1, Math.ceil((last - first) / count));
  const ticks = [];
  for (let e = first; e <= last; e += every) {
    for (const m of last - first <= 2 ? [1, 2, 5] : [1]) {
      if (m * 10 ** e <= scale.high * 1.0000001) {
        ticks.push(m * 10 ** e);
      }
    }
  }
  return ticks;
}

// The index of the last element of the ascending array that is not above `value`; -1: all are.
function last_up_to(array, value) {
  let low = 0, high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] <= value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

function nearest(array, value) {
  const before = last_up_to(array, value);
  const after = before + 1;
  if (before < 0 || (after < array.length && array[after] - value < value - array[before])) {
    return Math.min(after, array.length - 1);
  }
  return before;
}

// The exponential moving average, divided by the weight that it has gathered, as TensorBoard smooths. Values that are
// not known stay unknown and are passed over.
function smoothed(values, weight) {
  if (weight <= 0) {
    return values;
  }
  let average = 0, gathered = 0;
  return values.map((value) => {
    if (!is_number(value)) {
      return null;
    }
    average = weight * average + (1 - weight) * value;
    gathered = weight * gathered + (1 - weight);
    return average / gathered;
  });
}
