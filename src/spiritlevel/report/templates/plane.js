// One plane, seen as a surface and as a map, at one or several points of an orbit.

const plane = JSON.parse(document.getElementById("plane").textContent);
const byId = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const TURN = Math.PI / 36;
const GLIDE = 320; // milliseconds from one sheet to the next

/** Numbers that hang on the plane alone. */
function prepare() {
  const share = (axis) => axis.map((at) => (at - axis[0]) / (axis.at(-1) - axis[0]));
  const [x, y] = [plane.x, plane.y];
  const ratio = (y.at(-1) - y[0]) / (x.at(-1) - x[0]);
  plane.shape = ratio >= 0.4 && ratio <= 2.5 ? ratio : 1; // an oblong plane is not drawn to scale
  [plane.us, plane.vs] = [share(x), share(y)];
  [plane.fineX, plane.fineY] = [finer(x), finer(y)];
  const at = (axis) => (0 - axis[0]) / (axis.at(-1) - axis[0]);
  const middle = [at(x), at(y)];
  plane.middle = middle.every((t) => t >= 0 && t <= 1) ? middle : null;
  for (const sheet of plane.sheets) Object.assign(sheet, numbers(sheet.values));
  for (const sheet of plane.sheets) sheet.accuracies &&= numbers(sheet.accuracies).values;
  for (const step of plane.path) {
    step.u = (step.x - x[0]) / (x.at(-1) - x[0]);
    step.v = (step.y - y[0]) / (y.at(-1) - y[0]);
  }
}

const inside = ({ u, v }) => u >= 0 && u <= 1 && v >= 0 && v <= 1;

/** The height of a relief between its places; null over a hole. */
function heightOf({ at, cells, across, up, columns, rows }) {
  const find = (places, t) => {
    let k = Math.min(Math.floor(t * (places.length - 1)), places.length - 2); // right if they are even
    while (k > 0 && places[k] > t) k--;
    while (k < places.length - 2 && places[k + 1] < t) k++;
    return k;
  };
  return (u, v) => {
    const [i, j] = [find(columns, u), find(rows, v)];
    if (cells[j * (across - 1) + i] !== WHOLE) return null;
    const [p, q] = [(u - columns[i]) / (columns[i + 1] - columns[i]), (v - rows[j]) / (rows[j + 1] - rows[j])];
    const k = j * across + i;
    return (at[k] * (1 - p) + at[k + 1] * p) * (1 - q) + (at[k + across] * (1 - p) + at[k + across + 1] * p) * q;
  };
}

/** Many short pieces, so that the path clings to the surface. */
function clinging(path, heightAt) {
  const points = [];
  path.forEach((step, k) => {
    const before = k ? path[k - 1] : step;
    const pieces = k ? Math.max(1, Math.ceil(60 * Math.hypot(step.u - before.u, step.v - before.v))) : 1;
    for (let s = 1; s <= pieces; s++) {
      const [u, v] = [before.u + ((step.u - before.u) * s) / pieces, before.v + ((step.v - before.v) * s) / pieces];
      const height = inside({ u, v }) ? heightAt(u, v) : null;
      if (height !== null) points.push({ u, v, height });
    }
  });
  return points;
}

const state = { sheet: 0, from: 0, share: 1, scale: plane.first, cut: 1, eye: { ...START }, mark: null };
let view = null;
let queued = false;
let mapped = null; // what the map shows: turning the surface does not change it

/** Everything that is drawn, computed anew when the sheet or the scale changes. */
function compute() {
  const known = heights(plane.scales[state.scale], state.cut);
  const [from, to] = [plane.sheets[state.from], plane.sheets[state.sheet]];
  const coarse = Float32Array.from(to.values, (value, k) => {
    if (to.states[k] !== WHOLE) return NaN;
    const height = known.of(value);
    return state.share < 1 && from.states[k] === WHOLE ? known.of(from.values[k]) * (1 - state.share) + height * state.share : height;
  });
  const shape = relief(plane.fineX, plane.fineY, coarse, to.states, plane.x.length);
  const heightAt = heightOf(shape);
  const first = state.sheet === 0 && plane.path.length > 1; // it lies in the plane of the first sheet
  view = {
    ...known, coarse, shape, heightAt,
    contours: contours(shape, known.levels),
    picture: picture(shape),
    path: first ? plane.path : null,
    trail: first ? clinging(plane.path, heightAt) : null,
    colours: inks(),
  };
  if (view.trail && view.trail.length < 2) view.trail = null;
}

