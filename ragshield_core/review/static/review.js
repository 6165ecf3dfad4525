// Keys for those who decide all day; without scripts, everything works by forms and links.
"use strict";
(() => {
  const rows = () => Array.from(document.querySelectorAll("[data-row]"));
  let current = -1;
  const go = (step) => {
    const all = rows();
    if (!all.length) return;
    all[current]?.classList.remove("current");
    current = Math.min(all.length - 1, Math.max(0, current + step));
    const row = all[current];
    row.classList.add("current");
    (row.querySelector("a, input[type=checkbox]") ?? row).focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };
  // What changes anything waits for Enter: a reason that is typed beside its field decides nothing.
  const ready = (id) => document.getElementById(id)?.focus();
  const keys = {
    j: () => go(1),
    k: () => go(-1),
    r: () => ready("release"),
    c: () => ready("confirm"),
    w: () => ready("keep"),
    u: () => ready("undo"),
    q: () => document.getElementById("back")?.click(),
    n: () => document.getElementById("note")?.focus(),
    "/": () => document.getElementById("search")?.focus(),
    "?": () => document.getElementById("keys")?.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    const writes = event.target.closest("input:not([type=checkbox]), select, textarea, dialog");
    if (event.key === "Escape" && writes) writes.blur?.();
    if (writes || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = keys[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
  // One decision for each click, however impatient.
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => {
    document.querySelectorAll("form[data-sent]").forEach((form) => delete form.dataset.sent);
  });
})();
