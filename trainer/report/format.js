// Numbers, times and page elements as text. Everything that a run has written goes through text nodes or attributes,
// never through markup.

function element(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) {
      node.append(child instanceof Node ? child : String(child));
    }
  }
  return node;
}

function is_number(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Up to four significant digits; thousands as k, M, G, T.
function short_number(value) {
  if (!is_number(value)) {
    return "–";
  }
  const size = Math.abs(value);
  if (size === 0) {
    return "0";
  }
  if (size < 1e-3 || size >= 1e15) {
    return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  for (const [least, unit, divisor] of [[1e12, "T", 1e12], [1e9, "G", 1e9], [1e6, "M", 1e6], [1e4, "k", 1e3]]) {
    if (size >= least) {
      return trimmed(value / divisor, 4) + unit;
    }
  }
  return trimmed(value, 4);
}

function trimmed(value, digits) {
  const text = value.toPrecision(digits);
  return text.includes("e") ? String(Number(text)) : text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

function whole_number(value) {
  return is_number(value) ? Math.round(value).toLocaleString("en-US") : "–";
}

const BYTES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

function bytes_text(value) {
  if (!is_number(value)) {
    return "–";
  }
  const [size, unit] = BYTES.find(([size]) => Math.abs(value) >= size) || [1, "B"];
  return trimmed(value / size, 4) + " " + unit;
}

function duration_text(seconds) {
  if (!is_number(seconds)) {
    return "–";
  }
  if (seconds < 1) {
    return trimmed(seconds * 1e3, 3) + " ms";
  }
  if (seconds < 60) {
    return trimmed(seconds, 3) + " s";
  }
  const whole = Math.round(seconds);
  const days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  const pad = (n) => String(n).padStart(2, "0");
  return days > 0 ? `${days} d ${hours}:${pad(minutes)} h` : `${days * 24 + hours}:${pad(minutes)}:${pad(whole % 60)}`;
}

function value_text(value, unit) {
  if (!is_number(value)) {
    return "–";
  }
  if (unit === "%") {
    return trimmed(100 * value, 3) + " %";
  }
  return unit === "bytes" ? bytes_text(value) : unit === "s" ? duration_text(value) : short_number(value);
}

// "2026-11-22T16:19:23Z" as "2026-11-22 16:19:23 UTC"; other text stays as it is.
function time_text(time) {
  const match = /^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?$/.exec(time || "");
  return match ? `${match[1]} ${match[2]}${match[4] === "Z" ? " UTC" : match[4] ? " " + match[4] : ""}` : time || "–";
}

function run_colour(index) {
  return `--colour: var(--run-${index % 8})`;
}

function swatch(style) {
  return element("span", { class: "swatch", style, "aria-hidden": "true" });
}
