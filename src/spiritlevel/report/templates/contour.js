// Values over a plane as heights between 0 and 1, their colours and contour lines, and a map.

const RAMP = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];
const SHADES = 24;
const CELLS = 48; // of the finer grid that is drawn, along each axis
const GRAIN = 4; // pixels of the map's picture for each of its cells
const PALE = 0.68; // heights above it have colours on which lines must be dark
const WHOLE = 0, BROKEN = 1, BLANK = 2; // a value, one that is not finite, none

const mixed = (a, b, share) => a.map((from, k) => from + (b[k] - from) * share);
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** Red, green and blue of a height. */
const tint = (() => {
  const stops = RAMP.map(channels);
  const table = Array.from({ length: 256 }, (_, k) => {
    const at = (k / 255) * (stops.length - 1);
    const below = Math.min(Math.floor(at), stops.length - 2);
    return mixed(stops[below], stops[below + 1], at - below).map(Math.round);
  });
  return (height) => table[Math.max(0, Math.min(255, Math.round(height * 255)))];
})();

/** The same as texts for a canvas, from dark to light. */
const shaded = Array.from({ length: SHADES }, (_, shade) => {
  const light = 0.62 + (0.5 * shade) / (SHADES - 1);
  return Array.from({ length: 256 }, (_, k) => {
    const rgb = tint(k / 255);
    const lit = light <= 1 ? rgb.map((c) => c * light) : mixed(rgb, [255, 255, 255], light - 1);
    return `rgb(${lit.map(Math.round).join(" ")})`;
  });
});

/** The colours of the page as they are now, light or dark. */
function inks() {
  const probe = element(document.body, "i");
  const names = ["paper", "raised", "ink", "soft", "rule", "faint", "ghost", "moves"];
  const found = Object.fromEntries(names.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  }));
  found.font = getComputedStyle(probe).fontFamily;
  probe.remove();
  return found;
}

/** A scale with its top cut off: heights of values, values of heights, and its levels. */
function heights(scale, share = 1) {
  const [to, from] = scale.log ? [Math.log10, (at) => 10 ** at] : [(v) => v, (v) => v];
  const low = to(scale.low);
  const top = low + (to(scale.high) - low) * share;
  const of = (value) => (top > low ? Math.max(0, Math.min(1, (to(value) - low) / (top - low))) : 0);
  const levels = scale.levels
    .map((value, k) => ({ value, label: scale.labels[k] }))
    .filter(({ value }) => to(value) >= low - 1e-9 && to(value) <= top + 1e-9)
    .map((level) => ({ ...level, at: of(level.value) }));
  return { of, levels, top: from(top), cut: scale.cut || share < 1, log: scale.log };
}

/** A sheet's values as numbers, with what each of them is. */
function numbers(rows) {
  const flat = rows.flat();
  return {
    values: Float64Array.from(flat, (v) => (v === null ? NaN : Number(v))),
    states: Uint8Array.from(flat, (v) => (v === null ? BLANK : Number.isFinite(Number(v)) ? WHOLE : BROKEN)),
  };
}

/** Places of a finer grid between those of an axis, from 0 to 1; `times` for each of its steps. */
function finer(axis) {
  const [low, high] = [axis[0], axis.at(-1)];
  const times = Math.max(1, Math.round(CELLS / Math.max(axis.length - 1, 1)));
  const places = [];
  for (let k = 0; k + 1 < axis.length; k++) {
    for (let s = 0; s < times; s++) places.push((axis[k] + ((axis[k + 1] - axis[k]) * s) / times - low) / (high - low));
  }
  places.push(1);
  return { places: Float64Array.from(places), times };
}

/** Heights on the finer grid, straight between the places that were measured; and which cells are whole. */
function relief(columns, rows, known, states, width) {
  const coarse = known.map((height) => height || 0); // at a weight of 0 nan would still be nan
  const [across, up] = [columns.places.length, rows.places.length];
  const at = new Float32Array(across * up);
  const cells = new Uint8Array((across - 1) * (up - 1));
  for (let j = 0; j < up; j++) {
    const J = Math.min(Math.floor(j / rows.times), up > 1 ? (up - 1) / rows.times - 1 : 0);
    const q = j / rows.times - J;
    for (let i = 0; i < across; i++) {
      const I = Math.min(Math.floor(i / columns.times), across > 1 ? (across - 1) / columns.times - 1 : 0);
      const p = i / columns.times - I;
      const k = J * width + I;
      at[j * across + i] = (coarse[k] * (1 - p) + coarse[k + 1] * p) * (1 - q) + (coarse[k + width] * (1 - p) + coarse[k + width + 1] * p) * q;
      if (i + 1 < across && j + 1 < up) {
        cells[j * (across - 1) + i] = Math.max(states[k], states[k + 1], states[k + width], states[k + width + 1]);
      }
    }
  }
  return { at, cells, across, up, columns: columns.places, rows: rows.places };
}

