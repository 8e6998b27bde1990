// On every page: light or dark, and keys.

import { $ } from "./tools.js";

const dark = () => (document.documentElement.dataset.theme
  || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const told = () => document.dispatchEvent(new Event("theme"));

$("#theme").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = wanted;
  document.cookie = `theme=${wanted}; path=/; max-age=31536000; samesite=strict`;
  told();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", told);

const keys = {
  n: () => location.assign("/train"), d: () => location.assign("/data/new"), h: () => location.assign("/"),
  u: () => location.assign("/queue"), t: () => $("#theme button").click(), l: () => $("#log")?.click(),
  "/": () => $("#filter")?.focus(), "?": () => $("#keys").showModal(),
};
addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input:not([type=checkbox], [type=radio], [type=range]), textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
