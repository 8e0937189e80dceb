// One network at several stops along its orbit: three panels, one slider.

const way = JSON.parse(document.getElementById("way").textContent);
const { stops, distances, outputs } = way;
const home = Math.max(0, stops.findIndex((stop) => stop.label === "here"));
const byId = (id) => document.getElementById(id);
const BOX = { left: 44, right: 332, top: 10, bottom: 208, foot: 228, title: 246 };
const EXAMPLES = 4;

/** The finite numbers of all stops: axes are fixed by them once. */
const everywhere = (pick) => stops.flatMap(pick).filter((value) => value !== null);

/** What the horizontal axis is. */
const underline = (svg, text) =>
  draw(svg, "text", { x: (BOX.left + BOX.right) / 2, y: BOX.title, "text-anchor": "middle" }, text);

function spectrumPanel(svg) {
  const count = Math.max(...stops.map((stop) => stop.eigenvalues.length));
  const { scale, ticks } = logarithmic(everywhere((stop) => stop.eigenvalues.map(Math.abs)), [BOX.bottom, BOX.top]);
  const across = (i) => BOX.left + ((i + 0.5) / count) * (BOX.right - BOX.left);
  levels(svg, ticks, [BOX.left, BOX.right]);
  underline(svg, "eigenvalue, largest first");
  const marks = Array.from({ length: count }, (_, i) => {
    draw(svg, "text", { x: across(i), y: BOX.foot, "text-anchor": "middle" }, String(i + 1));
    const stem = draw(svg, "rect", { class: "stem", x: across(i) - 0.75, width: 1.5 });
    const ghost = stops[home].eigenvalues[i];
    if (ghost !== undefined) {
      draw(svg, "circle", { class: "ghost-dot", cx: across(i), cy: scale(Math.abs(ghost)), r: 4 });
    }
    return { stem, dot: draw(svg, "circle", { class: "dot", cx: across(i), r: 5 }) };
  });
  return (stop) => {
    marks.forEach(({ stem, dot }, i) => {
      const value = stop.eigenvalues[i];
      const shown = value !== undefined;
      const at = shown ? scale(Math.abs(value)) : BOX.bottom;
      for (const node of [stem, dot]) node.style.display = shown ? "" : "none";
      stem.setAttribute("y", at);
      stem.setAttribute("height", BOX.bottom - at);
      dot.setAttribute("cy", at);
      dot.classList.toggle("negative", value <= 0);
    });
    byId("top").textContent = short(stop.eigenvalues[0]);
  };
}

function slicePanel(svg) {
  const losses = everywhere((stop) => stop.slice);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  // a sharp minimum dwarfs a flat one: on a linear axis only one of them could be seen
  const wide = low > 0 && high / low > 30;
  const span = [BOX.bottom, BOX.top];
  const { scale, ticks } = wide ? logarithmic(losses, span) : linear([low, high], span);
  const far = distances.at(-1);
  const across = linear([distances[0], far], [BOX.left + 8, BOX.right - 8]);
  levels(svg, ticks, [BOX.left, BOX.right]);
  for (const { at, label } of across.ticks) {
    draw(svg, "text", { x: at, y: BOX.foot, "text-anchor": "middle" }, label);
  }
  underline(svg, `distance along the top eigenvector${wide ? ", loss on a log axis" : ""}`);
  const dot = (loss, i) => [across.scale(distances[i]), loss === null ? BOX.top : scale(loss)].map((x) => x.toFixed(2));
  const trace = (slice) => `M${slice.map(dot).join("L")}`;
  draw(svg, "path", { class: "ghost-line", d: trace(stops[home].slice) });
  const curve = draw(svg, "path", { class: "curve" });
  byId("far").textContent = String(Number(far.toPrecision(3)));
  return (stop) => {
    curve.setAttribute("d", trace(stop.slice));
    byId("rise").textContent = short(stop.slice.at(-1));
  };
}

/** Six digits: of a probability behind the point, of any other output in all. */
function sixDigits(value) {
  if (value === null) return "∞";
  return way.kind === "probabilities" ? value.toFixed(6) : value.toPrecision(6);
}

function examplePanel(parent, example, scale, named) {
  const box = element(parent, "div", "", "example");
  element(box, "p", `example ${example + 1}`);
  // made in another drawing, for its namespace
  const svg = draw(byId("spectrum"), "svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none" });
  box.append(svg);
  const room = 100 / outputs.length;
  const width = Math.min(room * 0.7, 12);
  const bars = outputs.map((name) => {
    const bar = draw(svg, "rect", { class: "bar", width });
    return { bar, title: draw(bar, "title"), name };
  });
  draw(svg, "line", { class: "zero", x1: 0, x2: 100, y1: scale(0), y2: scale(0) });
  // the same outputs at every stop, so that a change of order would be seen
  const first = stops[home].predictions[example];
  const chosen = outputs.map((_, i) => i).sort((a, b) => Math.abs(first[b]) - Math.abs(first[a])).slice(0, 2);
  const list = element(box, "dl");
  const numbers = chosen.map((i) => {
    const line = element(list, "div");
    element(line, "dt", outputs[i]).title = outputs[i];
    return { i, number: element(line, "dd") };
  });
  if (named) {
    const foot = element(box, "p", "", "outputs");
    for (const name of outputs) element(foot, "span", name);
  }
  return (values) => {
    bars.forEach(({ bar, title, name }, i) => {
      const [foot, top] = [scale(0), scale(values[i] ?? 0)];
      bar.setAttribute("x", (i + 0.5) * room - width / 2);
      bar.setAttribute("y", Math.min(foot, top));
      bar.setAttribute("height", Math.abs(foot - top));
      title.textContent = `${name}: ${sixDigits(values[i])}`;
    });
    for (const { i, number } of numbers) number.textContent = sixDigits(values[i]);
  };
}

function predictionsPanel(parent) {
  const values = everywhere((stop) => stop.predictions.flat());
  const top = way.kind === "probabilities" ? 1 : Math.max(0, ...values);
  const { scale } = linear([Math.min(0, ...values), top], [40, 0]);
  const count = Math.min(stops[home].predictions.length, EXAMPLES);
  const brief = outputs.length <= 12 && outputs.every((name) => name.length <= 2);
  const updates = Array.from({ length: count }, (_, i) => examplePanel(parent, i, scale, brief && i === count - 1));
  return (stop) => {
    updates.forEach((update, example) => update(stop.predictions[example]));
    byId("change").textContent = tiny(stop.change);
  };
}

function place(index) {
  const named = (stop) => stop.label;
  const before = stops.slice(0, index).findLast(named);
  const after = stops.slice(index).find(named);
  const between = before && after ? `between ${before.label} and ${after.label}` : "on the way";
  return `Stop ${index + 1} of ${stops.length}, ${stops[index].label || between}`;
}

function sentence(index) {
  const [top, first] = [stops[index].eigenvalues[0], stops[home].eigenvalues[0]];
  const change = `Largest change of any prediction: ${tiny(stops[index].change)}.`;
  if (index === home) return `${place(index)}. The weights as they were given. ${change}`;
  if (top <= 0 || first <= 0) return `${place(index)}. ${change}`;
  return `${place(index)}. The minimum is ${short(top / first)} times as sharp as here. ${change}`;
}

function main() {
  const panels = [
    spectrumPanel(byId("spectrum")),
    slicePanel(byId("slice")),
    predictionsPanel(byId("predictions")),
  ];
  const go = rail(stops.length, place, (index) => {
    for (const update of panels) update(stops[index]);
    byId("readout").textContent = sentence(index);
  });
  go(home);
}

main();
