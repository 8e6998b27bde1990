// A new training: the gallery, and the editor with line numbers, colours and the line that is wrong.

import { $, all, fetched } from "./tools.js";

const net = $("#net");
if (net) {
  const words = /(#[^\n]*)|("[^"\n]*"?)|\b(\d[\w.]*|TRAIN|TEST|MAX|AVE|true|false)\b|\b([A-Za-z_]+)(?=\s*[{:])/g;
  const kinds = ["c", "s", "n", "w"];
  const escape = (text) => text.replace(/[&<]/g, (sign) => (sign === "&" ? "&amp;" : "&lt;"));
  const coloured = (line) => {
    let out = "", from = 0;
    for (const match of line.matchAll(words)) {
      const kind = kinds[match.slice(1).findIndex((group) => group !== undefined)];
      out += `${escape(line.slice(from, match.index))}<span class="${kind}">${escape(match[0])}</span>`;
      from = match.index + match[0].length;
    }
    return out + escape(line.slice(from));
  };
  const paint = () => {
    const bad = +($("#verdict")?.dataset.line || 0), lines = net.value.split("\n");
    $(".gutter").innerHTML = lines.map((_, at) => (at + 1 === bad ? `<b>${at + 1}</b>` : at + 1)).join("\n");
    $(".ink").innerHTML = `${lines.map((line, at) => (at + 1 === bad ? `<span class="bad">${coloured(line) || " "}</span>` : coloured(line))).join("\n")}\n `;
    $("#start").disabled = $("#verdict")?.classList.contains("bad") ?? false;
    for (const name of ["epochs", "batch"]) { // what an empty field means for this data set
      const value = $("#verdict")?.dataset[name];
      if (value) $(`#training [name=${name}]`).placeholder = value;
    }
  };
  net.addEventListener("input", paint);
  document.addEventListener("htmx:after:swap", paint);
  const show = (line) => { // a line of the text, chosen
    const lines = net.value.split("\n");
    const before = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    net.focus({ preventScroll: true });
    net.setSelectionRange(before, before + lines[line - 1].length);
    const editor = $(".editor"), height = parseFloat(getComputedStyle(editor).lineHeight);
    editor.scrollTop = Math.max(0, (line - 8) * height);
    editor.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("click", (event) => {
    if (event.target.id === "goto") show(+$("#verdict").dataset.line); // the line that is wrong
    const layer = event.target.closest(".graph a");
    if (!layer) return;
    event.preventDefault();
    if (layer.dataset.line) show(+layer.dataset.line);
  });
  document.addEventListener("selectionchange", () => { // the layer that the caret is in
    if (document.activeElement !== net) return;
    const line = net.value.slice(0, net.selectionStart).split("\n").length;
    const layers = all(".graph a[data-line]").filter((layer) => +layer.dataset.line <= line);
    const here = Math.max(0, ...layers.map((layer) => +layer.dataset.line));
    all(".graph a").forEach((layer) => layer.classList.toggle("here", here > 0 && +layer.dataset.line === here));
  });
  net.addEventListener("keydown", (event) => { // Tab writes two spaces; Escape before it leaves the editor
    if (event.key === "Escape") net.dataset.left = "1";
    else if (event.key === "Tab" && !event.shiftKey && !net.dataset.left) {
      event.preventDefault();
      net.setRangeText("  ", net.selectionStart, net.selectionEnd, "end");
      net.dispatchEvent(new Event("input", { bubbles: true }));
    } else delete net.dataset.left;
  });
  let given = $("[name=gallery]:checked") && net.value; // what the gallery has, as long as nobody changed it
  all("[name=gallery]").forEach((choice) => choice.addEventListener("change", async () => {
    const answer = await fetched(`/train/nets/${choice.value}`), text = await answer?.text();
    if (text === undefined || !choice.checked) return; // another one was chosen meanwhile
    net.value = text;
    given = net.value;
    net.dispatchEvent(new Event("input", { bubbles: true }));
  }));
  document.addEventListener("click", (event) => { // the rate that was found
    const found = event.target.dataset?.rate;
    if (!found) return;
    $("[name=rate]").value = found;
    $("[name=rate]").dispatchEvent(new Event("input", { bubbles: true }));
  });
  $("[name=dataset]").addEventListener("change", (event) => { // other data may want other nets
    if (net.value === given) location.assign(`/train?dataset=${event.target.value}`);
  });
  paint();
}
