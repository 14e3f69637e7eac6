// The frontier's figures as a table, for those who cannot see the chart.

import { make, setChildren } from "./elements.js";
import { joules, percent, percentAbove, seconds } from "./format.js";
import { pointWords } from "./frontier_curve.js";

const HEADS = ["Plan", "Iteration time", "Energy", "Saving", "Time against baseline", "Gap"];

export class FrontierTable {
  constructor() {
    this._body = make("tbody");
    const heads = HEADS.map((text) => make("th", { scope: "col" }, text));
    const caption = make("caption", {}, "One iteration; predicted where nothing else is said");
    const table = make(
      "table",
      {},
      caption,
      make("thead", {}, make("tr", {}, ...heads)),
      this._body,
    );
    this.element = make(
      "details",
      { class: "frontier-figures" },
      make("summary", {}, "Figures of the frontier as a table"),
      make(
        "div",
        {
          class: "table-frame",
          tabindex: 0,
          role: "group",
          "aria-label": "Figures of the frontier",
        },
        table,
      ),
    );
  }

  /**
   * @param {import("./wire_types.js").FrontierView} frontier
   * @param {import("./frontier_curve.js").Mark[]} marks
   */
  show({ points, baseline }, marks) {
    const compared = marks.map(({ label, time_s, energy_j }) => [
      label,
      seconds(time_s),
      joules(energy_j),
      percent(-percentAbove(energy_j, baseline.energy_j)),
      percent(percentAbove(time_s, baseline.iteration_time_s), { signed: true, digits: 2 }),
      "",
    ]);
    const plans = points.map((point, index) => {
      const { time, energy, saving, slowdown, gap } = pointWords(point, baseline);
      return [`frontier ${index + 1}`, time, energy, saving, slowdown, gap];
    });
    setChildren(
      this._body,
      ...[...compared, ...plans].map(([name, ...figures]) =>
        make(
          "tr",
          {},
          make("th", { scope: "row" }, name),
          ...figures.map((text) => make("td", { class: "number" }, text)),
        ),
      ),
    );
  }
}
