// The whole iteration in a strip, with a frame around the part that the timeline shows.

import { make } from "./elements.js";
import { createPalette, rasterize } from "./timeline_raster.js";
import { isFitted, within } from "./timeline_view.js";

/**
 * @import { ClockScale, Rgb } from "./clock_scale.js"
 * @import { Layout } from "./timeline_layout.js"
 * @import { Palette } from "./timeline_raster.js"
 * @import { View } from "./timeline_view.js"
 */

const HEIGHT_PX = 32;

export class TimelineMinimap {
  /** @param {(view: View) => void} change @param {() => View} view */
  constructor(change, view) {
    this._canvas = make("canvas.timeline-map-canvas");
    this._frame = make("div.timeline-map-frame");
    // Hidden from assistive technology: the timeline's keys do the same.
    this.element = make("div.timeline-map", { "aria-hidden": "true" }, this._canvas, this._frame);
    this._width = 0;
    /** @type {{layout: Layout, palette: Palette, end_s: number} | null} */
    this._shown = null;
    /** @param {PointerEvent} event */
    const onMove = ({ pointerId, clientX }) => {
      if (!this.element.hasPointerCapture(pointerId)) return;
      const { left, width } = this.element.getBoundingClientRect();
      const now = view();
      const middle_s = ((clientX - left) / width) * now.bounds.end_s;
      change(within({ ...now, start_s: middle_s - now.span_s / 2 }));
    };
    this.element.addEventListener("pointermove", onMove);
    this.element.addEventListener("pointerdown", (event) => {
      this.element.setPointerCapture(event.pointerId);
      onMove(event);
    });
  }

  /**
   * @param {Layout} layout
   * @param {ClockScale} scale
   * @param {Rgb} waiting
   * @param {number} end_s right edge
   */
  show(layout, scale, waiting, end_s) {
    this._shown = { layout, palette: createPalette(scale, waiting), end_s };
    this._paint();
  }

  /** @param {number} left px @param {number} width px, of the timeline's plot. */
  resize(left, width) {
    this._width = Math.max(1, Math.round(width));
    this.element.style.marginLeft = `${left}px`;
    this.element.style.width = `${this._width}px`;
    this._paint();
  }

  /** @param {View} view */
  draw(view) {
    const { end_s } = view.bounds;
    this._frame.hidden = isFitted(view);
    this._frame.style.left = `${(100 * view.start_s) / end_s}%`;
    this._frame.style.width = `${(100 * view.span_s) / end_s}%`;
  }

  _paint() {
    const context = this._canvas.getContext("2d");
    if (!this._shown || !this._width || !context) return;
    const { layout, palette, end_s } = this._shown;
    const height = Math.round(HEIGHT_PX * devicePixelRatio);
    const pixels = new ImageData(Math.round(this._width * devicePixelRatio), height);
    this._canvas.width = pixels.width;
    this._canvas.height = height;
    const columns = { start_s: 0, span_s: end_s, count: pixels.width };
    const rows = { firstRow: 0, rowHeight: height / layout.rows.length };
    rasterize(layout, columns, rows, palette, new Uint32Array(pixels.data.buffer));
    context.putImageData(pixels, 0, 0);
  }
}
