// The page that asks a net: drawing, dropping, pasting, the camera.

import { $ } from "./tools.js";

const ask = $("#ask"), file = ask && $("input[type=file]", ask), at = ask && $("[name=at]", ask), pad = $("#pad");
const send = () => ask.dispatchEvent(new Event("ask"));

function give(blob, name) {
  const files = new DataTransfer();
  files.items.add(new File([blob], name, { type: blob.type }));
  file.files = files.files;
  send();
}

if (ask) {
  const random = $("#random");
  random.hidden = false;
  random.addEventListener("click", () => {
    if (file) file.value = "";
    at.value = Math.floor(Math.random() * random.dataset.count);
    clear();
    send();
  });
  at.addEventListener("input", () => { if (file) file.value = ""; });
}

function clear() {
  if (!pad) return;
  const pen = pad.getContext("2d");
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, 280, 280);
  pad.parentNode.classList.remove("used");
}

if (pad) draw();

function draw() {
  const pen = pad.getContext("2d");
  let last = null, waiting = 0;
  pad.parentNode.hidden = false;
  $("#tools").hidden = false;
  const place = (event) => {
    const box = pad.getBoundingClientRect();
    return [(event.clientX - box.x) * 280 / box.width, (event.clientY - box.y) * 280 / box.height];
  };
  const line = (from, to) => {
    Object.assign(pen, { lineWidth: 21, lineCap: "round", lineJoin: "round", strokeStyle: "#fff" });
    pen.beginPath();
    pen.moveTo(...from);
    pen.lineTo(...to);
    pen.stroke();
  };
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    last = place(event);
    line(last, last);
    pad.parentNode.classList.add("used");
  });
  pad.addEventListener("pointermove", (event) => {
    if (!last) return;
    const now = place(event);
    line(last, now);
    last = now;
  });
  const done = () => {
    if (!last) return;
    last = null;
    clearTimeout(waiting);
    waiting = setTimeout(() => pad.toBlob((blob) => give(blob, "drawing.png")), 150);
  };
  pad.addEventListener("pointerup", done);
  pad.addEventListener("pointercancel", done);
  $("#clear").addEventListener("click", clear);
  clear();
}

if (file) {
  const drop = $("#drop");
  file.addEventListener("change", send);
  ["dragover", "dragleave", "drop"].forEach((kind) => drop.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    const dropped = event.dataTransfer?.files?.[0];
    if (kind === "drop" && dropped) give(dropped, dropped.name);
  }));
  addEventListener("paste", (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])].find((each) => each.type.startsWith("image/"));
    if (pasted) give(pasted, pasted.name || "pasted.png");
  });
}

const photograph = $("#photograph");
if (photograph && navigator.mediaDevices?.getUserMedia) {
  const camera = $("#camera"), said = photograph.dataset;
  let timer = 0;
  photograph.hidden = false;
  const stop = () => {
    clearInterval(timer);
    camera.srcObject?.getTracks().forEach((track) => track.stop());
    camera.srcObject = null;
    camera.hidden = true;
    photograph.lastChild.textContent = said.camera;
  };
  const frame = () => {
    const side = Math.min(camera.videoWidth, camera.videoHeight);
    if (!side) return;
    const canvas = Object.assign(document.createElement("canvas"), { width: side, height: side });
    canvas.getContext("2d").drawImage(camera, (camera.videoWidth - side) / 2, (camera.videoHeight - side) / 2, side, side, 0, 0, side, side);
    canvas.toBlob((blob) => give(blob, "photograph.jpg"), "image/jpeg", 0.9);
  };
  photograph.addEventListener("click", async () => {
    if (camera.srcObject) return stop();
    try {
      camera.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      photograph.lastChild.textContent = error.name === "NotAllowedError" ? said.refused : said.missing;
      return;
    }
    camera.hidden = false;
    photograph.lastChild.textContent = said.stop;
    await camera.play();
    timer = setInterval(frame, 700);
  });
  addEventListener("pagehide", stop);
}
