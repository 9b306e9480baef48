// Elements, made of values. A string becomes a text node and never markup; there is no other way to put one on the page.

import { visible } from "/inspector/page/words.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(made, given, children) {
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, set] of Object.entries(value)) made.style.setProperty(key, set);
    else made.setAttribute(name, value === true ? "" : visible(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    made.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return made;
}

export function el(tag, given, ...children) {
  return fill(document.createElement(tag), given, children);
}

export function svg(tag, given, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

// A picture's address is shown as it came, or it would be another picture: only data of kinds that hold no script.
export function picture(url, alt) {
  const image = el("img", { class: "picture", alt, loading: "lazy", decoding: "async" });
  if (/^data:image\/(?:png|jpe?g|gif|webp);/i.test(url)) image.src = url;
  return image;
}

// Content is shown with its own line ends, and with what would turn it written out.
export function text(value) {
  return document.createTextNode(visible(value.replace(/\r\n?/g, "\n")));
}

export function say(sentence) {
  document.getElementById("said").textContent = sentence;
}
