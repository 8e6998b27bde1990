// Pictures of layers, enlarged: whole pixels, by buttons, keys or the wheel, moved by scrolling.

import { $ } from "./tools.js";

const MOST = 16_000; // pixels of a side, beyond which browsers draw nothing
let dialog = null, scale = 1;

function made() {
  const found = $("#enlarged").content.firstElementChild.cloneNode(true);
  found.addEventListener("click", (event) => {
    const by = event.target.closest("[data-by]")?.dataset.by;
    if (by) zoom(+by);
    else if (event.target === found) found.close();
  });
  found.addEventListener("keydown", (event) => {
    const by = { "+": 2, "=": 2, "-": 0.5 }[event.key];
    if (by) { event.preventDefault(); zoom(by); }
  });
  $(".room", found).addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // else it scrolls
    event.preventDefault();
    zoom(event.deltaY < 0 ? 2 : 0.5);
  }, { passive: false });
  return document.body.appendChild(found);
}

/** Enlarge by a factor, with what is in the middle kept there. */
function zoom(by) {
  const image = $("img", dialog), room = $(".room", dialog);
  const next = scale * by, side = Math.max(image.naturalWidth, image.naturalHeight) * next;
  if (next < 1 || side > MOST) return;
  const x = (room.scrollLeft + room.clientWidth / 2) / image.width, y = (room.scrollTop + room.clientHeight / 2) / image.height;
  draw(next);
  room.scrollTo(x * image.width - room.clientWidth / 2, y * image.height - room.clientHeight / 2);
}

function draw(to) {
  const image = $("img", dialog);
  scale = to;
  image.width = image.naturalWidth * scale;
  image.height = image.naturalHeight * scale;
  $("output", dialog).textContent = `${scale} ×`;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.zoom");
  if (!button) return;
  const given = $("img", button.closest("figure"));
  dialog ??= made();
  const image = $("img", dialog);
  image.src = given.src;
  image.alt = given.alt;
  dialog.showModal();
  await image.decode();
  const room = $(".room", dialog);
  const fits = Math.min(room.clientWidth / image.naturalWidth, room.clientHeight / image.naturalHeight);
  draw(2 ** Math.max(0, Math.floor(Math.log2(fits))));
});
