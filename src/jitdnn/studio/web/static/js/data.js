// Data sets: files dropped or pasted, folders completed, images found on a sheet, labels by keys.

import { $, all, filled } from "./tools.js";

// ---- a new data set
const drop = $("#drop");
if (drop) {
  const input = $("input", drop), told = $("#chosen"), first = told.textContent, folder = $("#folder");
  const take = (files) => {
    if (!files?.length) return;
    input.files = files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  };
  for (const kind of ["dragover", "dragleave", "drop"]) addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => take(event.clipboardData.files));
  input.addEventListener("change", () => {
    told.textContent = input.files[0] ? filled(told.dataset.sending, input.files[0].name) : first;
    if (input.files[0]) folder.value = "";
  });
  folder.addEventListener("change", () => { $("#scan [name=upload]")?.remove(); input.value = ""; told.textContent = first; });
  document.addEventListener("htmx:after:swap", () => { // it was sent once: from now on its token goes along
    if (!$("#scan [name=upload]") || !input.files[0]) return;
    told.textContent = filled(told.dataset.here, input.files[0].name);
    input.value = "";
  });
  let waiting = 0;
  folder.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const answer = await fetch(`/data/folders?folder=${encodeURIComponent(folder.value)}`);
      if (answer.ok) $("#folders").replaceChildren(...(await answer.json()).map((path) => new Option("", path)));
    }, 150);
  });
}

// ---- the gallery
const filters = $(".filters");
filters?.addEventListener("change", (event) => { if (event.target.type !== "search") filters.requestSubmit(); });
const sheets = $("#sheets");
sheets?.addEventListener("click", async (event) => {
  const image = event.target.closest("img");
  if (!image) return;
  const box = image.getBoundingClientRect(), held = sheets.dataset, columns = +held.columns;
  const column = Math.floor((event.clientX - box.x) / box.width * columns);
  const row = Math.floor((event.clientY - box.y) / box.height * +image.dataset.rows);
  const at = row * columns + column;
  if (at >= +image.dataset.count) return;
  const start = +image.dataset.start + at;
  const query = new URLSearchParams({ part: held.part, q: held.q, start, count: 1 });
  if (held.label) query.set("label", held.label);
  const answer = await fetch(`/api/datasets/${held.dataset}/images?${query}`);
  const found = answer.ok ? (await answer.json()).items[0] : null;
  if (found) location.assign(`/data/${held.dataset}/images/${found.part}/${found.place}`);
});

// ---- one image
const labels = $("#labels");
if (labels) addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^[0-9]$/.test(event.key)) all("button[name=label] kbd", labels).find((each) => each.textContent === event.key)?.parentNode.click();
  if (event.key === "ArrowLeft") $("#before")?.click();
  if (event.key === "ArrowRight") $("#after")?.click();
});