function main() {
  prepare();
  const canvases = { surface: byId("surface"), map: byId("map") };
  const views = { surface: surfaceView(canvases.surface, plane), map: mapView(canvases.map, plane) };

  const paint = () => {
    queued = false;
    if (!view) compute();
    Object.assign(view, { eye: state.eye, mark: state.mark });
    views.surface.draw(view);
    const shown = [view, state.mark, canvases.map.clientWidth, window.devicePixelRatio];
    if (!mapped || shown.some((part, k) => part !== mapped[k])) views.map.draw(view);
    mapped = shown;
    canvases.surface.dataset.turn = state.eye.turn.toFixed(4);
    canvases.surface.dataset.zoom = state.eye.zoom.toFixed(4);
    byId("reset").hidden = ["turn", "tilt", "zoom"].every((name) => state.eye[name] === START[name]);
  };
  const redraw = (anew = false) => {
    if (anew) view = null;
    if (!queued) requestAnimationFrame(paint);
    queued = true;
  };

  wireScale(redraw);
  wireEye(canvases.surface, redraw);
  wirePointers(canvases, views, redraw);
  wireSheets(redraw);
  new ResizeObserver(() => redraw()).observe(canvases.surface);
  new ResizeObserver(() => redraw()).observe(canvases.map);
  new MutationObserver(() => redraw(true)).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(true));
}

/** The slider from sheet to sheet: the surface glides there, unless the reader wants it still. */
function wireSheets(redraw) {
  const show = (index) => {
    const sheet = plane.sheets[index];
    const finite = sheet.values.filter((_, k) => sheet.states[k] === WHOLE);
    byId("readout").textContent = sheet.words;
    byId("largest").textContent = finite.length ? short(finite.reduce((a, b) => Math.max(a, b))) : "none is finite";
    const change = byId("change");
    if (change) change.textContent = sheet.change || "0";
    [state.from, state.sheet, state.share] = [state.sheet, index, 1];
    if (!still.matches && state.from !== index) glide(redraw);
    redraw(true);
    tellPlace(state.mark);
  };
  if (plane.sheets.length === 1) return show(0);
  rail(plane.sheets.length, (index) => `Point ${index + 1} of ${plane.sheets.length}, ${plane.sheets[index].name}`, show)(0);
}

