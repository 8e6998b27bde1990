// The table of runs: those that are ticked can be hidden, two or more compared.

import { $, all } from "./tools.js";

const compare = $("#compare"), hide = $("#hide");
if (compare) {
  const look = () => {
    const chosen = all("[name=run]:checked").length;
    compare.disabled = chosen < 2;
    hide.disabled = chosen < 1;
  };
  addEventListener("change", look);
  document.addEventListener("htmx:after:swap", look);
  look();
}
