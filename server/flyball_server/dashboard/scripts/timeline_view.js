// The visible part of the timeline, and mouse, touch and keys that change it.

import { hasModifier } from "./elements.js";

/**
 * Visible part of the iteration.
 * @typedef {object} View
 * @property {Bounds} bounds
 * @property {number} start_s left edge
 * @property {number} span_s from the left edge to the right one
 * @property {number} firstRow upper edge; a fraction where a row is cut
 */

/**
 * Limits of the view.
 * @typedef {object} Bounds
 * @property {number} end_s right edge when all is shown
 * @property {number} shortestSpan_s shortest span, at most `end_s`
 * @property {number} numRows
 * @property {number} paneHeight_px height of a pane: all rows fit into it when all is shown
 * @property {number} readableRow_px height of a row in which labels fit
 */

/** Return the view of all. @param {Bounds} bounds @returns {View} */
export function fitted(bounds) {
  return { bounds, start_s: 0, span_s: bounds.end_s, firstRow: 0 };
}

/** @param {View} view */
export function isFitted({ span_s, bounds }) {
  return span_s >= bounds.end_s;
}

/** Return the height of a row in px. @param {View} view */
export function rowHeight_px({ span_s, bounds }) {
  const fitted_px = bounds.paneHeight_px / bounds.numRows;
  const zoomed_px = (fitted_px * bounds.end_s) / span_s;
  return Math.min(Math.max(fitted_px, bounds.readableRow_px), zoomed_px);
}

/** Return the number of visible rows; a cut row counts by its share. @param {View} view */
export function rowsShown(view) {
  const { numRows, paneHeight_px } = view.bounds;
  return Math.min(numRows, paneHeight_px / rowHeight_px(view));
}

/**
 * Zoom in by a factor, or out if it is below 1, around a place.
 * @param {View} view
 * @param {number} factor
 * @param {number} [across] place from 0 (left) to 1
 * @param {number} [down] place from 0 (top) to 1
 */
export function zoomed(view, factor, across = 0.5, down = 0.5) {
  const { bounds } = view;
  const span_s = clamp(view.span_s / factor, bounds.shortestSpan_s, bounds.end_s);
  const near = { ...view, start_s: view.start_s + across * (view.span_s - span_s), span_s };
  const row = view.firstRow + down * rowsShown(view);
  return within({ ...near, firstRow: row - down * rowsShown(near) });
}

/**
 * Move the view, at most to the edges.
 * @param {View} view
 * @param {number} bySpans to the right, in shown spans
 * @param {number} [byRows] downwards
 */
export function panned(view, bySpans, byRows = 0) {
  const start_s = view.start_s + bySpans * view.span_s;
  return within({ ...view, start_s, firstRow: view.firstRow + byRows });
}

/**
 * Move the view as little as possible to show a box, or the left end of a longer one.
 * @param {View} view
 * @param {{start_s: number, end_s: number, row: number}} box
 */
export function showing(view, { start_s, end_s, row }) {
  const left_s = Math.min(Math.max(view.start_s, end_s - view.span_s), start_s);
  const firstRow = Math.min(Math.max(view.firstRow, row + 1 - rowsShown(view)), row);
  return within({ ...view, start_s: left_s, firstRow });
}

/** Return the view cut to its bounds. @param {View} view @returns {View} */
export function within(view) {
  const { bounds } = view;
  const span_s = clamp(view.span_s, bounds.shortestSpan_s, bounds.end_s);
  const sized = { ...view, start_s: clamp(view.start_s, 0, bounds.end_s - span_s), span_s };
  const firstRow = clamp(view.firstRow, 0, bounds.numRows - rowsShown(sized));
  return { ...sized, firstRow };
}

/** @param {View} one @param {View} other */
export function isSameView(one, other) {
  return (
    one.start_s === other.start_s && one.span_s === other.span_s && one.firstRow === other.firstRow
  );
}

/** @param {number} value @param {number} low @param {number} high */
function clamp(value, low, high) {
  return Math.min(Math.max(value, low), Math.max(low, high));
}

/**
 * Place on the timeline.
 * @typedef {object} Place
 * @property {number} across from 0 (left edge of the plot) to 1; beyond these outside of it
 * @property {number} down from 0 (top of the pane) to 1
 * @property {number} width of the plot, px
 * @property {number} height px
 * @property {number} pane 0: the upper one
 */

/**
 * Surface that gestures act on.
 * @typedef {object} Surface
 * @property {() => View} view
 * @property {(view: View) => void} change
 * @property {(x: number, y: number) => Place} placeAt of client coordinates
 * @property {(place: Place | null) => void} point gets the place of an idle pointer; null: none
 * @property {(place: Place) => void} pick gets the place of a click or tap
 */

const WHEEL_ZOOM = 0.0018; // per px of the wheel
const KEY_ZOOM = 1.5;
const KEY_PAN = 0.15; // of what is shown
const CLICK_MOVES = 4; // px
// A page that is scrolled goes on scrolling when the timeline comes under the pointer.
const SCROLL_LASTS_MS = 250;

/**
 * Zoom, pan and pick with wheel and pointers.
 * @param {HTMLElement} element
 * @param {Surface} surface
 * @returns {() => void} ends it
 */
