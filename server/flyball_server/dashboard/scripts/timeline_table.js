// The figures of the rows that the timeline shows, as a table for those who cannot see it.

import { make, setChildren, setText } from "./elements.js";
import { joules, megahertz, percent } from "./format.js";
import { milliseconds, stageFigures } from "./timeline_words.js";

/** @typedef {import("./timeline_layout.js").Layout} Layout */

const HEADS = [
  "Row",
  ...["Computes", "Mean clock", "Energy while computing", "Waits"].flatMap((figure) => [
    `${figure}, plan`,
    `${figure}, baseline`,
  ]),
];

export class TimelineTable {
  constructor() {
    this._caption = make("caption");
    this._body = make("tbody");
    const heads = HEADS.map((text) => make("th", { scope: "col" }, text));
    const table = make(
      "table",
      { class: "timeline-table" },
      this._caption,
      make("thead", {}, make("tr", {}, ...heads)),
      this._body,
    );
    this.element = make(
      "details",
      { class: "timeline-figures" },
      make("summary", {}, "Figures of the shown stages as a table"),
      make(
        "div",
        {
          class: "table-frame",
          tabindex: 0,
          role: "group",
          "aria-label": "Figures of the shown stages",
        },
        table,
      ),
    );
    /** @type {(() => void) | null} */
    this._fill = null;
    this.element.addEventListener("toggle", () => this._refresh());
    this._told = "";
    this._timer = 0;
  }

  destroy() {
    clearTimeout(this._timer);
  }

  /**
   * @param {Layout} plan
   * @param {Layout} baseline
   * @param {[number, number]} rows the first, and the one after the last.
   */
  update(plan, baseline, rows) {
    this._fill = () => this._show(plan, baseline, rows);
    clearTimeout(this._timer);
    // Not at every frame of a movement.
    this._timer = setTimeout(() => this._refresh(), 150);
  }

  _refresh() {
    if (this.element.hasAttribute("open")) this._fill?.();
  }

  /** @param {Layout} plan @param {Layout} baseline @param {[number, number]} rows */
  _show(plan, baseline, [first, last]) {
    setText(
      this._caption,
      `One iteration, predicted; rows ${first + 1} to ${last} of ${plan.rows.length}`,
    );
    setChildren(
      this._body,
      ...plan.rows.slice(first, last).map((row, index) => {
        const figures = [plan, baseline].map((layout) => stageFigures(layout, first + index));
        const cells = [
          ...figures.map(({ busy_s }) => milliseconds(busy_s)),
          ...figures.map(({ meanClock_mhz }) =>
            megahertz(Number.isFinite(meanClock_mhz) ? meanClock_mhz : null),
          ),
          ...figures.map(({ busyEnergy_j }) => joules(busyEnergy_j)),
          ...figures.map(({ bubble_percent }) => percent(bubble_percent)),
        ];
        return make(
          "tr",
          {},
          make("th", { scope: "row" }, row.name),
          ...cells.map((text) => make("td", { class: "number" }, text)),
        );
      }),
    );
  }
}
