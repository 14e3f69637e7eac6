// The GPUs that are slower than the profile says, and whether the plan is made for them.

import { make, setChildren, setText } from "./elements.js";
import { clockTime, fixed } from "./format.js";

/** @typedef {import("./wire_types.js").StragglerView} StragglerView */

const REASONS = new Map([
  ["power", "held down by its power limit"],
  ["thermal", "held down by heat"],
  ["slow", "slow, cause unknown"],
]);
const HEADS = ["Rank", "How slow", "Known", "Plan"];

/**
 * @param {HTMLElement} element
 * @returns {import("./job_page.js").Panel}
 */
export function createStragglersPanel(element) {
  const body = make("tbody");
  const none = make("p", { class: "note" }, "No stragglers.");
  const heads = HEADS.map((text) => make("th", { scope: "col" }, text));
  const frame = make(
    "div",
    {
      class: "table-frame",
      tabindex: "0",
      role: "group",
      "aria-label": "Stragglers",
      hidden: true,
    },
    make("table", { class: "stragglers" }, make("thead", {}, make("tr", {}, ...heads)), body),
  );
  const note = make("span", { class: "note" });
  setChildren(
    element,
    make("div", { class: "panel-head" }, make("h2", {}, "Stragglers"), note),
    none,
    frame,
  );
  let told = "";
  return {
    update({ stragglers, overview }) {
      const now = JSON.stringify([stragglers, overview.emulated]);
      if (now === told) return;
      told = now;
      none.hidden = stragglers.length > 0;
      frame.hidden = stragglers.length === 0;
      setText(note, stragglers.length === 0 ? "" : overview.emulated ? "on emulated GPUs" : "");
      setChildren(body, ...stragglers.map(row));
    },
    destroy() {},
  };
}

/**
 * @param {StragglerView} straggler
 * @returns {HTMLElement}
 */
function row(straggler) {
  const { rank, slowdown, reason, source, from_time, until_time, is_in_force } = straggler;
  const since = from_time === null ? "" : `, since ${clockTime(new Date(from_time))}`;
  const until = until_time === null ? "" : ` until ${clockTime(new Date(until_time))}`;
  const cells = [
    `${fixed(slowdown, 2)}\u00d7 as long; ${REASONS.get(reason) ?? reason}`,
    source + since + until,
    is_in_force ? "adapted to it" : "not yet adapted to it",
  ];
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, String(rank)),
    ...cells.map((text) => make("td", {}, text)),
  );
}
