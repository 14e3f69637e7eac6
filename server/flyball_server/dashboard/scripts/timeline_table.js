// Figures of the rows that the timeline shows, as a table.

import { make, setText } from "./elements.js";
import { joules, megahertz, percent } from "./format.js";
import { DetailsTable, makeRow } from "./tables.js";
import { milliseconds, stageFigures } from "./timeline_words.js";

/** @import { Layout } from "./timeline_layout.js" */

// Updates are delayed while the view moves.
const DELAY_MS = 150;
const FIGURES = ["Computes", "Mean clock", "Energy while computing", "Waits"];
const HEADS = FIGURES.flatMap((figure) => [`${figure}, plan`, `${figure}, baseline`]);

export class TimelineTable {
  constructor() {
    const details = make("details.timeline-figures");
    const label = "Figures of the shown stages";
    this._table = new DetailsTable(details, `${label} as a table`, label, {
      selector: "table.timeline-table",
      heads: ["Row", ...HEADS],
    });
    this.element = details;
    this._caption = make("caption");
    this._table.table.prepend(this._caption);
    this._timer = 0;
  }

  destroy() {
    clearTimeout(this._timer);
  }

  /**
   * @param {Layout} plan
   * @param {Layout} baseline
   * @param {[number, number]} rows first, and the one after the last
   */
  update(plan, baseline, [first, last]) {
    const shown = `rows ${first + 1} to ${last} of ${plan.rows.length}`;
    clearTimeout(this._timer);
    this._timer = setTimeout(() => {
      setText(this._caption, `One iteration, predicted; ${shown}`);
      this._table.show(() =>
        plan.rows.slice(first, last).map((row, index) => {
          const figures = [plan, baseline].map((layout) => stageFigures(layout, first + index));
          return makeRow([
            row.name,
            ...figures.map(({ busy_s }) => milliseconds(busy_s)),
            ...figures.map(({ meanClock_mhz }) => megahertz(meanClock_mhz)),
            ...figures.map(({ busyEnergy_j }) => joules(busyEnergy_j)),
            ...figures.map(({ bubble_percent }) => percent(bubble_percent)),
          ]);
        }),
      );
    }, DELAY_MS);
  }
}