function glide(redraw) {
  const begin = performance.now();
  const target = state.sheet;
  state.share = 0;
  const step = () => {
    if (state.sheet !== target) return; // another one took over
    const t = Math.min(1, (performance.now() - begin) / GLIDE);
    state.share = t * t * (3 - 2 * t);
    redraw(true);
    if (t < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function wireScale(redraw) {
  const radios = [...document.querySelectorAll("#heights input")];
  const cut = byId("cut");
  byId("heights").hidden = !plane.scales.log;
  const tell = () => {
    state.cut = Number(cut.value) / 100;
    const known = heights(plane.scales[state.scale], state.cut);
    byId("cut-at").textContent = short(known.top);
    byId("bar-name").textContent = `${plane.word}${known.log ? ", log scale" : ""}${known.cut ? "; what is above is cut off" : ""}`;
    const stops = Array.from({ length: 33 }, (_, k) => `rgb(${tint(k / 32).join(" ")})`);
    byId("bar").style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    const ticks = byId("bar-ticks");
    ticks.textContent = "";
    let edge = -1;
    for (const { at, label } of known.levels) {
      const half = 0.006 * label.length + 0.012;
      if (at - half < edge || at + half > 1.02) continue;
      edge = at + half;
      element(ticks, "span", label.replace("-", "−")).style.left = `${at * 100}%`;
    }
    redraw(true);
  };
  for (const radio of radios) {
    radio.checked = radio.value === state.scale;
    radio.addEventListener("change", () => { state.scale = radio.value; tell(); });
  }
  cut.addEventListener("input", tell);
  tell();
}

/** Turning, tilting and zooming, by hand and by keys. */
function wireEye(canvas, redraw) {
  const { eye } = state;
  const move = (turn, tilt, zoom = 1) => {
    eye.turn += turn;
    eye.tilt = within(eye.tilt + tilt, TILTS);
    eye.zoom = within(eye.zoom * zoom, ZOOMS);
    redraw();
  };
  const reset = () => { Object.assign(eye, START); redraw(); };
  const keys = {
    ArrowLeft: () => move(TURN, 0), ArrowRight: () => move(-TURN, 0),
    ArrowUp: () => move(0, TURN), ArrowDown: () => move(0, -TURN),
    "+": () => move(0, 0, 1.15), "=": () => move(0, 0, 1.15), "-": () => move(0, 0, 1 / 1.15),
    Home: reset, 0: reset,
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("wheel", (event) => {
    // a page that is scrolled past should not zoom: only where the reader clicked or pinches
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    move(0, 0, Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)));
  }, { passive: false });
  canvas.addEventListener("dblclick", reset);
  byId("reset").addEventListener("click", () => { reset(); canvas.focus(); });
  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    const spread = (from) => Math.hypot(from[0] - other[0], from[1] - other[1]) || 1;
    if (other) move(0, (now[1] - before[1]) * 0.004, spread(now) / spread(before));
    else move((before[0] - now[0]) * 0.008, (now[1] - before[1]) * 0.006);
    fingers.set(event.pointerId, now);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, ({ pointerId }) => fingers.delete(pointerId));
}

/** What was measured at a place. */
function placeWords({ i, j }) {
  const sheet = plane.sheets[state.sheet];
  const k = j * plane.x.length + i;
  const value = { [WHOLE]: () => short(sheet.values[k]), [BROKEN]: () => "not finite", [BLANK]: () => "not evaluated" }[sheet.states[k]]();
  const digits = (v) => String(Number(v.toPrecision(4))).replace("-", "−");
  const lines = [`x ${digits(plane.x[i])}, y ${digits(plane.y[j])}`, `${plane.word} ${value}`];
  if (sheet.accuracies && Number.isFinite(sheet.accuracies[k])) lines.push(`accuracy ${(100 * sheet.accuracies[k]).toFixed(1)}%`);
  return lines;
}

/** For those who listen: not at every move of a mouse. */
function tellPlace(mark) {
  byId("place").textContent = mark ? placeWords(mark).join("; ") : "";
}

/** The place under the pointer, or the one that the arrow keys went to, in both views. */
function wirePointers(canvases, views, redraw) {
  const hide = () => document.querySelectorAll(".tip").forEach((tip) => { tip.hidden = true; });
  const choose = (mark, canvas, view) => {
    state.mark = mark;
    hide();
    redraw();
    if (!mark) return;
    const tip = canvas.parentElement.querySelector(".tip");
    tip.textContent = placeWords(mark).join("\n");
    tip.hidden = false;
    const [x, y] = view.spot(mark);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const left = x + 14 + tip.offsetWidth > width ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.transform = `translate(${within(left, [0, width - tip.offsetWidth])}px, ${within(y - tip.offsetHeight - 10, [0, height])}px)`;
  };
  for (const name of ["surface", "map"]) {
    const [canvas, view] = [canvases[name], views[name]];
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return view.under(event.clientX - box.left, event.clientY - box.top);
    };
    canvas.addEventListener("pointermove", (event) => { if (!event.buttons) choose(at(event), canvas, view); else hide(); });
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") choose(null, canvas, view); });
    canvas.addEventListener("click", (event) => { choose(at(event), canvas, view); tellPlace(state.mark); });
    canvas.addEventListener("blur", () => choose(null, canvas, view));
  }
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] };
  canvases.map.addEventListener("keydown", (event) => {
    const step = arrows[event.key];
    if (!step) return;
    event.preventDefault();
    const here = state.mark ?? { i: plane.x.length >> 1, j: plane.y.length >> 1 };
    const [i, j] = [here.i + step[0], here.j + step[1]];
    const there = { i: within(i, [0, plane.x.length - 1]), j: within(j, [0, plane.y.length - 1]) };
    choose(there, canvases.map, views.map);
    tellPlace(there);
  });
}

main();
