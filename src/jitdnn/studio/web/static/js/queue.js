// Waiting runs are dragged into another order; buttons do the same by keys.
/* global htmx */

import { $, all } from "./tools.js";

const root = $("#queue");
let dragged = null;
const row = (event) => event.target.closest?.("#waiting tr[draggable]");
const clean = () => all(".over-before, .over-after", root).forEach((each) => each.classList.remove("over-before", "over-after"));
const isAfter = (event, over) => {
  const box = over.getBoundingClientRect();
  return event.clientY > box.y + box.height / 2;
};

root.addEventListener("dragstart", (event) => {
  dragged = row(event);
  dragged?.classList.add("dragged");
  event.dataTransfer.effectAllowed = "move";
});
root.addEventListener("dragover", (event) => {
  const over = row(event);
  if (!dragged || !over) return;
  event.preventDefault();
  clean();
  if (over !== dragged) over.classList.add(isAfter(event, over) ? "over-after" : "over-before");
});
root.addEventListener("drop", (event) => {
  const over = row(event);
  if (!dragged || !over || over === dragged) return;
  event.preventDefault();
  if (isAfter(event, over)) over.after(dragged); else over.before(dragged);
  const runs = all("#waiting tr[draggable]").map((each) => each.dataset.run);
  htmx.ajax("POST", "/queue/order", { target: "#queue", swap: "innerMorph", values: { run: runs } });
});
root.addEventListener("dragend", () => {
  dragged?.classList.remove("dragged");
  dragged = null;
  clean();
});
setInterval(() => { if (!dragged && !document.hidden && !root.contains(document.activeElement?.closest("select"))) htmx.trigger(root, "look"); }, 2000);
