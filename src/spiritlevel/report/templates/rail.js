// The slider along an orbit: its names are buttons, and it can walk by itself.

const PAUSE = 700;

/** Names that would touch go one line down. */
function spreadNames(names) {
  let edge = -Infinity;
  let two = false;
  for (const name of names.children) {
    name.classList.remove("low");
    const { left, right } = name.getBoundingClientRect();
    const touches = left < edge + 4;
    name.classList.toggle("low", touches);
    two ||= touches;
    if (!touches) edge = right;
  }
  names.classList.toggle("two", two);
}

/** Wires it up; what comes back goes to a stop, as the reader's hand does. */
function rail(count, called, show) {
  const [slider, play, readout] = ["stop", "play", "readout"].map((id) => document.getElementById(id));
  const names = document.querySelector(".names");
  let timer = null;

  const go = (index) => {
    slider.value = index;
    slider.setAttribute("aria-valuetext", called(index));
    for (const name of names.children) name.setAttribute("aria-current", String(Number(name.dataset.stop) === index));
    show(index);
  };
  const running = (on) => {
    clearInterval(timer);
    timer = on ? setInterval(step, PAUSE) : null;
    play.setAttribute("aria-pressed", String(on));
    play.setAttribute("aria-label", on ? "Pause" : "Play");
    readout.setAttribute("aria-live", on ? "off" : "polite"); // a listener could not follow
  };
  const step = () => {
    const next = Number(slider.value) + 1;
    if (next < count) go(next);
    if (next >= count - 1) running(false);
  };

  slider.addEventListener("input", () => { running(false); go(Number(slider.value)); });
  names.addEventListener("click", ({ target }) => {
    if (target.dataset.stop) { running(false); go(Number(target.dataset.stop)); }
  });
  play.addEventListener("click", () => {
    if (timer !== null) return running(false);
    if (Number(slider.value) === count - 1) go(0);
    running(true);
  });
  new ResizeObserver(() => spreadNames(names)).observe(names);
  return go;
}
