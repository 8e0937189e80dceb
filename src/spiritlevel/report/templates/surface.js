// A surface in space, drawn from the back to the front on a plain canvas.

const HEIGHT = 0.95; // of the surface, where the plane is 2 wide
const FLOOR = -0.5; // where contour lines lie, below it
const START = { turn: -0.62, tilt: 0.5, zoom: 1 };
const TILTS = [0.08, 1.45];
const ZOOMS = [0.6, 5];
const within = (value, [low, high]) => Math.max(low, Math.min(high, value));

/** Where points of the box lie on the screen, looked at from an angle. */
function lens(eye, shape, width, height) {
  const [s, c] = [Math.sin(eye.turn), Math.cos(eye.turn)];
  const [up, away] = [Math.cos(eye.tilt), Math.sin(eye.tilt)];
  const round = Math.hypot(1, shape);
  const size = eye.zoom * Math.min((width - 90) / (2 * round), (height - 56) / (2 * (0.5 * round + 0.6)));
  const [cx, cy] = [width / 2 + 8, height / 2 - 16];
  const middle = (HEIGHT + FLOOR) / 2;
  const far = (u, v) => (2 * u - 1) * s + (2 * v - 1) * shape * c;
  const x = (u, v) => cx + size * ((2 * u - 1) * c - (2 * v - 1) * shape * s);
  const y = (u, v, z) => cy - size * ((z - middle) * up + far(u, v) * away);
  return { x, y, far, s, c, up, away, size, point: (u, v, z) => [x(u, v), y(u, v, z)] };
}

