// Curves on axes as wide as the page: drawn anew when it changes its width.

const byId = (id) => document.getElementById(id);
const real = (value) => (value === null ? NaN : Number(value)); // infinities are written as words

/** A drawing of its own width; `paint` gets it empty. */
function board(svg, height, paint) {
  const again = () => {
    const width = Math.max(svg.clientWidth, 240);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    svg.replaceChildren();
    paint(svg, width, height);
  };
  new ResizeObserver(again).observe(svg.parentElement);
  again();
}

/** A line through the points that are finite, with gaps where they are not. */
function trace(points) {
  let open = false;
  return points.map(([x, y]) => {
    const known = Number.isFinite(x) && Number.isFinite(y);
    const part = known ? `${open ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}` : "";
    open = known;
    return part;
  }).join("");
}

/** Ticks under a drawing, and what the axis is. */
function foot(svg, ticks, name, box) {
  draw(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
  for (const { at, label } of ticks) {
    draw(svg, "line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 });
    draw(svg, "text", { x: at, y: box.bottom + 18, "text-anchor": "middle" }, label);
  }
  if (name) draw(svg, "text", { x: (box.left + box.right) / 2, y: box.bottom + 37, "text-anchor": "middle" }, name);
}

/** Tells what is under the pointer, or at the place that the arrow keys went to. */
function follow(svg, count, nearest, tell) {
  let at = null;
  const go = (index) => { at = index; tell(at); };
  svg.addEventListener("pointermove", (event) => go(nearest(event.clientX - svg.getBoundingClientRect().left)));
  svg.addEventListener("pointerleave", () => go(null));
  svg.addEventListener("blur", () => go(null));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    go(Math.max(0, Math.min(count - 1, (at ?? Math.floor(count / 2)) + step)));
  });
}
