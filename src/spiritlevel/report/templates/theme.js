// Light or dark as the system says, until the reader says otherwise.
(() => {
  "use strict";
  const root = document.documentElement;
  const store = {
    // a file opened from disk may have no storage
    get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("theme", value); } catch { /* then for this visit only */ } },
  };
  const kept = store.get();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      const next = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
      root.dataset.theme = next;
      store.set(next);
    });
  });
})();
