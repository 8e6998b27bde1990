// The page of one run: curves that grow while it trains, one cursor over all of them, and its status.
/* global htmx */

import { FAR, draw, named } from "./chart.js";
import { $, all, fetched, filled } from "./tools.js";

const root = $("#curves");
const run = root.dataset.run;
const weights = () => $("#smooth").dataset.weights.split(" ").map(Number);
const weight = () => weights()[+$("#smooth").value];
let held = {}; // [iterations, values] by the name of a series; smoothed ones by name and ~
let counts = {}; // of points below a smoothed value, for its bias towards the start
let plots = [], low = 0, high = FAR, seq = +root.dataset.seq;
let isStale = false; // something could not be read, and is when the server answers again

// ---- what is shown is part of the address

function remember() {
  const kept = new URLSearchParams();
  if (high < FAR) { kept.set("low", Math.floor(low)); kept.set("high", Math.ceil(high)); }
  if ($("#log").checked) kept.set("log", 1);
  if ($("#smooth").value !== $("#smooth").defaultValue) kept.set("smooth", $("#smooth").value);
  history.replaceState(null, "", `${location.pathname}${location.search}${kept.size ? `#${kept}` : ""}`);
}
function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  if (kept.has("high")) { low = +kept.get("low"); high = +kept.get("high"); }
  $("#log").checked = kept.has("log");
  if (kept.has("smooth")) $("#smooth").value = kept.get("smooth");
}

// ---- reading and drawing

const boxes = () => all("[data-chart]", root);
const wanted = () => [...new Set(boxes().flatMap((box) => named(box).map((line) => line.name)))];

async function ask(names, smooth) {
  const query = new URLSearchParams([...names.map((name) => ["name", name]), ["low", Math.max(0, Math.floor(low))]]);
  if (high < FAR) query.set("high", Math.ceil(high));
  if (smooth) query.set("smooth", smooth);
  const answer = await fetched(`/api/runs/${run}/series?${query}`);
  isStale ||= !answer;
  return answer?.json();
}
async function load() { // where nothing can be read, what is there stays
  const smoothed = boxes().flatMap((box) => named(box).filter((line) => line.isSmoothed).map((line) => line.name));
  const [plain, soft] = await Promise.all([ask(wanted(), 0), weight() ? ask(smoothed, weight()) : {}]);
  if (!plain || !soft) return;
  held = {};
  counts = {};
  for (const [name, points] of Object.entries(plain)) held[name] = points;
  for (const name of smoothed) {
    const points = soft[name] ?? (plain[name] ?? [[], []]).map((values) => [...values]);
    held[`${name}~`] = points;
    counts[name] = points[0].at(-1) ?? 0;
  }
}
const marks = () => all("#marks [data-noted]").map((item) => +item.dataset.at);
function redraw() {
  plots.forEach((plot) => plot.end());
  plots = boxes().map((box) => {
    const lines = named(box).map((line) => {
      const key = line.isSmoothed ? `${line.name}~` : line.name;
      return { ...line, colour: `c-${line.kind}`, key, points: held[key] ??= [[], []] };
    });
    return draw(box, lines, {
      group: "run", range: () => [low, high], end: +root.dataset.max, isLog: $("#log").checked, marks,
      onZoom: async (a, b) => { [low, high] = [Math.max(0, a), b]; remember(); await load(); redraw(); },
    });
  });
}
async function reload() {
  await load();
  for (const plot of plots) for (const line of plot.lines) line.points = held[line.key] ??= [[], []];
  plots.forEach((plot) => plot.again());
}

// ---- what comes while the run trains

let pending = 0;
const soon = () => { pending ||= requestAnimationFrame(() => { pending = 0; plots.forEach((plot) => plot.again()); }); };

function put([xs, ys], x, y) { // a run that went back to a snapshot tells some iterations again
  if (!xs.length || x > xs.at(-1)) { xs.push(x); ys.push(y); return true; }
  const at = xs.lastIndexOf(x);
  if (at >= 0) ys[at] = y;
  return false;
}
async function take(points) {
  if (isStale || Object.keys(points).some((name) => !(name in held))) return renew();
  for (const [name, [xs, ys]] of Object.entries(points)) {
    const to = held[name], soft = held[`${name}~`];
    xs.forEach((x, at) => {
      if (x > high || x < low) return;
      if (!put(to, x, ys[at]) || !soft || ys[at] == null) return;
      const count = (counts[name] = (counts[name] ?? 0) + 1), w = weight();
      const norm = 1 - w ** count, before = (1 - w ** (count - 1)) * (soft[1].at(-1) ?? 0);
      soft[0].push(x);
      soft[1].push(norm ? (w * before + (1 - w) * ys[at]) / norm : ys[at]);
    });
  }
  if (Object.values(held).some(([xs]) => xs.length > 6000)) await reload(); else soon();
}
async function renew() { // a series that no chart has yet
  const answer = await fetched(`/runs/${run}/curves`);
  isStale = !answer;
  if (isStale) return;
  const kept = { log: $("#log").checked, smooth: $("#smooth").value };
  htmx.swap({ target: root, text: await answer.text(), swap: "innerHTML" });
  $("#log").checked = kept.log;
  $("#smooth").value = kept.smooth;
  await load();
  for (const name of wanted()) held[name] ??= [[], []];
  redraw();
}

// a hidden page gives its connection back: a browser has six for each host
let source = null;
function listen() {
  source?.close();
  source = null;
  if (document.hidden) return;
  source = new EventSource(`/api/runs/${run}/events?after=${seq}`);
  source.addEventListener("open", () => { if (isStale) renew(); });
  source.addEventListener("points", (event) => { seq = +event.lastEventId; take(JSON.parse(event.data)); });
  source.addEventListener("reload", (event) => { seq = +event.lastEventId; reload(); });
  source.addEventListener("status", (event) => {
    const before = $("#status .pill").textContent;
    htmx.swap({ target: $("#status"), text: event.data, swap: "innerMorph" });
    const after = $("#status .pill").textContent;
    if (before !== after) $("#spoken").textContent = filled($("#spoken").dataset.said, after);
    root.dataset.max = $("#status progress").max;
  });
  source.addEventListener("machine", (event) => htmx.swap({ target: $("#machine"), text: event.data, swap: "innerMorph" }));
  source.addEventListener("marks", (event) => {
    htmx.swap({ target: $("#marks"), text: event.data, swap: "innerMorph" });
    soon();
  });
}

root.addEventListener("input", async (event) => {
  if (event.target.id !== "smooth") return;
  remember();
  await reload();
});
root.addEventListener("change", (event) => {
  if (event.target.id === "log") { remember(); redraw(); }
});
document.addEventListener("visibilitychange", listen);
document.addEventListener("theme", redraw);
addEventListener("resize", () => plots.forEach((plot) => plot.fit()));
recall();
load().then(() => { redraw(); listen(); });
