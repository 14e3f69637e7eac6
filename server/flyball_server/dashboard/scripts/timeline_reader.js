// Which box of the timeline is being read, by the pointer or by keys.

import { lastStartedBy, nearestPosition, positionAt } from "./timeline_layout.js";
import { showing } from "./timeline_view.js";
import { instructionWords, waitWords } from "./timeline_words.js";

/** @typedef {import("./timeline_layout.js").Layout} Layout */
/** @typedef {import("./timeline_view.js").View} View */
/** @typedef {import("./timeline_view.js").Bounds} Bounds */

/**
 * A place in the iteration.
 *
 * @typedef {object} Spot
 * @property {number} pane
 * @property {number} row
 * @property {number} position of the instruction in its row; -1: it waits there.
 * @property {number} time_s
 */

export class TimelineReader {
  constructor() {
    /** @type {Layout[]} */
    this._layouts = [];
    /** @type {Spot | null} */
    this.spot = null;
    /** Whether keys go from box to box. */
    this.isReading = false;
  }

  /** @param {Layout[]} layouts of the panes: the plan's, the baseline's. */
  show(layouts) {
    this._layouts = layouts;
    this.stop();
    this.spot = null;
  }

  stop() {
    this.isReading = false;
  }

  /** @param {{pane: number, row: number, time_s: number} | null} place */
  pointAt(place) {
    if (!place) {
      this.spot = null;
      return;
    }
    const layout = this._layouts[place.pane];
    const row = layout?.rows[place.row];
    if (!row || place.time_s < 0 || place.time_s > layout.iterationTime_s) {
      this.spot = null;
      return;
    }
    this.spot = { ...place, position: positionAt(row, place.time_s) };
  }

  /** The lines that tell what is read. @returns {string[]} */
  words() {
    if (!this.spot) return [];
    const { pane, row, position, time_s } = this.spot;
    const layout = this._layouts[pane];
    if (position >= 0) {
      return instructionWords(layout, row, position, pane === 0 ? this._layouts[1] : null);
    }
    const { start_s, end_s, count } = layout.rows[row];
    const before = lastStartedBy(layout.rows[row], time_s);
    const from_s = before >= 0 ? end_s[before] : 0;
    return waitWords(
      layout,
      row,
      from_s,
      before + 1 < count ? start_s[before + 1] : layout.iterationTime_s,
    );
  }

  /** The instruction that is read, in time and rows; null while none is. */
  box() {
    if (!this.spot || this.spot.position < 0) return null;
    const { pane, row, position } = this.spot;
    const { start_s, end_s } = this._layouts[pane].rows[row];
    return { start_s: start_s[position], end_s: end_s[position], row };
  }

  /**
   * The view moved so that what is read is seen.
   *
   * @param {View} view
   * @param {Bounds} bounds
   */
  viewFor(view, bounds) {
    const box = this.box();
    return box ? showing(view, bounds, box) : view;
  }

  /**
   * Enter begins, Escape ends, arrows go on; false: the key is none of the reader's.
   *
   * @param {KeyboardEvent} event
   * @param {View} view
   * @param {[number, number]} visibleRows
   */
  onKey(event, view, visibleRows) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (event.key === "Escape" && this.spot) {
      this.stop();
      this.spot = null;
      return true;
    }
    if (event.key === "Enter" && !this.isReading) {
      this._begin(view, visibleRows);
      return true;
    }
    if (!this.isReading || !this.spot) return false;
    return this._move(event.key);
  }

  /** @param {View} view @param {[number, number]} visibleRows */
  _begin(view, [firstRow]) {
    this.isReading = true;
    if (this.spot && this.spot.position >= 0) return;
    const { pane, row, time_s } = this.spot ?? { pane: 0, row: firstRow, time_s: view.start_s };
    this._go(pane, row, nearestPosition(this._layouts[pane].rows[row], time_s));
  }

  /** @param {string} key */
  _move(key) {
    const { pane, row, position } = /** @type {Spot} */ (this.spot);
    const at = this._layouts[pane].rows[row];
    if (key === "ArrowLeft") this._go(pane, row, position - 1);
    else if (key === "ArrowRight") this._go(pane, row, position + 1);
    else if (key === "Home") this._go(pane, row, 0);
    else if (key === "End") this._go(pane, row, at.count - 1);
    else if (key === "ArrowUp") this._goToRow(row - 1);
    else if (key === "ArrowDown") this._goToRow(row + 1);
    else return false;
    return true;
  }

  /** To the box that runs at the same time there; over the edge into the other pane. @param {number} row */
  _goToRow(row) {
    const spot = /** @type {Spot} */ (this.spot);
    let { pane } = spot;
    let to = row;
    if (row < 0 && pane === 1) [pane, to] = [0, this._layouts[0].rows.length - 1];
    else if (row >= this._layouts[pane].rows.length && pane === 0) [pane, to] = [1, 0];
    const next = this._layouts[pane].rows[to];
    if (next) this._go(pane, to, nearestPosition(next, spot.time_s));
  }

  /** @param {number} pane @param {number} row @param {number} position */
  _go(pane, row, position) {
    const at = this._layouts[pane].rows[row];
    if (!at || position < 0 || position >= at.count) return;
    this.spot = { pane, row, position, time_s: (at.start_s[position] + at.end_s[position]) / 2 };
  }
}
