"use strict";
// Scales, axes and numbers for the small charts.

const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Four digits in the way that the tables of the page print them. */
function short(value) {
  if (value === null) return "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const scientific = value.toExponential(3).replace(/e([+-])(\d)$/, "e$10$2");
  const exponent = Number(scientific.split("e")[1]);
  return size >= 1e-4 && size < 1e6 ? Number(scientific).toFixed(Math.max(3 - exponent, 0)) : scientific;
}

/** One digit, for changes that should be nothing. */
const tiny = (value) => (value === 0 ? "0" : value.toExponential(0).replace(/e([+-])(\d)$/, "e$10$2"));

const power = (exponent) =>
  "10" + (exponent < 0 ? "⁻" : "") + [...String(Math.abs(exponent))].map((digit) => SUPERSCRIPT[digit]).join("");

/** A new node of a drawing; the namespace is the parent's. */
function draw(parent, tag, attributes = {}, text = "") {
  const node = document.createElementNS(parent.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  parent.append(node);
  return node;
}

/** A new element of the page. */
function element(parent, tag, text = "", name = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (name) node.className = name;
  parent.append(node);
  return node;
}

function linear([low, high], [from, to]) {
  const scale = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  const raw = (high - low || 1) / 4;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  const ticks = Array.from({ length: count }, (_, i) => (first + i) * step);
  const decimals = Math.max(0, -Math.floor(Math.log10(step)));
  const plain = step < 1e5 && step >= 1e-4;
  const digits = (value) => (plain ? value.toFixed(decimals) : Number(value.toPrecision(3)).toExponential());
  const label = (value) => digits(value).replace("-", "−");
  return { scale, ticks: ticks.map((value) => ({ at: scale(value), label: label(value) })) };
}

/** A logarithmic scale over whole decades, twelve at most: what is less lies at its foot. */
function logarithmic(values, [from, to]) {
  const sizes = values.filter((value) => value > 0).map(Math.log10);
  const high = sizes.length ? Math.ceil(Math.max(...sizes) + 1e-9) : 1;
  const low = sizes.length ? Math.max(Math.min(Math.floor(Math.min(...sizes)), high - 1), high - 12) : 0;
  const scale = (value) => from + ((Math.log10(Math.max(value, 10 ** low)) - low) / (high - low)) * (to - from);
  const step = Math.ceil((high - low) / 6);
  const ticks = [];
  for (let exponent = low; exponent <= high; exponent += step) {
    ticks.push({ at: scale(10 ** exponent), label: power(exponent) });
  }
  return { scale, ticks };
}

/** Horizontal grid lines with their labels. */
function levels(svg, ticks, [left, right]) {
  for (const { at, label } of ticks) {
    draw(svg, "line", { class: "grid", x1: left, x2: right, y1: at, y2: at });
    draw(svg, "text", { x: left - 8, y: at + 4, "text-anchor": "end" }, label);
  }
}
