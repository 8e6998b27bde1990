// The table of runs: two or more that are ticked can be compared.

import { $, all } from "./tools.js";

const button = $("#compare");
if (button) {
  const look = () => { button.disabled = all("[name=run]:checked").length < 2; };
  addEventListener("change", look);
  document.addEventListener("htmx:after:swap", look);
  look();
}