export function bindGestures(element, surface) {
  const ended = new AbortController();
  bindWheel(element, surface, ended.signal);
  bindPointers(element, surface);
  return () => ended.abort();
}

/**
 * Zoom or pan by a key; false: it has no meaning here.
 * @param {KeyboardEvent} event
 * @param {Surface} surface
 */
export function moveByKey(event, surface) {
  if (hasModifier(event)) return false;
  const view = surface.view();
  /** @type {Record<string, () => View>} */
  const moves = {
    ArrowLeft: () => panned(view, -KEY_PAN),
    ArrowRight: () => panned(view, KEY_PAN),
    ArrowUp: () => panned(view, 0, -1),
    ArrowDown: () => panned(view, 0, 1),
    "+": () => zoomed(view, KEY_ZOOM),
    "=": () => zoomed(view, KEY_ZOOM),
    "-": () => zoomed(view, 1 / KEY_ZOOM),
    0: () => fitted(view.bounds),
  };
  const move = moves[event.key];
  if (!move) return false;
  surface.change(move());
  return true;
}

/** @param {HTMLElement} element @param {Surface} surface @param {AbortSignal} signal */
function bindWheel(element, surface, signal) {
  let scrolledAt_ms = Number.NEGATIVE_INFINITY;
  const onScroll = () => {
    scrolledAt_ms = performance.now();
  };
  window.addEventListener("scroll", onScroll, { signal, passive: true, capture: true });

  /** @param {WheelEvent} event */
  const onWheel = (event) => {
    const { ctrlKey, deltaX, deltaY } = event;
    const isMeant = ctrlKey || performance.now() - scrolledAt_ms > SCROLL_LASTS_MS;
    const view = surface.view();
    const isSideways = event.shiftKey || Math.abs(deltaX) > Math.abs(deltaY);
    // When all is shown the wheel scrolls the page.
    const isIdle = isFitted(view) && (isSideways || deltaY > 0) && !ctrlKey;
    if (!isMeant || isIdle) return;
    event.preventDefault();
    const pixels = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const place = surface.placeAt(event.clientX, event.clientY);
    if (isSideways) {
      surface.change(panned(view, ((deltaX || deltaY) * pixels) / place.width));
    } else {
      const factor = Math.exp(-deltaY * pixels * WHEEL_ZOOM * (ctrlKey ? 4 : 1));
      surface.change(zoomed(view, factor, clamp(place.across, 0, 1), clamp(place.down, 0, 1)));
    }
  };
  element.addEventListener("wheel", onWheel, { passive: false });
}

/** @typedef {{x: number, y: number}} Point in client coordinates */

/** Pan with one pointer, zoom with two. @param {HTMLElement} element @param {Surface} surface */
function bindPointers(element, surface) {
  /** @type {Map<number, Point>} */
  const held = new Map();
  let moved = 0;

  element.addEventListener("pointerdown", ({ button, pointerId, clientX, clientY }) => {
    if (button !== 0) return;
    held.set(pointerId, { x: clientX, y: clientY });
    if (held.size === 1) moved = 0;
    element.setPointerCapture(pointerId);
  });
  element.addEventListener("pointermove", ({ pointerId, clientX, clientY }) => {
    const last = held.get(pointerId);
    const now = { x: clientX, y: clientY };
    if (!last) {
      surface.point(surface.placeAt(now.x, now.y));
      return;
    }
    moved += Math.hypot(now.x - last.x, now.y - last.y);
    if (held.size === 1 && moved < CLICK_MOVES) return;
    surface.point(null);
    const other = [...held.keys()].find((id) => id !== pointerId);
    surface.change(dragged(surface, last, now, other === undefined ? null : held.get(other)));
    held.set(pointerId, now);
  });
  /** @param {PointerEvent} event */
  const onUp = ({ type, pointerId, clientX, clientY }) => {
    if (!held.delete(pointerId)) return;
    if (type === "pointerup" && moved < CLICK_MOVES && held.size === 0) {
      surface.pick(surface.placeAt(clientX, clientY));
    }
  };
  element.addEventListener("pointerup", onUp);
  element.addEventListener("pointercancel", onUp);
  element.addEventListener("pointerleave", () => surface.point(null));
}

/**
 * @param {Surface} surface
 * @param {Point} last
 * @param {Point} now
 * @param {Point | null | undefined} other second finger
 */
function dragged(surface, last, now, other) {
  const view = surface.view();
  const place = surface.placeAt(now.x, now.y);
  // Each of two fingers moves the view by half.
  const weight = other ? 0.5 : 1;
  const bySpans = (weight * (last.x - now.x)) / place.width;
  const byRows = ((weight * (last.y - now.y)) / place.height) * rowsShown(view);
  const moved = panned(view, bySpans, byRows);
  if (!other) return moved;
  const before = Math.max(20, Math.hypot(last.x - other.x, last.y - other.y));
  const after = Math.max(20, Math.hypot(now.x - other.x, now.y - other.y));
  const { across, down } = surface.placeAt((now.x + other.x) / 2, (now.y + other.y) / 2);
  return zoomed(moved, after / before, clamp(across, 0, 1), clamp(down, 0, 1));
}
