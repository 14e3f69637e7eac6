// Creates and changes elements of the page, HTML and SVG; content is always text, never markup.

/**
 * @typedef {Node | string | null | undefined | false} Child nothing is added for the last three
 * @typedef {string | number | boolean | null | undefined} Value
 * @typedef {Record<string, Value | ((event: never) => void)>} Properties
 */

/**
 * Element of a tag, and of a selector: a tag, perhaps with classes.
 * @template {string} T
 * @typedef {T extends keyof HTMLElementTagNameMap ? HTMLElementTagNameMap[T] : HTMLElement} OfTag
 */

/**
 * @template {string} S
 * @typedef {S extends `${infer T}.${string}` ? OfTag<T> : OfTag<S>} OfSelector
 */

/**
 * Create an HTML element: `make("p.note", { role: "status" }, "text")`.
 * @template {string} S
 * @param {S} selector tag and classes
 * @param {...(Properties | Child)} contents children; attributes and listeners (`onclick`) by name
 * @returns {OfSelector<S>}
 */
export function make(selector, ...contents) {
  const [tag = "", ...classes] = selector.split(".");
  const element = document.createElement(tag);
  if (element instanceof HTMLButtonElement) element.type = "button";
  fill(element, classes, contents);
  return /** @type {OfSelector<S>} */ (element);
}

/**
 * Create an SVG element, as `make` does.
 * @param {string} selector
 * @param {...(Properties | Child)} contents
 */
export function makeSvg(selector, ...contents) {
  const [tag = "", ...classes] = selector.split(".");
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, classes, contents);
  return element;
}

/** @param {Element} element @param {string[]} classes @param {(Properties | Child)[]} contents */
function fill(element, classes, contents) {
  element.classList.add(...classes);
  for (const content of contents) {
    if (!content) continue;
    if (isThere(content)) element.append(content);
    else {
      for (const [name, value] of Object.entries(content)) {
        if (typeof value === "function")
          element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
        else setAttribute(element, name, value);
      }
    }
  }
}

/** Decode a part of an address; what is malformed stays as it is. @param {string} part */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Return whether a key goes into a field or an open dialog. @param {KeyboardEvent} event */
export function isTyping({ target }) {
  return target instanceof Element && target.closest("input, select, textarea, dialog") !== null;
}

/**
 * Set or remove an attribute if that changes anything.
 * @param {Element} element
 * @param {string} name
 * @param {Value} value
 */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else {
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/**
 * Set an element's text if it differs: a selection in it and its reading aloud are kept.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace an element's children. @param {Element} element @param {...Child} children */
export function setChildren(element, ...children) {
  element.replaceChildren(...children.filter(isThere));
}

/**
 * Return the page's element with this id.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function byId(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return element;
}

/** Return the `d` of a path through points. @param {[number, number][]} points px */
export function lineThrough(points) {
  return points
    .map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`)
    .join("");
}

/** Return the width of a text in px. @param {string} text @param {string} font CSS shorthand */
export function textWidth(text, font) {
  const context = document.createElement("canvas").getContext("2d");
  if (!context) return 7 * text.length;
  context.font = font;
  return context.measureText(text).width;
}

/** @param {Properties | Child} child */
function isThere(child) {
  return typeof child === "string" || child instanceof Node;
}

/**
 * Create the head of a panel: its title, and what stands beside it.
 * @param {string} title
 * @param {...Child} beside
 */
export function panelHead(title, ...beside) {
  return make("div.panel-head", make("h2", title), ...beside);
}

/** @param {KeyboardEvent} event with a key that the browser may use otherwise */
export function hasModifier(event) {
  return event.ctrlKey || event.metaKey || event.altKey;
}

/** Return the page's font for canvases. */
export function fontFamily() {
  return getComputedStyle(document.body).fontFamily;
}

/**
 * Listen to the theme and to an element's size.
 * @param {Element} element
 * @param {{onResize: () => void, onTheme: () => void}} listeners
 * @returns {() => void} ends it
 */
export function watchLooks(element, { onResize, onTheme }) {
  const observer = new ResizeObserver(onResize);
  observer.observe(element);
  document.addEventListener("themechange", onTheme);
  return () => {
    observer.disconnect();
    document.removeEventListener("themechange", onTheme);
  };
}

/**
 * Place a tooltip above a box, or below it where there is no room, within the element around it.
 * @param {HTMLElement} tip
 * @param {{left: number, top: number, width: number, height: number}} box px
 * @param {number} gap px
 */
export function placeTip(tip, { left, top, width, height }, gap) {
  const room = (tip.parentElement?.clientWidth ?? 0) - tip.offsetWidth;
  const centred = left + width / 2 - tip.offsetWidth / 2;
  const above = top - tip.offsetHeight - gap;
  tip.style.left = `${Math.max(0, Math.min(centred, room))}px`;
  tip.style.top = `${above < 0 ? top + height + gap : above}px`;
}
