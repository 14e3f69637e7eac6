// List of a page's sections in the bar, which stays in view: by click, and by their numbers as keys.

import { byId, hasModifier, isTyping, make, setAttribute, setChildren } from "./elements.js";

const GAP = 8; // px between the bar and a section

/**
 * Show the list, and mark the section that is read.
 * @param {[string, HTMLElement][]} sections title and element
 * @returns {AbortController} ends it
 */
export function showSections(sections) {
  const list = byId("sections", HTMLElement);
  const ending = new AbortController();
  const { signal } = ending;
  // Sections stand beside each other, and the last ones cannot reach the bar: a jump counts.
  let isJump = false;
  const go = (/** @type {number} */ index) => {
    const [, section] = sections[index];
    const before_px = window.scrollY;
    const top = section.getBoundingClientRect().top - barHeight() - GAP;
    window.scrollBy({ top, behavior: "instant" });
    // One event follows, and none where the page stays.
    isJump = window.scrollY !== before_px;
    mark(index);
    section.tabIndex = -1;
    section.focus({ preventScroll: true });
  };
  const buttons = sections.map(([title], index) =>
    make("button.quiet", { onclick: () => go(index), "aria-keyshortcuts": `${index + 1}` }, title),
  );
  const mark = (/** @type {number} */ here) => {
    buttons.forEach((button, index) =>
      setAttribute(button, "aria-current", index === here ? "true" : null),
    );
  };
  const onScroll = () => {
    const line = barHeight() + 3 * GAP;
    const tops = sections.map(([, section]) => section.getBoundingClientRect().top);
    if (!isJump) mark(Math.max(0, tops.findLastIndex((top) => top <= line)));
    isJump = false;
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const index = Number(event.key) - 1;
    if (!/^[1-9]$/.test(event.key) || hasModifier(event) || isTyping(event)) return;
    if (index >= sections.length) return;
    event.preventDefault();
    go(index);
  };
  document.addEventListener("scroll", onScroll, { signal, passive: true });
  document.addEventListener("keydown", onKey, { signal });
  setChildren(list, ...buttons);
  list.hidden = false;
  mark(0);
  return ending;
}

function barHeight() {
  return document.querySelector(".bar")?.getBoundingClientRect().height ?? 0;
}
