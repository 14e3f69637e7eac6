// Mouse, touch and keys on the timeline, as changes of its view.

import { fitted, isFitted, panned, rowsShown, zoomed } from "./timeline_view.js";

/** @typedef {import("./timeline_view.js").View} View */
/** @typedef {import("./timeline_view.js").Bounds} Bounds */

/**
 * A place on the timeline.
 *
 * @typedef {object} Place
 * @property {number} across 0 (left edge of the plot) to 1; outside where the pointer is.
 * @property {number} down likewise, within the pane.
 * @property {number} width of the plot, px.
 * @property {number} height px.
 * @property {number} pane 0 is the upper one.
 */

/**
 * What the gestures act on.
 *
 * @typedef {object} Surface
 * @property {() => View} view
 * @property {() => Bounds} bounds
 * @property {(view: View) => void} change
 * @property {(x: number, y: number) => Place} placeAt of client coordinates.
 * @property {(place: Place | null) => void} point the pointer is here and does nothing; null: gone.
 * @property {(place: Place) => void} pick clicked or tapped.
 */

const WHEEL_ZOOM = 0.0018; // per px of the wheel
const KEY_ZOOM = 1.5;
const KEY_PAN = 0.15; // of what is shown
const CLICK_MOVES = 4; // px
// A page that is being scrolled goes on scrolling when the timeline comes under the pointer.
const SCROLL_LASTS_MS = 250;

/**
 * @param {HTMLElement} element
 * @param {Surface} surface
 * @returns {() => void} lets go of the element.
 */
export function bindGestures(element, surface) {
  const ended = new AbortController();
  const options = { signal: ended.signal };
  bindWheel(element, surface, options);
  bindPointers(element, surface, options);
  return () => ended.abort();
}

/**
 * The keys that move the view; false: it is none of them.
 *
 * @param {KeyboardEvent} event
 * @param {Surface} surface
 */
export function moveByKey(event, surface) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const [view, bounds] = [surface.view(), surface.bounds()];
  /** @type {Record<string, () => View>} */
  const moves = {
    ArrowLeft: () => panned(view, bounds, -KEY_PAN),
    ArrowRight: () => panned(view, bounds, KEY_PAN),
    ArrowUp: () => panned(view, bounds, 0, -1),
    ArrowDown: () => panned(view, bounds, 0, 1),
    "+": () => zoomed(view, bounds, KEY_ZOOM),
    "=": () => zoomed(view, bounds, KEY_ZOOM),
    "-": () => zoomed(view, bounds, 1 / KEY_ZOOM),
    0: () => fitted(bounds),
  };
  const move = moves[event.key];
  if (!move) return false;
  surface.change(move());
  return true;
}

/**
 * @param {HTMLElement} element
 * @param {Surface} surface
 * @param {{signal: AbortSignal}} options
 */
function bindWheel(element, surface, options) {
  let scrolledAt_ms = Number.NEGATIVE_INFINITY;
  const onScroll = () => {
    scrolledAt_ms = performance.now();
  };
  window.addEventListener("scroll", onScroll, { ...options, passive: true, capture: true });
  element.addEventListener(
    "wheel",
    (event) => {
      const isMeant = event.ctrlKey || performance.now() - scrolledAt_ms > SCROLL_LASTS_MS;
      const [view, bounds] = [surface.view(), surface.bounds()];
      const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      // Zoomed out as far as it goes, the wheel scrolls the page.
      const isIdle = isFitted(view, bounds) && (isSideways || event.deltaY > 0) && !event.ctrlKey;
      if (!isMeant || isIdle) return;
      event.preventDefault();
      const pixels = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
      const place = surface.placeAt(event.clientX, event.clientY);
      if (isSideways) {
        const by = (event.deltaX || event.deltaY) * pixels;
        surface.change(panned(view, bounds, by / place.width));
      } else {
        const factor = Math.exp(-event.deltaY * pixels * WHEEL_ZOOM * (event.ctrlKey ? 4 : 1));
        surface.change(zoomed(view, bounds, factor, share(place.across), share(place.down)));
      }
    },
    { ...options, passive: false },
  );
}

/**
 * One pointer drags, two pinch.
 *
 * @param {HTMLElement} element
 * @param {Surface} surface
 * @param {{signal: AbortSignal}} options
 */
function bindPointers(element, surface, options) {
  /** @type {Map<number, {x: number, y: number}>} */
  const held = new Map();
  let moved = 0;

  /** @param {PointerEvent} event */
  const onDown = (event) => {
    if (event.button !== 0) return;
    held.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (held.size === 1) moved = 0;
    capture(element, event.pointerId);
  };

  /** @param {PointerEvent} event */
  const onMove = (event) => {
    const last = held.get(event.pointerId);
    const now = { x: event.clientX, y: event.clientY };
    if (!last) {
      surface.point(surface.placeAt(now.x, now.y));
      return;
    }
    moved += Math.hypot(now.x - last.x, now.y - last.y);
    if (held.size === 1 && moved < CLICK_MOVES) return;
    surface.point(null);
    const others = [...held].filter(([pointer]) => pointer !== event.pointerId).map(([, at]) => at);
    surface.change(dragged(surface, last, now, others[0]));
    held.set(event.pointerId, now);
  };

  /** @param {PointerEvent} event */
  const onUp = (event) => {
    if (!held.delete(event.pointerId)) return;
    if (event.type === "pointerup" && moved < CLICK_MOVES && held.size === 0) {
      surface.pick(surface.placeAt(event.clientX, event.clientY));
    }
  };

  element.addEventListener("pointerdown", onDown, options);
  element.addEventListener("pointermove", onMove, options);
  element.addEventListener("pointerup", onUp, options);
  element.addEventListener("pointercancel", onUp, options);
  element.addEventListener("pointerleave", () => surface.point(null), options);
}

/**
 * @param {Surface} surface
 * @param {{x: number, y: number}} last
 * @param {{x: number, y: number}} now
 * @param {{x: number, y: number} | undefined} other the second finger.
 * @returns {View}
 */
function dragged(surface, last, now, other) {
  const bounds = surface.bounds();
  const view = surface.view();
  const place = surface.placeAt(now.x, now.y);
  const rows = rowsShown(view, bounds);
  // Of two fingers each moves the view by half.
  const weight = other ? 0.5 : 1;
  const moved = panned(
    view,
    bounds,
    (weight * (last.x - now.x)) / place.width,
    ((weight * (last.y - now.y)) / place.height) * rows,
  );
  if (!other) return moved;
  const before = Math.max(20, Math.hypot(last.x - other.x, last.y - other.y));
  const after = Math.max(20, Math.hypot(now.x - other.x, now.y - other.y));
  const middle = surface.placeAt((now.x + other.x) / 2, (now.y + other.y) / 2);
  return zoomed(moved, bounds, after / before, share(middle.across), share(middle.down));
}

/**
 * Let an element hear of a pointer wherever it goes, until it is let go.
 *
 * @param {HTMLElement} element
 * @param {number} pointer
 */
export function capture(element, pointer) {
  try {
    element.setPointerCapture(pointer);
  } catch {
    // It was let go in the meantime.
  }
}

/** @param {number} place */
function share(place) {
  return Math.min(1, Math.max(0, place));
}
