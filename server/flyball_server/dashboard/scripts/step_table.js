// The newest measured steps as a table, for those who read figures or cannot see the charts.

import { make, setChildren } from "./elements.js";
import { count, joules, seconds, watts } from "./format.js";
import { heldBackText, versionText } from "./step_words.js";

/** @typedef {import("./job_state.js").JobPageState} JobPageState */

const ROWS = 20;
const HEADS = ["Step", "Plan", "Time", "Energy", "Mean power", "Held back"];

/** @returns {{element: HTMLElement, update(state: JobPageState): void}} */
export function stepsTable() {
  const body = make("tbody");
  const heads = HEADS.map((text) => make("th", { scope: "col" }, text));
  const table = make(
    "table",
    { class: "steps" },
    make("thead", {}, make("tr", {}, ...heads)),
    body,
  );
  /** @type {import("./job_state.js").JobPageState | null} */
  let last = null;
  const element = /** @type {HTMLDetailsElement} */ (
    make(
      "details",
      { class: "steps-table", ontoggle: () => show() },
      make("summary", {}, `The newest ${ROWS} steps as a table, measured`),
      make(
        "div",
        { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Newest steps" },
        table,
      ),
    )
  );

  function show() {
    if (last === null || !element.open) return;
    const state = last;
    const newest = state.steps.slice(-ROWS).reverse();
    setChildren(body, ...newest.map((step) => row(step, state)));
  }

  return {
    element,
    update(state) {
      last = state;
      element.hidden = state.steps.length === 0;
      show();
    },
  };
}

/**
 * @param {import("./wire_types.js").StagesOfStep} step
 * @param {import("./job_state.js").JobPageState} state
 * @returns {HTMLElement}
 */
function row(step, state) {
  // What some ranks drew is no iteration's energy.
  const energy_j = step.num_ranks < state.overview.num_ranks ? null : step.energy_j;
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, count(step.step)),
    make("td", {}, versionText(step, state)),
    make("td", { class: "number" }, seconds(step.time_s)),
    make("td", { class: "number" }, joules(energy_j)),
    make("td", { class: "number" }, watts(energy_j === null ? null : energy_j / step.time_s)),
    make("td", {}, heldBackText(step) || "\u2013"),
  );
}
