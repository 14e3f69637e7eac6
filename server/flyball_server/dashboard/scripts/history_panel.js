// Every version of a job's plan, newest first, with what is predicted of it.

import { make, setAttribute, setChildren, setText } from "./elements.js";
import { clockTime, count, counted, joules, percent, seconds, targetText } from "./format.js";
import { isOver } from "./job_words.js";

/**
 * @typedef {import("./wire_types.js").PlanSummary} PlanSummary
 * @typedef {import("./wire_types.js").JobOverview} JobOverview
 */

const FIRST_ROWS = 12;
const HEADS = [
  "Version",
  "Kind",
  "Policy, target",
  "From step",
  "Made",
  "Iteration time",
  "Energy",
  "Saving",
  "Gap",
  "",
];

/**
 * @param {HTMLElement} element
 * @param {import("./job_page.js").PanelContext} context
 * @returns {import("./job_page.js").Panel}
 */
export function createHistoryPanel(element, { announce }) {
  const note = make("span", { class: "note" });
  const body = make("tbody");
  const more = make("button", { type: "button", class: "quiet", hidden: true });
  const heads = HEADS.map((text) =>
    text === "" ? make("td") : make("th", { scope: "col" }, text),
  );
  const table = make(
    "table",
    { class: "history" },
    make("thead", {}, make("tr", {}, ...heads)),
    body,
  );
  let all = false;
  /** @type {import("./job_state.js").JobPageState | null} */
  let last = null;
  /** By version: who reads a row, or is on its button, stays there. @type {Map<number, Row>} */
  const rows = new Map();
  setChildren(
    element,
    make("div", { class: "panel-head" }, make("h2", {}, "Plans"), note),
    make(
      "div",
      { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Versions of the plan" },
      table,
    ),
    more,
  );
  more.addEventListener("click", () => {
    all = true;
    if (last !== null) show(last);
  });

  /** @param {import("./job_state.js").JobPageState} state */
  function show(state) {
    const { history, overview } = state;
    const versions = [...history].reverse();
    const shown = all ? versions : versions.slice(0, FIRST_ROWS);
    setText(
      note,
      history.length === 0
        ? "No version yet."
        : `${counted(history.length, "version")}; all figures predicted`,
    );
    table.hidden = history.length === 0;
    const kept = new Set(shown.map(({ version }) => version));
    for (const [version, { element: row }] of rows) {
      if (!kept.has(version)) {
        row.remove();
        rows.delete(version);
      }
    }
    shown.forEach((plan, index) => {
      const row = rowOf(plan, overview);
      if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
    });
    more.hidden = shown.length === versions.length;
    setText(more, `Show all ${count(versions.length)}`);
  }

  /**
   * The version's row, filled anew only where it says something else than before.
   * @param {PlanSummary} plan
   * @param {JobOverview} overview
   * @returns {HTMLElement}
   */
  function rowOf(plan, overview) {
    const known = rows.get(plan.version) ?? newRow(plan, showVersion);
    rows.set(plan.version, known);
    fillRow(known, plan, overview);
    return known.element;
  }

  /** @param {number} version */
  function showVersion(version) {
    document.dispatchEvent(new CustomEvent("flyball:show-version", { detail: { version } }));
    const timeline = document.getElementById("panel-timeline");
    timeline?.scrollIntoView({ block: "start" });
    announce(`Version ${version} is shown in the timeline`);
  }

  return {
    update(state) {
      const isSame =
        last?.history === state.history &&
        last.overview.active_version === state.overview.active_version &&
        isOver(last.overview) === isOver(state.overview);
      last = state;
      if (!isSame) show(state);
    },
    destroy() {},
  };
}

/**
 * @typedef {object} Row
 * @property {HTMLElement} element
 * @property {HTMLElement} last its last cell, with what can be pressed
 * @property {string} told what it says now
 */

/**
 * @param {PlanSummary} plan
 * @param {(version: number) => void} showVersion
 * @returns {Row} that is still empty but for its button
 */
function newRow({ version, kind }, showVersion) {
  const button = make(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => showVersion(version),
      "aria-label": `Show version ${version} in the timeline`,
    },
    "Show",
  );
  const last = make("td", {}, kind === "probe" ? null : button);
  return { element: make("tr", {}, last), last, told: "" };
}

/**
 * @param {Row} row
 * @param {PlanSummary} plan
 * @param {JobOverview} overview
 */
function fillRow(row, plan, overview) {
  const isActive = plan.version === overview.active_version;
  const first = plan.first_step === null ? notHeld(plan, overview) : count(plan.first_step);
  const told = JSON.stringify([plan, isActive, first]);
  if (told === row.told) return;
  row.told = told;
  while (row.element.firstChild !== row.last) row.element.firstChild?.remove();
  row.last.before(
    make(
      "th",
      { scope: "row" },
      `v${plan.version}`,
      isActive ? make("span", { class: "badge tone-good" }, "active") : null,
    ),
    make("td", {}, plan.kind),
    make("td", {}, [plan.policy, targetText(plan.target)].filter(Boolean).join(", ")),
    make("td", { class: "number" }, first),
    make("td", { class: "number" }, clockTime(new Date(plan.created_at))),
    ...figures(plan.predicted).map((text) => make("td", { class: "number predicted" }, text)),
  );
  row.element.classList.toggle("active", isActive);
  setAttribute(row.element, "aria-current", isActive ? "true" : null);
}

/**
 * @param {PlanSummary} plan
 * @param {JobOverview} overview
 * @returns {string}
 */
function notHeld(plan, overview) {
  const { active_version } = overview;
  if (active_version !== null && plan.version < active_version) return "overtaken";
  return isOver(overview) ? "never held" : "waits for ranks";
}

/**
 * @param {import("./wire_types.js").PredictedIteration | null} predicted
 * @returns {string[]}
 */
function figures(predicted) {
  if (predicted === null) return ["\u2013", "\u2013", "\u2013", "\u2013"];
  return [
    seconds(predicted.iteration_time_s),
    joules(predicted.energy_j),
    percent(predicted.saving_percent),
    percent(predicted.gap_percent, { digits: 2 }),
  ];
}
