// Densities of eigenvalues, one row for each, all on the same axes.

const told = JSON.parse(byId("spectra").textContent);

/** Linear near 0 and logarithmic beyond, on both sides. */
function bothSides(low, high, linearTo, [from, to]) {
  const bend = (v) => Math.sign(v) * (Math.abs(v) <= linearTo ? Math.abs(v) / linearTo / 2 : 0.5 + Math.log10(Math.abs(v) / linearTo));
  const [a, b] = [bend(low), bend(high)];
  const scale = (v) => from + ((bend(v) - a) / (b - a)) * (to - from);
  const ticks = [{ at: scale(0), label: "0" }];
  for (let k = Math.ceil(Math.log10(linearTo) - 1e-9); 10 ** k <= Math.max(high, -low); k++) {
    for (const sign of [-1, 1]) ticks.push({ at: scale(sign * 10 ** k), label: (sign < 0 ? "−" : "") + power(k), place: sign * 10 ** k });
  }
  const inside = ticks.filter(({ at }) => at >= from - 0.5 && at <= to + 0.5).sort((p, q) => Math.abs(p.at - scale(0)) - Math.abs(q.at - scale(0)));
  const kept = [];
  for (const tick of inside) if (kept.every(({ at }) => Math.abs(at - tick.at) > 34)) kept.push(tick);
  return { scale, ticks: kept };
}

function main() {
  const { axis, densities, spectra } = told;
  const each = spectra.length <= 6 ? 150 : 92;
  const rows = spectra.map((one) => Object.fromEntries(Object.entries(one).map(([key, value]) => [key, Array.isArray(value) ? value.map(real) : value])));

  const paint = (svg, width, height) => {
    const [left, right] = [52, width - 10];
    const span = [left, right];
    const across = axis.linear === null ? linear([axis.low, axis.high], span) : bothSides(axis.low, axis.high, axis.linear, span);
    rows.forEach((one, number) => {
      const box = { left, right, top: number * each + 26, bottom: (number + 1) * each - 8 };
      row(svg, one, spectra.length <= 6 ? number % 7 : 0, box, across, densities);
      if (number === rows.length - 1) foot(svg, across.ticks, `eigenvalue${axis.linear === null ? "" : ", logarithmic on both sides of 0"}`, box);
      else draw(svg, "line", { class: "axis", x1: left, x2: right, y1: box.bottom, y2: box.bottom });
    });
  };
  board(byId("chart"), rows.length * each + 44, paint);
}

function row(svg, one, colour, box, across, [low, high]) {
  const group = draw(svg, "g", { class: `s${colour}` });
  const [from, to] = [Math.log10(low), Math.log10(high)];
  const up = (density) => box.bottom - (Math.max(0, Math.log10(Math.max(density, low)) - from) / (to - from)) * (box.bottom - box.top);
  const step = Math.ceil((to - from) / 3);
  for (let k = Math.ceil(from); k <= to; k += step) {
    draw(group, "line", { class: "grid", x1: box.left, x2: box.right, y1: up(10 ** k), y2: up(10 ** k) });
    draw(group, "text", { x: box.left - 8, y: up(10 ** k) + 4, "text-anchor": "end" }, power(k));
  }
  draw(group, "line", { class: "grid", x1: across.scale(0), x2: across.scale(0), y1: box.top, y2: box.bottom });
  const xs = one.grid.map(across.scale);
  const edge = (sign) => one.density.map((density, k) => `${xs[k].toFixed(1)} ${up(density + sign * 2 * one.stderr[k]).toFixed(1)}`);
  draw(group, "path", { class: "band", d: `M${edge(1).join("L")}L${edge(-1).reverse().join("L")}Z` });
  draw(group, "path", { class: "curve", d: trace(one.density.map((density, k) => [xs[k], density > low ? up(density) : box.bottom])) });
  for (const value of one.outliers) {
    const at = across.scale(value);
    const tick = draw(group, "line", { class: "apart", x1: at, x2: at, y1: box.bottom - 11, y2: box.bottom });
    draw(tick, "title", {}, short(value));
  }
  draw(group, "text", { class: "of", x: box.left, y: box.top - 10 }, one.name);
  if (one.outliers.length) {
    const words = `${one.outliers.length} apart from the bulk, up to ${short(one.outliers.reduce((a, b) => Math.max(a, b)))}`;
    draw(group, "text", { x: box.right, y: box.top - 10, "text-anchor": "end" }, words);
  }
}

main();