/** Where the sides of one cell have a level: up to four places, by the order of the sides. */
function crossings(a, b, c, d, level, found) {
  let count = 0;
  if (a < level !== b < level) { found[2 * count] = (level - a) / (b - a); found[2 * count++ + 1] = 0; }
  if (b < level !== c < level) { found[2 * count] = 1; found[2 * count++ + 1] = (level - b) / (c - b); }
  if (d < level !== c < level) { found[2 * count] = (level - d) / (c - d); found[2 * count++ + 1] = 1; }
  if (a < level !== d < level) { found[2 * count] = 0; found[2 * count++ + 1] = (level - a) / (d - a); }
  return count;
}

/** Pieces of the contour lines: the number of the level, and both ends. */
function contours({ at, cells, across, up, columns, rows }, levels) {
  const pieces = [];
  const found = new Float64Array(8);
  for (let j = 0, cell = 0; j + 1 < up; j++) {
    for (let i = 0; i + 1 < across; i++, cell++) {
      if (cells[cell] !== WHOLE) continue;
      const k = j * across + i;
      const [a, b, c, d] = [at[k], at[k + 1], at[k + across + 1], at[k + across]];
      const [low, high] = [Math.min(a, b, c, d), Math.max(a, b, c, d)];
      for (let l = 0; l < levels.length; l++) {
        const level = levels[l].at;
        if (level <= low || level > high || level >= 1) continue; // what was cut off is flat
        const count = crossings(a, b, c, d, level, found);
        for (let s = 0; s + 1 < count; s += 2) {
          const [x, y] = [columns[i], rows[j]];
          const [w, h] = [columns[i + 1] - x, rows[j + 1] - y];
          pieces.push([l, x + found[2 * s] * w, y + found[2 * s + 1] * h, x + found[2 * s + 2] * w, y + found[2 * s + 3] * h]);
        }
      }
    }
  }
  return { pieces };
}

/** A canvas as large as its place on the page, in the pixels of the screen. */
function fitted(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.lineJoin = "round";
  return { pen, width, height };
}

/** The colours of a relief as a picture of its own. */
function picture(shape) {
  const { at, cells, across, up } = shape;
  const sheet = document.createElement("canvas");
  [sheet.width, sheet.height] = [(across - 1) * GRAIN, (up - 1) * GRAIN];
  const pen = sheet.getContext("2d");
  const image = pen.createImageData(sheet.width, sheet.height);
  for (let y = 0, k = 0; y < sheet.height; y++) {
    const j = up - 2 - Math.floor(y / GRAIN);
    const q = 1 - ((y % GRAIN) + 0.5) / GRAIN;
    for (let x = 0; x < sheet.width; x++, k += 4) {
      const i = Math.floor(x / GRAIN);
      if (cells[j * (across - 1) + i] !== WHOLE) continue;
      const p = ((x % GRAIN) + 0.5) / GRAIN;
      const n = j * across + i;
      const height = (at[n] * (1 - p) + at[n + 1] * p) * (1 - q) + (at[n + across] * (1 - p) + at[n + across + 1] * p) * q;
      const rgb = tint(height);
      image.data[k] = rgb[0]; image.data[k + 1] = rgb[1]; image.data[k + 2] = rgb[2]; image.data[k + 3] = 255;
    }
  }
  pen.putImageData(image, 0, 0);
  return sheet;
}

/** Slanted lines over the cells that have no finite value. */
function hatch(pen, shape, place) {
  const { cells, across, columns, rows } = shape;
  pen.beginPath();
  cells.forEach((state, cell) => {
    if (state !== BROKEN) return;
    const [i, j] = [cell % (across - 1), Math.floor(cell / (across - 1))];
    pen.moveTo(...place(columns[i], rows[j]));
    pen.lineTo(...place(columns[i + 1], rows[j + 1]));
  });
  pen.stroke();
}

/** A path; a faint one shines through. */
function trail(pen, points, colours, faint = false) {
  pen.beginPath();
  points.forEach((point, k) => (k ? pen.lineTo(...point) : pen.moveTo(...point)));
  if (!faint) {
    pen.strokeStyle = colours.paper;
    pen.lineWidth = 4;
    pen.stroke();
  }
  pen.strokeStyle = colours.moves;
  pen.lineWidth = faint ? 1.25 : 2;
  pen.stroke();
}

/** The first or the last step of a path. */
function bead(pen, point, colours, last) {
  pen.beginPath();
  pen.arc(...point, 4.5, 0, 2 * Math.PI);
  pen.fillStyle = last ? colours.moves : colours.paper;
  pen.fill();
  pen.strokeStyle = colours.moves;
  pen.lineWidth = 2;
  pen.stroke();
}

