// Measures against the outcome, a mark for each network; the table in the order of any column.

const told = JSON.parse(byId("study").textContent);
const TALL = 330;
const NEAR = 40; // pixels: what is farther from the pointer is not meant
const R = 4.6;
const ASK = "Point at a network, or go through them with the arrow keys.";
const { outcome, axes, measures, lines, configurations, seeds } = told;
const chosen = { line: Math.max(lines.findIndex((line) => line.length > 1), 0), axis: axes.length ? 0 : -1, network: null };
let plots = [];

const SHAPES = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  (r) => `M${-0.88 * r} ${-0.88 * r}h${1.76 * r}v${1.76 * r}h${-1.76 * r}Z`,
  (r) => `M0 ${-1.15 * r}L${1.1 * r} ${0.85 * r}H${-1.1 * r}Z`,
  (r) => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0Z`,
  (r) => `M0 ${1.15 * r}L${1.1 * r} ${-0.85 * r}H${-1.1 * r}Z`,
  (r) => `M${-0.4 * r} ${-1.2 * r}h${0.8 * r}v${0.8 * r}h${0.8 * r}v${0.8 * r}h${-0.8 * r}v${0.8 * r}h${-0.8 * r}v${-0.8 * r}h${-0.8 * r}v${-0.8 * r}h${0.8 * r}Z`,
  (r) => `M0 ${-1.2 * r}L${1.14 * r} ${-0.37 * r}L${0.7 * r} ${0.97 * r}H${-0.7 * r}L${-1.14 * r} ${-0.37 * r}Z`,
];

const minus = (text) => text.replace(/(^|[^e\d])-/, "$1−");
const two = (value) => (value === null ? "not known" : minus((Math.round(value * 100) / 100 + 0).toFixed(2)));
const tau = ({ tau: [value, low, high] }) => (value === null ? "tau is not known" : `tau ${two(value)} [${two(low)}, ${two(high)}]`);
const colour = (network) => {
  const axis = axes[chosen.axis];
  const at = axis?.at[network];
  return at === null || at === undefined ? 0 : axis.groups[at];
};

/** A scale of these values with a little room: over parts of decades where it is logarithmic. */
function spread(values, log, span) {
  const known = values.filter((value) => value !== null && (!log || value > 0)).map((value) => (log ? Math.log10(value) : value));
  let [low, high] = [Math.min(...known), Math.max(...known)];
  const room = 0.04 * (high - low) || 0.05 * Math.abs(high) || 0.5;
  [low, high] = [low - room, high + room];
  if (!log) return linear([low, high], span);
  const scale = (value) => (value > 0 ? span[0] + ((Math.log10(value) - low) / (high - low)) * (span[1] - span[0]) : NaN);
  const ticks = [];
  const each = Math.ceil((high - low) / 6);
  const parts = high - low < 1.2 ? [1, 2, 5] : high - low < 2.2 ? [1, 3] : [1];
  for (let k = Math.floor(low); k <= high; k += 1) {
    if (parts.length === 1 && k % each !== 0) continue;
    for (const part of parts) {
      const value = part * 10 ** k;
      if (Math.log10(value) < low || Math.log10(value) > high) continue;
      ticks.push({ at: scale(value), label: parts.length > 1 && k >= -3 && k < 5 ? String(Number(value.toPrecision(1))) : part === 1 ? power(k) : `${part}·${power(k)}` });
    }
  }
  return { scale, ticks };
}

/** One scatter plot; its marks are found again by the number of their network. */
function plot(parent, measure) {
  const figure = element(parent, "figure");
  const caption = element(figure, "figcaption");
  const title = element(caption, "h3");
  element(title, "span", measure.invariant ? "◆" : "●", `sign ${measure.invariant ? "stays" : "moves"}`).setAttribute("aria-hidden", "true");
  title.append(measure.name);
  const there = seeds.map((_, k) => k).filter((k) => measure.values[k] !== null && outcome.values[k] !== null);
  element(caption, "p", `${tau(measure)}, ${there.length} networks, ${measure.invariant ? "no rescaling moves it" : "in these coordinates"}`);
  const stage = element(figure, "div", "", "stage");
  const svg = draw(document.querySelector(".brand svg"), "svg", { tabindex: 0, role: "img", "aria-label": `${measure.name} across, ${outcome.name} upward, ${there.length} networks, ${tau(measure)}. The arrow keys go through the networks.` });
  stage.append(svg);
  const made = { svg, measure, there: there.sort((a, b) => measure.values[a] - measure.values[b]), at: new Map(), marks: new Map() };
  if (there.length) board(svg, TALL, (svg, width, height) => paint(made, svg, width, height));
  listen(made);
  return made;
}

function paint(made, svg, width, height) {
  const { measure, there, at, marks } = made;
  const box = { left: 58, right: width - 10, top: 12, bottom: height - 44 };
  const across = spread(there.map((k) => measure.values[k]), measure.log, [box.left + 4, box.right]);
  const up = spread(there.map((k) => outcome.values[k]), outcome.log, [box.bottom, box.top]);
  levels(svg, up.ticks, [box.left, box.right]);
  foot(svg, across.ticks, `${measure.name}${measure.log ? ", log axis" : ""}`, box);
  draw(svg, "text", { x: 12, y: (box.top + box.bottom) / 2, transform: `rotate(-90 12 ${(box.top + box.bottom) / 2})`, "text-anchor": "middle" }, `${outcome.name}${outcome.log ? ", log axis" : ""}`);
  const within = (x) => (Number.isFinite(x) ? Math.min(Math.max(x, box.left), box.right) : box.left);
  for (const k of there) {
    const [x, y, error] = [across.scale(measure.values[k]), up.scale(outcome.values[k]), measure.errors[k] ?? 0];
    const mark = draw(svg, "g", { class: `network s${colour(k)}`, "data-network": k });
    const [x1, x2] = [-1, 1].map((side) => within(across.scale(measure.values[k] + side * error)));
    if (error && x2 - x1 > 2 * R) draw(mark, "line", { x1: x1.toFixed(1), x2: x2.toFixed(1), y1: y.toFixed(1), y2: y.toFixed(1) });
    draw(mark, "path", { d: SHAPES[colour(k)](R), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
    at.set(k, [x, y]);
    marks.set(k, mark);
  }
  light();
}

function listen(made) {
  const { svg, there, at } = made;
  const nearest = (event) => {
    const frame = svg.getBoundingClientRect();
    const far = (k) => Math.hypot(at.get(k)[0] - event.clientX + frame.left, at.get(k)[1] - event.clientY + frame.top);
    const best = there.reduce((a, b) => (far(b) < far(a) ? b : a), there[0]);
    return best !== undefined && far(best) < NEAR ? best : null;
  };
  for (const name of ["pointermove", "pointerdown"]) svg.addEventListener(name, (event) => tell(nearest(event), made));
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") tell(null); });
  svg.addEventListener("blur", () => tell(null));
  svg.addEventListener("keydown", (event) => {
    const place = there.indexOf(chosen.network);
    const to = { ArrowLeft: place - 1, ArrowDown: place - 1, ArrowRight: place + 1, ArrowUp: place + 1, Home: 0, End: there.length - 1 }[event.key];
    if (event.key === "Escape") tell(null);
    if (to === undefined || !there.length) return;
    event.preventDefault();
    tell(there[Math.max(0, Math.min(there.length - 1, to))], made);
  });
}

const number = (value, error) => (value === null ? "not known" : minus(short(value)) + (error ? ` ± ${Number(error.toPrecision(2))}` : ""));

/** Names a network and lights its configuration, in all plots. */
function tell(network) {
  if (network === chosen.network) return;
  chosen.network = network;
  light();
  if (network === null) {
    byId("told").textContent = ASK;
    return;
  }
  const config = axes.map((axis) => `${axis.name} ${axis.values[axis.at[network]] ?? "not known"}`);
  const values = plots.map(({ measure }) => `${measure.name} ${number(measure.values[network], measure.errors[network])}`);
  byId("told").textContent = `${[...config, `seed ${seeds[network]}`].join(", ")}: ${outcome.name} ${number(outcome.values[network])}; ${values.join("; ")}.`;
}

function light() {
  for (const { svg, marks } of plots) {
    svg.classList.toggle("lit", chosen.network !== null);
    for (const [k, mark] of marks) {
      mark.classList.toggle("chosen", k === chosen.network);
      mark.classList.toggle("same", chosen.network !== null && configurations[k] === configurations[chosen.network]);
    }
    const top = marks.get(chosen.network);
    if (top) svg.append(top);
  }
}

/** The plots of the chosen line, coloured by the chosen axis. */
function show() {
  const members = lines[chosen.line].map((place) => measures[place]);
  plots = [];
  chosen.network = null;
  byId("told").textContent = ASK;
  byId("plots").replaceChildren();
  plots = members.map((measure) => plot(byId("plots"), measure));
  byId("measure").value = chosen.line;
  const names = members.map(({ label }) => label);
  for (const row of document.querySelectorAll("#ladder [data-name], #ranks [data-name]")) {
    row.setAttribute("aria-current", names.includes(row.dataset.name));
  }
  legend();
}

function legend() {
  const list = byId("shapes");
  list.replaceChildren();
  const axis = axes[chosen.axis];
  if (!axis) return;
  element(list, "li", axis.name, "of");
  axis.labels.forEach((label, k) => {
    const item = element(list, "li", "", `s${k}`);
    const svg = draw(document.querySelector(".brand svg"), "svg", { viewBox: "-6 -6 12 12", "aria-hidden": "true" });
    draw(svg, "path", { d: SHAPES[k](R) });
    item.append(svg, label);
  });
}

function choices() {
  lines.forEach(([first], k) => { element(byId("measure"), "option", measures[first].name).value = k; });
  axes.forEach((axis, k) => { element(byId("by"), "option", axis.name).value = k; });
  element(byId("by"), "option", "none").value = -1;
  byId("by").value = chosen.axis;
  byId("measure").addEventListener("change", (event) => { chosen.line = Number(event.target.value); show(); });
  byId("by").addEventListener("change", (event) => { chosen.axis = Number(event.target.value); show(); });
  for (const link of document.querySelectorAll("[data-choose]")) {
    link.addEventListener("click", () => {
      const place = measures.findIndex(({ label }) => label === link.dataset.choose);
      chosen.line = Math.max(lines.findIndex((line) => line.includes(place)), 0);
      show();
    });
  }
}

/** The rows in the order of a column; what has no value stands last in either direction. */
function sort(head, body, column, place) {
  const was = head.querySelector(`[data-column="${column}"]`).getAttribute("aria-sort");
  const down = was ? was === "ascending" : column !== "title" && column !== "p";
  for (const cell of head.querySelectorAll("[aria-sort]")) cell.removeAttribute("aria-sort");
  head.querySelector(`[data-column="${column}"]`).setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (row) => row.children[place].dataset.value;
  const ordered = [...body.rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const way = column === "title" ? x.localeCompare(y) : Number(x) - Number(y);
    return down ? -way : way;
  });
  body.append(...ordered);
}

const table = byId("ranks");
[...table.tHead.rows[0].cells].forEach((cell, place) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...cell.childNodes);
  cell.append(button);
  button.addEventListener("click", () => sort(table.tHead, table.tBodies[0], cell.dataset.column, place));
});
byId("scatter").hidden = false;
choices();
show();
