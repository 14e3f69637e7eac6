// All versions of a job's plan, newest first, with their predicted figures.

import { compareAddress } from "./compare_page.js";
import { make, panelHead, setAttribute, setChildren, setText } from "./elements.js";
import { clockTime, count, counted, joules, percent, seconds, targetText } from "./format.js";
import { isOver } from "./job_words.js";
import { KeyedRows, makeTable } from "./tables.js";

/**
 * @import { Panel, PanelContext } from "./job_page.js"
 * @import { JobPageState } from "./job_state.js"
 * @import { JobOverview, PlanSummary, PredictedIteration } from "./wire_types.js"
 */

const FIRST_ROWS = 12;
const PREDICTED = ["Iteration time", "Energy", "Saving", "Gap"];
const HEADS = ["Version", "Kind", "Policy, target", "From step", "Made", ...PREDICTED, ""];

/** @param {HTMLElement} element @param {PanelContext} context @returns {Panel} */
export function createHistoryPanel(element, { announce }) {
  const note = make("span.note");
  const more = make("button.quiet", { hidden: true, onclick: () => showAll() });
  const { frame, table, body } = makeTable("Versions of the plan", {
    selector: "table.history",
    heads: HEADS,
  });
  const rows = new KeyedRows(body);
  let isAllShown = false;
  /** @type {JobPageState | null} */
  let last = null;
  const compare = make("a.compare", "Compare two");
  setChildren(element, panelHead("Plans", note, compare), frame, more);

  function showAll() {
    isAllShown = true;
    if (last !== null) show(last);
  }

  /** @param {JobPageState} state */
  function show({ history, overview }) {
    const versions = [...history].reverse();
    const shown = isAllShown ? versions : versions.slice(0, FIRST_ROWS);
    const total = `${counted(history.length, "version")}; all figures predicted`;
    const none = overview.newest_version === null ? "No version yet." : "Loading.";
    setText(note, history.length === 0 ? none : total);
    table.hidden = history.length === 0;
    const planned = versions.filter(({ predicted }) => predicted !== null);
    compare.hidden = planned.length < 2;
    if (planned.length > 1) {
      const { job_id } = overview;
      const [b, a] = planned;
      compare.href = compareAddress([[job_id, a.version], [job_id, b.version]]);
    }
    rows.show(
      shown.map((plan) => ({
        key: String(plan.version),
        content: JSON.stringify([plan, isActive(plan, overview), firstStep(plan, overview)]),
        fill: (row) => fillRow(row, plan, overview, () => showVersion(plan.version)),
      })),
    );
    more.hidden = shown.length === versions.length;
    setText(more, `Show all ${count(versions.length)}`);
  }

  /** @param {number} version */
  function showVersion(version) {
    document.dispatchEvent(new CustomEvent("flyball:show-version", { detail: { version } }));
    document.getElementById("panel-timeline")?.classList.remove("folded");
    document.getElementById("panel-timeline")?.scrollIntoView({ block: "start" });
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
  };
}

/**
 * @param {HTMLElement} row
 * @param {PlanSummary} plan
 * @param {JobOverview} overview
 * @param {() => void} onShow
 */
function fillRow(row, plan, overview, onShow) {
  const { version, kind, policy, target, created_at, predicted } = plan;
  const active = isActive(plan, overview);
  const label = `Show version ${version} in the timeline`;
  setChildren(
    row,
    make("th", { scope: "row" }, `v${version}`, active && make("span.badge.tone-good", "active")),
    make("td", kind),
    make("td", [policy, targetText(target)].filter(Boolean).join(", ")),
    make("td.number", firstStep(plan, overview)),
    make("td.number", clockTime(new Date(created_at))),
    ...figures(predicted).map((text) => make("td.number.predicted", text)),
    make(
      "td",
      kind !== "probe" && make("button.quiet", { onclick: onShow, "aria-label": label }, "Show"),
    ),
  );
  row.classList.toggle("active", active);
  setAttribute(row, "aria-current", active ? "true" : null);
}

/** @param {PlanSummary} plan @param {JobOverview} overview */
function isActive({ version }, { active_version }) {
  return version === active_version;
}

/**
 * Return the step from which a version holds, or why it holds from none.
 * @param {PlanSummary} plan
 * @param {JobOverview} overview
 */
function firstStep({ first_step, version }, overview) {
  const { active_version } = overview;
  if (first_step !== null) return count(first_step);
  if (active_version !== null && version < active_version) return "overtaken";
  return isOver(overview) ? "never held" : "waits for ranks";
}

/** @param {PredictedIteration | null} predicted */
function figures(predicted) {
  return [
    seconds(predicted?.iteration_time_s),
    joules(predicted?.energy_j),
    percent(predicted?.saving_percent),
    percent(predicted?.gap_percent, { digits: 2 }),
  ];
}
