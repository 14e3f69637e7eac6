// All of the iteration in a strip, with a frame around the part that the timeline shows.

import { make } from "./elements.js";
import { capture } from "./timeline_gestures.js";
import { createPalette } from "./timeline_columns.js";
import { rasterize } from "./timeline_raster.js";
import { isFitted, within } from "./timeline_view.js";

/** @typedef {import("./timeline_view.js").View} View */
/** @typedef {import("./timeline_view.js").Bounds} Bounds */
/** @typedef {import("./timeline_layout.js").Layout} Layout */

const HEIGHT_PX = 32;

export class TimelineMinimap {
  /**
   * @param {(view: View) => void} change
   * @param {() => View} view
   */
  constructor(change, view) {
    this._canvas = document.createElement("canvas");
    this._canvas.className = "timeline-map-canvas";
    this._frame = make("div", { class: "timeline-map-frame" });
    // What it does, the timeline's keys do too.
    this.element = make(
      "div",
      { class: "timeline-map", "aria-hidden": "true" },
      this._canvas,
      this._frame,
    );
    this._width = 0;
    /** @type {{layout: Layout, palette: import("./timeline_columns.js").Palette, bounds: Bounds} | null} */
    this._shown = null;
    this._ended = new AbortController();
    this._bind(change, view);
  }

  destroy() {
    this._ended.abort();
  }

  /**
   * @param {Layout} layout
   * @param {import("./clock_scale.js").ClockScale} scale
   * @param {import("./clock_scale.js").Rgb} waiting
   * @param {Bounds} bounds
   */
  show(layout, scale, waiting, bounds) {
    this._shown = { layout, palette: createPalette(scale, waiting), bounds };
    this._paint();
  }

  /** @param {number} left px @param {number} width px, of the timeline's plot. */
  resize(left, width) {
    this._width = Math.max(1, Math.round(width));
    this.element.style.setProperty("margin-left", `${left}px`);
    this.element.style.setProperty("width", `${this._width}px`);
    this._paint();
  }

  /** @param {View} view @param {Bounds} bounds */
  draw(view, bounds) {
    this._frame.hidden = isFitted(view, bounds);
    this._frame.style.setProperty("left", `${(100 * view.start_s) / bounds.end_s}%`);
    this._frame.style.setProperty("width", `${(100 * view.span_s) / bounds.end_s}%`);
  }

  _paint() {
    const context = this._canvas.getContext("2d");
    if (!this._shown || !this._width || !context) return;
    const { layout, palette, bounds } = this._shown;
    const ratio = window.devicePixelRatio || 1;
    const height = Math.round(HEIGHT_PX * ratio);
    const pixels = new ImageData(Math.round(this._width * ratio), height);
    this._canvas.width = pixels.width;
    this._canvas.height = height;
    const columns = { start_s: 0, span_s: bounds.end_s, count: pixels.width };
    const rows = { firstRow: 0, rowHeight: height / layout.rows.length };
    rasterize(layout, columns, rows, palette, new Uint32Array(pixels.data.buffer));
    context.putImageData(pixels, 0, 0);
  }

  /** @param {(view: View) => void} change @param {() => View} view */
  _bind(change, view) {
    const options = { signal: this._ended.signal };
    let isHeld = false;
    /** @param {PointerEvent} event */
    const onMove = (event) => {
      if (!isHeld || !this._shown) return;
      const { left, width } = this.element.getBoundingClientRect();
      const { bounds } = this._shown;
      const middle_s = ((event.clientX - left) / width) * bounds.end_s;
      const now = view();
      change(within({ ...now, start_s: middle_s - now.span_s / 2 }, bounds));
    };
    this.element.addEventListener(
      "pointerdown",
      (event) => {
        isHeld = true;
        capture(this.element, event.pointerId);
        onMove(event);
      },
      options,
    );
    this.element.addEventListener("pointermove", onMove, options);
    for (const name of ["pointerup", "pointercancel"]) {
      this.element.addEventListener(
        name,
        () => {
          isHeld = false;
        },
        options,
      );
    }
  }
}
