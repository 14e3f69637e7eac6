// @ts-check
// Every version of a job's plan, newest first, with what is predicted of it.

import { make, setAttribute, setChildren, setText } from "./elements.js";
import { clockTime, count, counted, joules, percent, seconds } from "./format.js";

/** @typedef {import("./wire_types.js").PlanSummary} PlanSummary */

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
 * @param {import("./wire_types.js").PanelContext} context
 * @returns {import("./wire_types.js").Panel}
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
  /** @type {import("./wire_types.js").JobPageState | null} */
  let last = null;
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

  /** @param {import("./wire_types.js").JobPageState} state */
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
    setChildren(body, ...shown.map((plan) => row(plan, overview.active_version, showVersion)));
    more.hidden = shown.length === versions.length;
    setText(more, `Show all ${count(versions.length)}`);
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
        last.overview.active_version === state.overview.active_version;
      last = state;
      if (!isSame) show(state);
    },
    destroy() {},
  };
}

/**
 * @param {PlanSummary} plan
 * @param {number | null} active
 * @param {(version: number) => void} showVersion
 * @returns {HTMLElement}
 */
function row(plan, active, showVersion) {
  const { predicted } = plan;
  const isActive = plan.version === active;
  const button = make(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => showVersion(plan.version),
      "aria-label": `Show version ${plan.version} in the timeline`,
    },
    "Show",
  );
  const element = make(
    "tr",
    { class: isActive ? "active" : null },
    make(
      "th",
      { scope: "row" },
      `v${plan.version}`,
      isActive ? make("span", { class: "badge tone-good" }, "active") : null,
    ),
    make("td", {}, plan.kind),
    make("td", {}, [plan.policy, plan.target].filter(Boolean).join(", ")),
    make(
      "td",
      { class: "number" },
      plan.first_step === null ? notHeld(plan, active) : count(plan.first_step),
    ),
    make("td", { class: "number" }, clockTime(new Date(plan.created_at))),
    ...figures(predicted).map((text) => make("td", { class: "number predicted" }, text)),
    make("td", {}, plan.kind === "probe" ? null : button),
  );
  setAttribute(element, "aria-current", isActive ? "true" : null);
  return element;
}

/**
 * @param {PlanSummary} plan
 * @param {number | null} active
 * @returns {string}
 */
function notHeld(plan, active) {
  return active !== null && plan.version < active ? "overtaken" : "waits for ranks";
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