/** The map: draws a view of the plane, and says which place is under a pointer. */
function mapView(canvas, plane) {
  const [x, y] = [plane.x, plane.y];
  const edge = { left: 56, right: 16, top: 10, bottom: 44 };
  let box = null;
  const place = (u, v) => [box.left + u * box.width, box.top + (1 - v) * box.height];

  function axes(pen, colours) {
    pen.fillStyle = colours.soft;
    pen.strokeStyle = colours.ghost;
    pen.lineWidth = 1;
    pen.font = `11.5px ${colours.font}`;
    pen.textAlign = "center";
    const [across, up] = [linear([x[0], x.at(-1)], [box.left, box.left + box.width]), linear([y[0], y.at(-1)], [box.top + box.height, box.top])];
    for (const { at, label } of across.ticks) pen.fillText(label, at, box.top + box.height + 17);
    pen.fillText(plane.names[0], box.left + box.width / 2, box.top + box.height + 36, box.width);
    pen.textAlign = "right";
    for (const { at, label } of up.ticks) pen.fillText(label, box.left - 8, at + 4);
    pen.save();
    pen.translate(10, box.top + box.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(plane.names[1], 0, 0, box.height);
    pen.restore();
  }

  function lines(pen, view) {
    const { pieces } = view.contours;
    view.levels.forEach((level, l) => {
      pen.beginPath();
      for (const piece of pieces) {
        if (piece[0] !== l) continue;
        pen.moveTo(...place(piece[1], piece[2]));
        pen.lineTo(...place(piece[3], piece[4]));
      }
      pen.strokeStyle = level.at > PALE ? "rgb(0 0 0 / 0.5)" : "rgb(255 255 255 / 0.6)";
      pen.lineWidth = 0.9;
      pen.stroke();
    });
    labels(pen, view);
  }

  /** Each line's value where it crosses a ray from the middle, if there is room for it. */
  function labels(pen, view) {
    const taken = [];
    const middle = plane.middle && place(...plane.middle);
    pen.textAlign = "center";
    pen.font = `600 10.5px ${view.colours.font}`;
    view.levels.forEach((level, l) => {
      const [cx, cy] = place(0.5, 0.5);
      let best = null;
      for (const piece of view.contours.pieces) {
        if (piece[0] !== l) continue;
        const [px, py] = place((piece[1] + piece[3]) / 2, (piece[2] + piece[4]) / 2);
        const off = Math.abs(Math.atan2(cy - py, px - cx) - 0.95);
        if (!best || off < best.off) best = { off, px, py };
      }
      if (!best || best.off > 0.5 || taken.some(({ px, py }) => Math.hypot(px - best.px, 2 * (py - best.py)) < 34)) return;
      if (best.px < box.left + 14 || best.px > box.left + box.width - 14 || best.py < box.top + 10) return;
      if (plane.middle && Math.hypot(best.px - middle[0], best.py - middle[1]) < 20) return;
      taken.push(best);
      const pale = level.at > PALE;
      pen.lineWidth = 3;
      pen.strokeStyle = `rgb(${tint(level.at).join(" ")})`;
      pen.strokeText(level.label, best.px, best.py + 3.5);
      pen.fillStyle = pale ? "#000" : "#fff";
      pen.fillText(level.label, best.px, best.py + 3.5);
    });
  }

  function cross(pen, u, v, colours, arm) {
    const [px, py] = place(u, v);
    for (const [colour, width] of [["#000", 3.5], ["#fff", 1.75]]) {
      pen.beginPath();
      pen.moveTo(px - arm, py); pen.lineTo(px + arm, py);
      pen.moveTo(px, py - arm); pen.lineTo(px, py + arm);
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.stroke();
    }
  }

  function draw(view) {
    canvas.style.aspectRatio = String(1 / (plane.shape * 0.86 + 0.13));
    const { pen, width, height } = fitted(canvas);
    box = { left: edge.left, top: edge.top, width: width - edge.left - edge.right, height: height - edge.top - edge.bottom };
    pen.imageSmoothingEnabled = true;
    pen.drawImage(view.picture, box.left, box.top, box.width, box.height);
    pen.strokeStyle = view.colours.ghost;
    pen.lineWidth = 1;
    hatch(pen, view.shape, place);
    lines(pen, view);
    if (plane.middle) cross(pen, ...plane.middle, view.colours, 5);
    if (view.path) {
      pen.save();
      pen.beginPath();
      pen.rect(box.left, box.top, box.width, box.height);
      pen.clip();
      const points = view.path.map(({ u, v }) => place(u, v));
      trail(pen, points, view.colours);
      [points[0], points.at(-1)].forEach((point, k) => bead(pen, point, view.colours, k === 1));
      pen.restore();
    }
    axes(pen, view.colours);
    if (view.mark) {
      const [px, py] = place(plane.us[view.mark.i], plane.vs[view.mark.j]);
      pen.beginPath();
      pen.arc(px, py, 5, 0, 2 * Math.PI);
      pen.strokeStyle = "#000";
      pen.lineWidth = 4;
      pen.stroke();
      pen.strokeStyle = "#fff";
      pen.lineWidth = 2;
      pen.stroke();
    }
  }

  /** The nearest place that was measured, if the pointer is on the map. */
  function under(px, py) {
    const [u, v] = [(px - box.left) / box.width, 1 - (py - box.top) / box.height];
    if (u < -0.03 || u > 1.03 || v < -0.03 || v > 1.03) return null;
    const nearest = (places, at) => places.reduce((best, p, k) => (Math.abs(p - at) < Math.abs(places[best] - at) ? k : best), 0);
    return { i: nearest(plane.us, u), j: nearest(plane.vs, v) };
  }
  return { draw, under, spot: ({ i, j }) => place(plane.us[i], plane.vs[j]) };
}
