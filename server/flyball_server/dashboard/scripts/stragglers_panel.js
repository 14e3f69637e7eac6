// Stragglers: GPUs slower than their profile, and the plan's adaptation to them.

import { make, panelHead, setChildren, setText } from "./elements.js";
import { clockTime, fixed } from "./format.js";
import { makeRow, makeTable } from "./tables.js";

/**
 * @import { Panel } from "./job_page.js"
 * @import { Straggler } from "./wire_types.js"
 */

const REASONS = new Map([
  ["power", "held down by its power limit"],
  ["thermal", "held down by heat"],
  ["slow", "slow, cause unknown"],
]);

const CELLS = ["td", "td", "td"];

/** @param {HTMLElement} element @returns {Panel} */
export function createStragglersPanel(element) {
  const note = make("span.note");
  const heads = ["Rank", "How slow", "Known", "Plan"];
  const { frame, body } = makeTable("Stragglers", { selector: "table.stragglers", heads });
  setChildren(element, panelHead("Stragglers", note), frame);
  element.hidden = true;
  let shown = "";
  return {
    update({ stragglers, overview }) {
      const content = JSON.stringify([stragglers, overview.emulated]);
      if (content === shown) return;
      shown = content;
      element.hidden = stragglers.length === 0;
      setText(note, overview.emulated ? "on emulated GPUs" : "");
      setChildren(body, ...stragglers.map((each) => makeRow(rowTexts(each), CELLS)));
    },
  };
}

/** @param {Straggler} straggler */
function rowTexts({ rank, slowdown, reason, source, from_time, until_time, is_planned }) {
  const since = from_time === null ? "" : `, since ${clockTime(new Date(from_time))}`;
  const until = until_time === null ? "" : ` until ${clockTime(new Date(until_time))}`;
  return [
    String(rank),
    `${fixed(slowdown, 2)}\u00d7 as long; ${REASONS.get(reason) ?? reason}`,
    source + since + until,
    is_planned ? "adapted to it" : "not yet adapted to it",
  ];
}
