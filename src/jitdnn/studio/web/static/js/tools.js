// What several scripts need.

export const $ = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/** A colour as a canvas needs it: what light-dark() in the class `name` comes to now. */
export function colour(name) {
  const probe = document.body.appendChild(Object.assign(document.createElement("i"), { className: name }));
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** The answer to a request, null where there is none (no network, no server) or it is a refusal. */
export async function fetched(address) {
  const answer = await fetch(address).catch(() => null);
  return answer?.ok ? answer : null;
}

/** A text of the page with a name in its place. */
export const filled = (text, name) => text.replace("{name}", () => name);

/** A number in four digits. */
export function short(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  return Math.abs(value) >= 1e-3 ? (+value.toPrecision(4)).toString() : value.toExponential(1);
}

export const percent = (value, digits = 1) => (value == null ? "–" : `${(100 * value).toFixed(digits)} %`);
