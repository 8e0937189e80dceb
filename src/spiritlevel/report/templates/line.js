// Losses along lines, with accuracies in dashes on an axis of their own.

const line = JSON.parse(byId("line").textContent);
const TALL = 380;

/** Where a curve stands highest above the straight line between its ends. */
function highest({ axis, losses }) {
  const [a, b] = [losses[0], losses.at(-1)];
  const above = losses.map((loss, k) => loss - a - ((b - a) * (axis[k] - axis[0])) / (axis.at(-1) - axis[0]));
  return above.reduce((best, height, k) => (height > (above[best] ?? -Infinity) ? k : best), 0);
}

function main() {
  const curves = line.curves.map((curve) => ({ ...curve, blank: curve.losses.map((loss) => loss === null), losses: curve.losses.map(real), accuracies: curve.accuracies?.map(real) }));
  const finite = curves.flatMap(({ losses }) => losses).filter(Number.isFinite);
  const places = [...new Set(curves.flatMap(({ axis }) => axis))].sort((a, b) => a - b);
  const accurate = curves.some(({ accuracies }) => accuracies);
  let across = null;
  let guide = null;

  const paint = (svg, width, height) => {
    const box = { left: 52, right: width - (accurate ? 52 : 12), top: 28, bottom: height - 48 };
    const span = [box.bottom, box.top];
    const up = line.log ? logarithmic(finite, span) : linear([Math.min(...finite), Math.max(...finite)], span);
    const right = linear([0, 1], span);
    across = linear([places[0], places.at(-1)], [box.left, box.right]);
    levels(svg, up.ticks, [box.left, box.right]);
    foot(svg, across.ticks, line.name, box);
    draw(svg, "text", { x: box.left - 44, y: box.top - 14 }, line.log ? "loss, log axis" : "loss");
    if (accurate) {
      draw(svg, "text", { x: width, y: box.top - 14, "text-anchor": "end" }, "accuracy");
      for (const { at, label } of right.ticks) draw(svg, "text", { x: box.right + 8, y: at + 4 }, `${Math.round(100 * Number(label))}%`);
    }
    curves.forEach((curve, number) => drawCurve(svg, curve, number % 7, (x) => across.scale(x), up.scale, right.scale));
    guide = draw(svg, "line", { class: "guide", y1: box.top, y2: box.bottom, visibility: "hidden" });
  };

  const chart = byId("chart");
  board(chart, TALL, paint);
  const nearest = (x) => places.reduce((best, place, k) => (Math.abs(across.scale(place) - x) < Math.abs(across.scale(places[best]) - x) ? k : best), 0);
  follow(chart, places.length, nearest, (k) => {
    guide.setAttribute("visibility", k === null ? "hidden" : "visible");
    if (k === null) { byId("told").textContent = ""; return; }
    for (const end of ["x1", "x2"]) guide.setAttribute(end, across.scale(places[k]));
    const values = curves.map((curve) => {
      const at = curve.axis.indexOf(places[k]);
      if (at < 0) return null;
      const [loss, accuracy] = [curve.losses[at], curve.accuracies?.[at]];
      const known = Number.isFinite(loss) ? short(loss) : curve.blank[at] ? "not evaluated" : "not finite";
      return `${curve.name} ${known}${Number.isFinite(accuracy) ? ` (${(100 * accuracy).toFixed(1)}%)` : ""}`;
    });
    byId("told").textContent = `At ${String(Number(places[k].toPrecision(4))).replace("-", "−")}: ${values.filter(Boolean).join("; ")}`;
  });
}

function drawCurve(svg, curve, colour, x, y, right) {
  const group = draw(svg, "g", { class: `s${colour}` });
  if (curve.accuracies) draw(group, "path", { class: "accuracy", d: trace(curve.axis.map((at, k) => [x(at), right(curve.accuracies[k])])) });
  draw(group, "path", { class: "curve", d: trace(curve.axis.map((at, k) => [x(at), Number.isFinite(curve.losses[k]) ? y(curve.losses[k]) : NaN])) });
  const marked = curve.barrier === null ? [curve.axis.indexOf(0)] : [0, curve.axis.length - 1];
  for (const k of marked) {
    if (k >= 0 && Number.isFinite(curve.losses[k])) draw(group, "circle", { class: "end", cx: x(curve.axis[k]), cy: y(curve.losses[k]), r: 4 });
  }
  if (!(curve.barrier > 0)) return;
  const top = highest(curve);
  const [at, loss] = [x(curve.axis[top]), curve.losses[top]];
  draw(group, "line", { class: "barrier", x1: at, x2: at, y1: y(loss), y2: y(loss - curve.barrier) });
  draw(group, "text", { class: "of", x: at, y: y(loss) - 6, "text-anchor": "middle" }, `barrier ${Number(curve.barrier.toPrecision(3))}`);
}

main();
