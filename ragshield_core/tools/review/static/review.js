// Keys for those who decide all day; without scripts, everything works by forms and links.
"use strict";
(() => {
  const rows = () => Array.from(document.querySelectorAll("[data-row]"));
  let current = -1;
  const follow = (id) => document.getElementById(id)?.click();
  const go = (step) => {
    const all = rows();
    // Behind the last entry of a case comes the next case.
    if (current + step >= all.length && current >= 0) follow("following");
    if (current + step < 0 && current === 0) follow("previous");
    if (!all.length) return;
    all[current]?.classList.remove("current");
    current = Math.min(all.length - 1, Math.max(0, current + step));
    const row = all[current];
    row.classList.add("current");
    const first = row.querySelector("[data-open]") ?? row.querySelector("a, input[type=checkbox]");
    (first ?? row).focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };
  const boxes = () => Array.from(document.querySelectorAll("input[name=entry], input[name=case]"));
  const count = () => {
    const chosen = document.getElementById("chosen");
    const all = boxes();
    const checked = all.filter((box) => box.checked).length;
    if (chosen) chosen.textContent = `${checked} of ${all.length} chosen`;
  };
  const choose = () => {
    const all = boxes();
    const none = all.every((box) => box.checked);
    all.forEach((box) => (box.checked = !none));
    count();
  };
  // What changes anything waits for Enter: a reason that is typed beside its field decides nothing.
  const ready = (id) => document.getElementById(id)?.focus();
  const keys = {
    j: () => go(1),
    k: () => go(-1),
    r: () => ready("release"),
    c: () => ready("confirm"),
    w: () => ready("keep"),
    o: () => document.querySelector("[data-row].current [name=reopen], [name=reopen]")?.focus(),
    u: () => ready("undo"),
    q: () => document.getElementById("back")?.click(),
    a: choose,
    x: () => rows()[current]?.querySelector("input[name=entry], input[name=case]")?.click(),
    ".": () => follow("following"),
    ",": () => follow("previous"),
    n: () => document.getElementById("note")?.focus(),
    "/": () => document.getElementById("search")?.focus(),
    "?": () => document.getElementById("keys")?.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    // What is in a dialog that was closed has the focus until the page is drawn again.
    const writes = event.target.closest("input:not([type=checkbox]), select, textarea, dialog[open]");
    if (event.key === "Escape" && writes) writes.blur?.();
    if (writes || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = keys[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
  document.addEventListener("change", count);
  document.getElementById("choose")?.addEventListener("click", choose);
  // One decision for each click, however impatient.
  document.addEventListener("submit", (event) => {
    if (event.target.method === "dialog") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => {
    count();
    document.querySelectorAll("form[data-sent]").forEach((form) => delete form.dataset.sent);
  });
})();
