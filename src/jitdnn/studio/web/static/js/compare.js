// Curves of several runs over one another; a run under the pointer stands out everywhere.

import { FAR, draw, named } from "./chart.js";
import { $, all, fetched } from "./tools.js";

// as css/compare.css has them
const COLOURS = 8, DASHES = [undefined, [10, 5], [2, 4]];

const root = $("#curves");
if (root) {
  const runs = root.dataset.runs.split(",");
  const weights = $("#smooth")?.dataset.weights.split(" ").map(Number) ?? [0];
  const weight = () => weights[+($("#smooth")?.value ?? 0)];
  let held = {}, plots = [], low = 0, high = FAR;

  const ask = async (run, names, smooth) => {
    const query = new URLSearchParams([...names.map((name) => ["name", name]), ["low", Math.max(0, Math.floor(low))], ["most", 800]]);
    if (high < FAR) query.set("high", Math.ceil(high));
    if (smooth) query.set("smooth", smooth);
    const answer = await fetched(`/api/runs/${run}/series?${query}`);
    return answer ? answer.json() : {};
  };
  async function load() {
    const lines = all("[data-chart]", root).flatMap(named);
    const plain = [...new Set(lines.filter((line) => !line.isSmoothed).map((line) => line.name))];
    const smoothed = [...new Set(lines.filter((line) => line.isSmoothed).map((line) => line.name))];
    const found = await Promise.all(runs.map(async (run) => {
      const [points, soft] = await Promise.all([plain.length ? ask(run, plain, 0) : {}, smoothed.length ? ask(run, smoothed, weight()) : {}]);
      return [run, { ...points, ...Object.fromEntries(Object.entries(soft).map(([name, values]) => [`${name}~`, values])) }];
    }));
    held = Object.fromEntries(found);
  }
  function redraw() {
    plots.forEach((plot) => plot.end());
    plots = all("[data-chart]", root).map((box) => {
      const lines = named(box).flatMap((line) => runs.map((run, at) => ({
        ...line, run, colour: `s${at % COLOURS}`, dash: DASHES[Math.floor(at / COLOURS)], title: line.title, points: held[run]?.[line.isSmoothed ? `${line.name}~` : line.name] ?? [[], []],
      })));
      return draw(box, lines, {
        group: "compare", range: () => [low, high], end: +root.dataset.max, isLog: $("#log")?.checked,
        onZoom: async (a, b) => { [low, high] = [Math.max(0, a), b]; await load(); redraw(); },
      });
    });
  }
  const stress = (run) => {
    all("[data-row]").forEach((each) => each.classList.toggle("faded", !!run && each.dataset.row !== run && each.tagName !== "TR"));
    for (const plot of plots) plot.lines.forEach((line, at) => {
      plot.plot.series[at + 1].alpha = !run || line.run === run ? 1 : 0.15;
      plot.plot.series[at + 1].width = run && line.run === run ? 3 : 2;
    });
    plots.forEach((plot) => plot.plot.redraw(false));
  };
  addEventListener("pointerover", (event) => stress(event.target.closest?.("[data-row]")?.dataset.row));
  $("#smooth")?.addEventListener("input", async () => { await load(); redraw(); });
  $("#log")?.addEventListener("change", redraw);
  document.addEventListener("theme", redraw);
  addEventListener("resize", () => plots.forEach((plot) => plot.fit()));
  load().then(redraw);
}
