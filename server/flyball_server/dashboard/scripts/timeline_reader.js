// The box of the timeline that is read, by pointer or keys.

import { hasModifier } from "./elements.js";
import { lastStartedBy, nearestPosition, positionAt } from "./timeline_layout.js";
import { showing } from "./timeline_view.js";
import { instructionWords, waitWords } from "./timeline_words.js";

/**
 * @import { Layout } from "./timeline_layout.js"
 * @import { View } from "./timeline_view.js"
 */

/**
 * Place in the iteration.
 * @typedef {object} Spot
 * @property {number} pane
 * @property {number} row
 * @property {number} position of the instruction in its row; -1: a wait
 * @property {number} time_s
 */

export class TimelineReader {
  constructor() {
    /** @type {Layout[]} */
    this._layouts = [];
    /** @type {Spot | null} */
    this.spot = null;
    /** True while keys go from box to box. */
    this.isReading = false;
  }

  /** @param {Layout[]} layouts of the plan and the baseline */
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
    this.spot = null;
    if (!place) return;
    const layout = this._layouts[place.pane];
    const row = layout?.rows[place.row];
    if (!row || place.time_s < 0 || place.time_s > layout.iterationTime_s) return;
    this.spot = { ...place, position: positionAt(row, place.time_s) };
  }

  /** Return what is read in lines. @returns {string[]} */
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
    const until_s = before + 1 < count ? start_s[before + 1] : layout.iterationTime_s;
    return waitWords(layout, row, from_s, until_s);
  }

  /** Return the view moved to the instruction that is read. @param {View} view */
  viewFor(view) {
    if (!this.spot || this.spot.position < 0) return view;
    const { pane, row, position } = this.spot;
    const { start_s, end_s } = this._layouts[pane].rows[row];
    return showing(view, { start_s: start_s[position], end_s: end_s[position], row });
  }

  /**
   * Handle a key: Enter begins, Escape ends, arrows go on; false: it has no meaning here.
   * @param {KeyboardEvent} event
   * @param {View} view
   * @param {[number, number]} visibleRows
   */
  onKey(event, view, visibleRows) {
    if (hasModifier(event)) return false;
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

  /**
   * Go to the box at the same time in another row, or beyond the edge in the other pane.
   * @param {number} row
   */
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