function surfaceView(canvas, plane) {
  let lastLens = null;
  let lastView = null;

  /** How light each cell is, lit from above the reader's left shoulder. */
  function lightOf(eye) {
    const [right, toward, above] = [-0.45, -0.55, 0.75];
    return [right * eye.c + toward * eye.s, -right * eye.s + toward * eye.c, above];
  }

  function floor(pen, eye, view) {
    const { colours } = view;
    const at = (u, v) => eye.point(u, v, FLOOR);
    pen.beginPath();
    [[0, 0], [1, 0], [1, 1], [0, 1]].forEach(([u, v], k) => (k ? pen.lineTo(...at(u, v)) : pen.moveTo(...at(u, v))));
    pen.closePath();
    pen.fillStyle = colours.raised;
    pen.fill();
    pen.strokeStyle = colours.rule;
    pen.lineWidth = 1;
    pen.stroke();
    view.contours.pieces.length && view.levels.forEach((level, l) => {
      pen.beginPath();
      for (const [of, u, v, p, q] of view.contours.pieces) {
        if (of !== l) continue;
        pen.moveTo(...at(u, v));
        pen.lineTo(...at(p, q));
      }
      pen.strokeStyle = `rgb(${tint(level.at).join(" ")})`;
      pen.lineWidth = 1.25;
      pen.stroke();
    });
    pen.strokeStyle = colours.ghost;
    pen.lineWidth = 1;
    hatch(pen, view.shape, at);
    if (view.path) trail(pen, view.path.filter(inside).map(({ u, v }) => at(u, v)), colours, true);
  }

  function walls(pen, eye, view) {
    const [U, V] = [eye.s > 0 ? 1 : 0, eye.c > 0 ? 1 : 0]; // the sides that are farther away
    const corners = [[U, 1 - V], [U, V], [1 - U, V]];
    pen.strokeStyle = view.colours.faint;
    pen.lineWidth = 1;
    const left = eye.x(...corners[0]) < eye.x(...corners[2]) ? corners[0] : corners[2];
    const every = Math.ceil(view.levels.length / 6);
    pen.font = `11.5px ${view.colours.font}`;
    pen.textAlign = "right";
    view.levels.forEach(({ at, label }, k) => {
      if (k % every) return;
      pen.beginPath();
      corners.forEach(([u, v], n) => (n ? pen.lineTo(...eye.point(u, v, at * HEIGHT)) : pen.moveTo(...eye.point(u, v, at * HEIGHT))));
      pen.stroke();
      const [x, y] = eye.point(...left, at * HEIGHT);
      pen.fillStyle = view.colours.soft;
      pen.fillText(label, x - 7, y + 4);
    });
    pen.strokeStyle = view.colours.rule;
    for (const [u, v] of corners) {
      pen.beginPath();
      pen.moveTo(...eye.point(u, v, FLOOR));
      pen.lineTo(...eye.point(u, v, HEIGHT));
      pen.stroke();
    }
  }

  /** Ticks and names along the two edges of the floor that are nearer. */
  function feet(pen, eye, view) {
    const [U, V] = [eye.s > 0 ? 0 : 1, eye.c > 0 ? 0 : 1];
    const middle = eye.point(0.5, 0.5, FLOOR);
    const along = [
      { axis: plane.x, name: plane.names[0], near: U, at: (t) => [t, V] },
      { axis: plane.y, name: plane.names[1], near: V, at: (t) => [U, t] },
    ];
    pen.fillStyle = view.colours.soft;
    pen.textAlign = "center";
    for (const { axis, name, near, at } of along) {
      const [hx, hy] = eye.point(...at(0.5), FLOOR);
      const [fx, fy] = [eye.point(...at(0), FLOOR), eye.point(...at(1), FLOOR)];
      let normal = [-(fy[1] - fx[1]), fy[0] - fx[0]];
      const length = Math.hypot(...normal) || 1;
      const outward = normal[0] * (hx - middle[0]) + normal[1] * (hy - middle[1]) < 0 ? -1 : 1;
      normal = normal.map((n) => (n / length) * outward);
      pen.font = `11.5px ${view.colours.font}`;
      for (const { at: t, label } of linear([axis[0], axis.at(-1)], [0, 1]).ticks) {
        if (Math.abs(t - near) < 0.06) continue; // the corner belongs to both axes
        const [x, y] = eye.point(...at(t), FLOOR);
        pen.fillText(label, x + 14 * normal[0], y + 14 * normal[1] + 4);
      }
      pen.save();
      pen.translate(hx + 34 * normal[0], hy + 34 * normal[1]);
      let slant = Math.atan2(fy[1] - fx[1], fy[0] - fx[0]);
      if (Math.abs(slant) > Math.PI / 2) slant -= Math.PI * Math.sign(slant);
      pen.rotate(slant);
      pen.fillText(name, 0, 4, Math.max(length * 1.15, 60));
      pen.restore();
    }
  }

  function cells(pen, eye, view) {
    const { at, cells: whole, across, up, columns, rows } = view.shape;
    const [lx, ly, lz] = lightOf(eye);
    const xs = new Float32Array(at.length);
    const ys = new Float32Array(at.length);
    for (let j = 0, k = 0; j < up; j++) {
      for (let i = 0; i < across; i++, k++) {
        xs[k] = eye.x(columns[i], rows[j]);
        ys[k] = eye.y(columns[i], rows[j], at[k] * HEIGHT);
      }
    }
    const [I, J] = [across - 1, up - 1];
    pen.lineWidth = 1 / (window.devicePixelRatio || 1); // a wider one is several times as slow
    for (let b = 0; b < J; b++) {
      const j = eye.c > 0 ? J - 1 - b : b;
      for (let a = 0; a < I; a++) {
        const i = eye.s > 0 ? I - 1 - a : a;
        if (whole[j * I + i] !== WHOLE) continue;
        const k = j * across + i, m = k + across;
        const ha = at[k], hb = at[k + 1], hc = at[m + 1], hd = at[m];
        const nx = -((hb + hc - ha - hd) * HEIGHT) / (4 * (columns[i + 1] - columns[i]));
        const ny = -((hc + hd - ha - hb) * HEIGHT) / (4 * plane.shape * (rows[j + 1] - rows[j]));
        const light = (nx * lx + ny * ly + lz) / Math.sqrt(nx * nx + ny * ny + 1);
        const shade = within(Math.round((0.25 + 0.75 * light) * (SHADES - 1)), [0, SHADES - 1]);
        pen.fillStyle = pen.strokeStyle = shaded[shade][Math.round(((ha + hb + hc + hd) / 4) * 255)];
        quad(pen, xs, ys, k, k + 1, m + 1, m);
      }
    }
  }

  /** With a rim of its own colour, so that no seam shows between it and the next. */
  function quad(pen, xs, ys, a, b, c, d) {
    pen.beginPath();
    pen.moveTo(xs[a], ys[a]);
    pen.lineTo(xs[b], ys[b]);
    pen.lineTo(xs[c], ys[c]);
    pen.lineTo(xs[d], ys[d]);
    pen.closePath();
    pen.fill();
    pen.stroke();
  }

  /** If nothing of the surface stands between a point and the reader. */
  function seen(eye, view, u, v, height) {
    const [du, dv] = [-eye.s / 2, -eye.c / (2 * plane.shape)]; // towards the reader, a unit of the box
    const rise = eye.away / eye.up / HEIGHT;
    for (let far = 0.04; far < 2.5; far += 0.04) {
      const [p, q] = [u + du * far, v + dv * far];
      if (p < 0 || p > 1 || q < 0 || q > 1) return true;
      const there = view.heightAt(p, q);
      if (there !== null && there > height + rise * far + 0.012) return false;
    }
    return true;
  }

  /** Contour lines on the surface, those that no part of it hides. */
  function rings(pen, eye, view) {
    const visible = view.contours.pieces.filter(([l, u, v, p, q]) => seen(eye, view, (u + p) / 2, (v + q) / 2, view.levels[l].at));
    for (const pale of [false, true]) {
      pen.beginPath();
      for (const [l, u, v, p, q] of visible) {
        const height = view.levels[l].at;
        if (height > PALE !== pale) continue;
        pen.moveTo(eye.x(u, v), eye.y(u, v, height * HEIGHT));
        pen.lineTo(eye.x(p, q), eye.y(p, q, height * HEIGHT));
      }
      pen.strokeStyle = pale ? "rgb(0 0 0 / 0.5)" : "rgb(255 255 255 / 0.6)";
      pen.lineWidth = 1;
      pen.stroke();
    }
  }

  /** The path on the surface; what lies behind it shines through. */
  function way(pen, eye, view) {
    const points = view.trail.map(({ u, v, height }) => ({ at: eye.point(u, v, height * HEIGHT), clear: seen(eye, view, u, v, height) }));
    for (const clear of [false, true]) {
      const runs = [];
      points.forEach((point, k) => {
        if (point.clear !== clear) return;
        if (k && points[k - 1].clear === clear) runs.at(-1).push(point.at);
        else runs.push(k ? [points[k - 1].at, point.at] : [point.at]);
      });
      pen.globalAlpha = clear ? 1 : 0.45;
      for (const run of runs) trail(pen, run, view.colours, !clear);
    }
    pen.globalAlpha = 1;
    [points[0], points.at(-1)].forEach((point, k) => {
      if (!inside(view.path.at(-k))) return; // where it enters the plane is no step of it
      pen.globalAlpha = point.clear ? 1 : 0.45;
      bead(pen, point.at, view.colours, k === 1);
    });
    pen.globalAlpha = 1;
  }

  function mark(pen, eye, view) {
    const { i, j } = view.mark;
    const [u, v] = [plane.us[i], plane.vs[j]];
    const height = view.coarse[j * plane.x.length + i];
    const foot = eye.point(u, v, FLOOR);
    const top = Number.isFinite(height) ? eye.point(u, v, height * HEIGHT) : foot;
    pen.beginPath();
    pen.moveTo(...foot);
    pen.lineTo(...top);
    pen.strokeStyle = view.colours.ink;
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.stroke();
    pen.setLineDash([]);
    pen.beginPath();
    pen.arc(...top, 5, 0, 2 * Math.PI);
    pen.strokeStyle = "#000";
    pen.lineWidth = 4;
    pen.stroke();
    pen.strokeStyle = "#fff";
    pen.lineWidth = 2;
    pen.stroke();
  }

  function draw(view) {
    const { pen, width, height } = fitted(canvas);
    const eye = lens(view.eye, plane.shape, width, height);
    [lastLens, lastView] = [eye, view];
    floor(pen, eye, view);
    walls(pen, eye, view);
    feet(pen, eye, view);
    cells(pen, eye, view);
    rings(pen, eye, view);
    if (view.trail) way(pen, eye, view);
    if (view.mark) mark(pen, eye, view);
  }

  const spot = ({ i, j }) => {
    const height = lastView.coarse[j * plane.x.length + i];
    return lastLens.point(plane.us[i], plane.vs[j], Number.isFinite(height) ? height * HEIGHT : FLOOR);
  };

  /** The place nearest to the pointer, of several the one in front. */
  function under(px, py) {
    let best = null;
    for (let j = 0; j < plane.y.length; j++) {
      for (let i = 0; i < plane.x.length; i++) {
        const [x, y] = spot({ i, j });
        const off = Math.hypot(x - px, y - py);
        if (off > 22) continue;
        const score = off + 14 * lastLens.far(plane.us[i], plane.vs[j]);
        if (!best || score < best.score) best = { i, j, score };
      }
    }
    return best && { i: best.i, j: best.j };
  }
  return { draw, under, spot };
}
