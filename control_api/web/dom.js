// Builds elements. Text always becomes a text node, so nothing that an API answers is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  return fill(element, ...children);
}

// Puts the children into an element, in place of those that it has; null ones are left out.
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

export function announce(text) {
  document.querySelector("#announce").textContent = text;
}

export function pill(text, kind) {
  return h("span", { class: `pill ${kind}` }, text);
}

export function time(instant) {
  if (!instant) return "–";
  const date = new Date(instant);
  return h("time", { datetime: instant, title: date.toString() }, date.toLocaleString());
}

export function number(value, digits = 1) {
  return value === null || value === undefined ? "–" : value.toLocaleString(undefined, {
    minimumFractionDigits: digits, maximumFractionDigits: digits,
  });
}
