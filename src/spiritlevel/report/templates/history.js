// Small charts over the steps of a training, all at the same step under the pointer.

const told = JSON.parse(byId("course").textContent);
const TALL = 210;
const { steps, labels } = told;
const panels = [];

const points = (course) => (course === null ? [] : course.steps.map((step, k) => ({ step, value: real(course.values[k]), error: real(course.errors[k]), below: real(course.below[k]) })));

/** A course as a band, a line and its dots. */
function drawCourse(svg, name, course, x, y, foot) {
  const group = draw(svg, "g", { class: name });
  const known = course.filter(({ value }) => Number.isFinite(y(value)));
  const end = ({ step, value, error, below }, sign) => {
    const at = y(sign > 0 ? value + error : value - below);
    return `${x(step).toFixed(1)} ${(Number.isFinite(at) ? Math.min(at, foot) : foot).toFixed(1)}`;
  };
  if (known.some(({ error, below }) => error > 0 || below > 0)) {
    const [upper, lower] = [1, -1].map((sign) => known.map((point) => end(point, sign)));
    draw(group, "path", { class: "band", d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` });
  }
  draw(group, "path", { class: "curve", d: trace(course.map(({ step, value }) => [x(step), y(value)])) });
  if (known.length > 60) return;
  for (const { step, value } of known) draw(group, "circle", { class: "dot", cx: x(step).toFixed(1), cy: y(value).toFixed(1), r: 2.6 });
}

/** The axis of all values of a panel, with a little room. */
function upward(panel, values, span) {
  const finite = values.filter((value) => Number.isFinite(value) && (!panel.log || value > 0));
  if (panel.log) return logarithmic(finite, span);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
  return linear([low - room, high + room], span);
}

function panel(parent, given) {
  const figure = element(parent, "figure");
  const caption = element(figure, "figcaption");
  const title = element(caption, "h3", given.title);
  if (given.log) element(title, "small", ", log axis");
  const words = element(caption, "p");
  const stage = element(figure, "div", "", "stage");
  const svg = draw(document.querySelector(".brand svg"), "svg", { tabindex: 0, role: "img", "aria-label": `${given.title} along the training` });
  stage.append(svg);
  const [here, least, edge, met] = [given.here, given.least, given.edge, given.met].map(points);
  const drawn = { across: null, guide: null };
  const every = [...new Set([...here, ...met].map(({ step }) => step))];
  const ends = [Math.min(...steps, ...every), Math.max(...steps, ...every)];

  board(svg, TALL, (svg, width, height) => {
    const box = { left: 52, right: width - 12, top: 10, bottom: height - 40 };
    const values = [...here, ...least].flatMap(({ value, error, below }) => (given.log ? [value] : [value - below, value, value + error]));
    const up = upward(given, [...values, ...edge.map(({ value }) => value), ...met.map(({ value }) => value)], [box.bottom, box.top]);
    const y = (value) => (Number.isFinite(value) && (!given.log || value > 0) ? up.scale(value) : NaN);
    const across = linear(ends, [box.left + 6, box.right]);
    drawn.across = across;
    levels(svg, up.ticks, [box.left, box.right]);
    const whole = across.ticks.filter(({ label }) => Number.isInteger(Number(label.replace("−", "-"))));
    const each = Math.ceil((whole.length * 46) / (box.right - box.left));
    foot(svg, whole.filter((_, k) => k % each === 0), told.axis ?? "step", box);
    if (met.length) draw(svg, "path", { class: "met", d: trace(met.map(({ step, value }) => [across.scale(step), y(value)])) });
    if (edge.length) draw(svg, "path", { class: "edge", d: trace(edge.map(({ step, value }) => [across.scale(step), y(value)])) });
    drawCourse(svg, given.invariant ? "least" : "here", here, across.scale, y, box.bottom);
    if (least.length) drawCourse(svg, "least", least, across.scale, y, box.bottom);
    drawn.guide = draw(svg, "line", { class: "guide", y1: box.top, y2: box.bottom, visibility: "hidden" });
  });
  const nearest = (x) => steps.reduce((best, step, k) => (Math.abs(drawn.across.scale(step) - x) < Math.abs(drawn.across.scale(steps[best]) - x) ? k : best), 0);
  follow(svg, steps.length, nearest, (k) => show(k));
  panels.push({ drawn, words, here, least, edge, met });
}

const at = (course, step) => course.find((point) => point.step === step);

/** A value, with its error where that could be seen in its digits. */
function number({ value, error, below }) {
  if (!Number.isFinite(value)) return "not finite";
  if (below > error) return `≤ ${short(value)}`;
  return short(value) + (error > 1e-3 * Math.abs(value) ? ` ± ${Number(error.toPrecision(2))}` : "");
}

/** The same moment in all panels; the last one where the pointer has left. */
function show(k) {
  const step = steps[k ?? steps.length - 1];
  for (const { drawn, words, here, least, edge, met } of panels) {
    drawn.guide.setAttribute("visibility", k === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) drawn.guide.setAttribute(end, drawn.across.scale(step));
    const [value, bottom, limit] = [at(here, step) ?? at(met, step), at(least, step), at(edge, step)];
    const parts = [value && number(value), bottom && `least ${number(bottom)}`, limit && `edge ${short(limit.value)}`];
    words.textContent = parts.filter(Boolean).join(", ") || "not known";
  }
  byId("told").textContent = `Values at ${labels[k ?? labels.length - 1]}.`;
}

for (const given of told.panels) {
  if (given.here.steps.length || given.met?.steps.length) panel(byId("courses"), given);
}
show(null);
