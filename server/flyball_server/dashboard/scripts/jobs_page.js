// The page of all jobs: a live table, searched and sorted, with totals above.

import { compareAddress } from "./compare_page.js";
import { followPage, showRefusal } from "./connection.js";
import {
  byId,
  hasModifier,
  isTyping,
  make,
  setAttribute,
  setChildren,
  setText,
} from "./elements.js";
import { costs, count, counted, jobTarget, percent, sum, wattHours, watts } from "./format.js";
import { isRunning, progressText, stateText } from "./job_words.js";
import { jobCells, savingLegend } from "./jobs_row.js";
import { KeyedRows } from "./tables.js";

/**
 * @import { Shell } from "./main.js"
 * @import { JobOverview } from "./wire_types.js"
 */

// Rows shown before "Show more".
const FIRST_ROWS = 200;
// Refresh interval of texts such as "5 min ago".
const RENEW_MS = 30_000;

/** @type {{column: Column, text: string, note: string, falling: boolean}[]} */
const COLUMNS = [
  { column: "name", text: "Job", note: "", falling: false },
  { column: "state", text: "State", note: "", falling: false },
  { column: "gpus", text: "GPUs", note: "", falling: true },
  { column: "time", text: "Iteration time", note: "measured", falling: true },
  { column: "energy", text: "Energy per iteration", note: "measured", falling: true },
  { column: "saving", text: "Energy saved", note: "measured, 95\u202f% interval", falling: true },
  { column: "gap", text: "Gap", note: "predicted, above the bound", falling: true },
];

/** @typedef {{name: "overview", data: {jobs: JobOverview[]}}} JobsEvent */

export class JobsPage {
  /** @param {HTMLElement} main @param {Shell} shell */
  constructor(main, shell) {
    /** @type {JobOverview[]} */
    this.jobs = [];
    /** @type {Order} */
    this.order = { column: null, falling: false };
    this.numRows = FIRST_ROWS;
    this.isThere = false;
    this.search = make("input", {
      id: "search",
      type: "search",
      placeholder: "Search ( / )",
      "aria-label": "Search jobs by name, state, schedule, policy, target, real or emulated",
      oninput: () => this.showRows(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.clearByKey(event),
    });
    this.found = make("span.note", { role: "status" });
    /** State to filter by; empty: all. */
    this.state = "";
    this.states = make("div.states", { role: "group", "aria-label": "Jobs by state" });
    this.totals = make("div.totals-strips");
    this.heads = COLUMNS.map((column) => this.head(column));
    const body = make("tbody.job-rows");
    this.rows = new KeyedRows(body);
    this.shownStates = "";
    this.more = make("button", { hidden: true, onclick: () => this.showMore() });
    this.table = make("table.jobs", make("thead", make("tr", ...this.heads)), body);
    this.compare = make("a.compare", { href: "#/compare" }, "Compare two");
    this.place = make("div.page.jobs-page", make("p.note", "Loading\u2026"));
    setChildren(main, this.place);
    this.ended = new AbortController();
    const { signal } = this.ended;
    document.addEventListener("keydown", (event) => this.searchByKey(event), { signal });
    this.timer = setInterval(() => this.isThere && this.showRows(), RENEW_MS);
    this.stop = followPage(shell, "api/v1/events", {
      onEvent: (/** @type {JobsEvent} */ event) => this.show(event.data.jobs),
      onRefusal: (status, text) => showRefusal(shell, main, status, text),
    });
  }

  destroy() {
    this.stop();
    this.ended.abort();
    clearInterval(this.timer);
  }

  /** @param {(typeof COLUMNS)[number]} column */
  head({ column, text, note, falling }) {
    const sortButton = make(
      "button.sort",
      { onclick: () => this.sortBy(column, falling) },
      text,
      make("span.sort-sign", { "aria-hidden": "true" }),
    );
    return make(
      "th",
      { scope: "col", "data-column": column },
      sortButton,
      note ? make("small.note", note) : null,
    );
  }

  /** @param {JobOverview[]} jobs */
  show(jobs) {
    this.jobs = jobs;
    if (jobs.length === 0) {
      this.isThere = false;
      setChildren(this.place, emptyState());
      return;
    }
    if (!this.isThere) {
      this.isThere = true;
      const parts = [make("h1", "Jobs"), this.search, this.states, this.found, this.compare];
      const head = make("div.page-head", ...parts);
      const frame = make("div.table-frame", this.table);
      setChildren(this.place, this.totals, head, frame, this.more, savingLegend());
    }
    this.compare.hidden = jobs.length < 2;
    const [a, b] = jobs;
    if (b) this.compare.href = compareAddress([[a.job_id, null], [b.job_id, null]]);
    showTotals(this.totals, jobs);
    this.showRows();
  }

  showRows() {
    const matching = searched(this.jobs, this.search.value);
    this.showStates(matching);
    const ofState = matching.filter((job) => ["", stateText(job)].includes(this.state));
    const found = sorted(ofState, this.order);
    const shown = found.slice(0, this.numRows);
    const now = new Date();
    this.rows.show(
      shown.map((job) => ({
        key: job.job_id,
        content: JSON.stringify(job) + progressText(job, now),
        fill: (row) => setChildren(row, ...jobCells(job, now)),
      })),
    );
    const total = `${count(found.length)} of ${counted(this.jobs.length, "job")}`;
    setText(this.found, found.length === this.jobs.length ? "" : total);
    this.more.hidden = found.length <= shown.length;
    setText(this.more, `Show ${count(found.length - shown.length)} more`);
  }

  /** Show a button for each state that jobs have, with their number. @param {JobOverview[]} jobs */
  showStates(jobs) {
    const counts = new Map([["", jobs.length]]);
    for (const text of jobs.map(stateText)) counts.set(text, (counts.get(text) ?? 0) + 1);
    if (!counts.has(this.state)) counts.set(this.state, 0);
    const content = JSON.stringify([...counts, this.state]);
    if (content === this.shownStates) return;
    this.shownStates = content;
    const buttons = [...counts].map(([state, number]) =>
      make(
        "button.state",
        { "aria-pressed": String(state === this.state), onclick: () => this.filter(state) },
        state || "all",
        make("span.note", count(number)),
      ),
    );
    setChildren(this.states, ...buttons);
    this.states.hidden = counts.size < 3 && this.state === "";
  }

  /** @param {string} state */
  filter(state) {
    this.state = state;
    this.showRows();
    /** @type {HTMLElement | null} */
    const pressed = this.states.querySelector("[aria-pressed=true]");
    pressed?.focus();
  }

  /**
   * Sort by a column; a second click reverses the order, a third restores the first one.
   * @param {Column} column
   * @param {boolean} falling
   */
  sortBy(column, falling) {
    if (this.order.column !== column) this.order = { column, falling };
    else if (this.order.falling === falling) this.order = { column, falling: !falling };
    else this.order = { column: null, falling: false };
    for (const head of this.heads) {
      const isSorted = head.dataset.column === this.order.column;
      const direction = this.order.falling ? "descending" : "ascending";
      setAttribute(head, "aria-sort", isSorted ? direction : null);
    }
    this.showRows();
  }

  showMore() {
    this.numRows += FIRST_ROWS;
    this.showRows();
  }

  /** @param {KeyboardEvent} event */
  searchByKey(event) {
    if (event.key !== "/" || isTyping(event) || hasModifier(event) || !this.isThere) return;
    event.preventDefault();
    this.search.focus();
  }

  /** @param {KeyboardEvent} event */
  clearByKey(event) {
    if (event.key !== "Escape") return;
    this.search.value = "";
    this.showRows();
  }
}

/** Return the notice of a planner without jobs, from a template of the page. */
function emptyState() {
  const { content } = byId("no-jobs", HTMLTemplateElement);
  const notice = /** @type {DocumentFragment} */ (content.cloneNode(true));
  const address = notice.querySelector(".planner-url");
  if (address) address.textContent = location.href.replace(/[#?].*$/, "").replace(/\/$/, "");
  return notice;
}

/**
 * @typedef {"name" | "state" | "gpus" | "time" | "energy" | "saving" | "gap"} Column
 * @typedef {{column: Column | null, falling: boolean}} Order
 *   `column` null: jobs on a plan first, then the newest
 */

/** @type {Record<Column, (job: JobOverview) => string | number | null>} */
const KEYS = {
  name: (job) => job.job_id,
  state: stateText,
  gpus: (job) => job.num_present,
  time: (job) => job.measured?.iteration_time_s ?? job.predicted?.iteration_time_s ?? null,
  energy: (job) => job.measured?.energy_j ?? job.predicted?.energy_j ?? null,
  saving: (job) => job.saving_percent?.mean ?? null,
  gap: (job) => job.predicted?.gap_percent ?? null,
};

/**
 * Return the jobs whose row contains every word.
 * @param {JobOverview[]} jobs
 * @param {string} words
 * @returns {JobOverview[]}
 */
export function searched(jobs, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return jobs.filter((job) => {
    const kind = job.emulated ? "emulated" : "real";
    // As shown, and as in the API.
    const targets = [jobTarget(job).replaceAll("\u202f", " "), job.target];
    const texts = [job.job_id, stateText(job), job.schedule, job.policy, ...targets, kind];
    const text = texts.join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/**
 * Sort jobs; one without a value in the column comes last in both directions.
 * @param {JobOverview[]} jobs
 * @param {Order} order
 * @returns {JobOverview[]}
 */
export function sorted(jobs, { column, falling }) {
  const byName = [...jobs].sort((one, other) => compareText(one.job_id, other.job_id));
  if (column === null) {
    // Not by the last heartbeat: rows of running jobs would change places all the time.
    return byName.sort(
      (one, other) =>
        standing(one) - standing(other) || compareText(other.created_at, one.created_at),
    );
  }
  const key = KEYS[column];
  return byName.sort((one, other) => {
    const a = key(one);
    const b = key(other);
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    const rising = typeof a === "string" ? compareText(a, String(b)) : a - Number(b);
    return falling ? -rising : rising;
  });
}

/** @param {JobOverview} job @returns {number} lower: further up */
function standing(job) {
  if (!isRunning(job)) return 2;
  return job.active_version === null ? 1 : 0;
}

const compareText = new Intl.Collator("en", { numeric: true }).compare;

/** @typedef {ReturnType<typeof totals>} Totals of jobs on real or on emulated GPUs */

/**
 * @param {JobOverview[]} jobs
 * @returns {Totals[]} of real GPUs, then of emulated ones, where there are jobs
 */
export function totalsOf(jobs) {
  return [false, true].flatMap((emulated) => {
    const those = jobs.filter((job) => job.emulated === emulated);
    return those.length === 0 ? [] : [totals(those, emulated)];
  });
}

/**
 * Add up jobs; a bound of the saving is null if one of them has none.
 * @param {JobOverview[]} jobs
 * @param {boolean} emulated
 */
function totals(jobs, emulated) {
  const running = jobs.filter(isRunning);
  const saved = jobs.flatMap((job) => (job.saved_j === null ? [] : [job.saved_j]));
  const powers_w = running.flatMap(({ measured }) =>
    measured?.energy_j == null ? [] : [measured.energy_j / measured.iteration_time_s],
  );
  return {
    emulated,
    num_jobs: jobs.length,
    num_running: running.length,
    num_present: sum(running.map((job) => job.num_present)),
    num_expected: sum(running.map((job) => job.num_ranks)),
    num_saving: saved.length,
    num_slower: jobs.filter(({ headline, saved_j }) => saved_j && headline?.tone === "trade").length,
    saved_of_j: sum(jobs.map((job) => job.saved_of_j ?? 0)),
    factors: jobs[0].factors,
    saved_j: sum(saved.map((each) => each.mean)),
    saved_low_j: sumOrNull(saved.map((each) => each.low)),
    saved_high_j: sumOrNull(saved.map((each) => each.high)),
    num_powered: powers_w.length,
    power_w: sum(powers_w),
  };
}

/** @param {HTMLElement} element @param {JobOverview[]} jobs */
export function showTotals(element, jobs) {
  setChildren(element, ...totalsOf(jobs).map(strip));
}

/** @param {Totals} all */
function strip(all) {
  const name = all.emulated ? "Emulated GPUs" : "Real GPUs";
  const expected = `of ${count(all.num_expected)} in running jobs`;
  const saved = sureSaved(all);
  const costly = saved === null ? [] : costs(saved, all.factors);
  const power_w = all.num_powered === 0 ? null : all.power_w;
  return make(
    all.emulated ? "section.totals.emulated-totals" : "section.totals",
    { "aria-label": `${name}, all jobs` },
    make("p.totals-name", name),
    make(
      "dl",
      entry("Jobs running", count(all.num_running), `of ${counted(all.num_jobs, "job")}`),
      entry("GPUs present", count(all.num_present), expected),
      entry("Saved, measured", wattHours(saved), savedNote(all)),
      ...costly.map(({ name, text }) => entry(name, text, "measured, at the planner's factors")),
      entry("Mean power now, measured", watts(power_w), powerNote(all)),
    ),
  );
}

/** Return the saved energy in J; null: not measured, or its interval includes zero. @param {Totals} all */
function sureSaved({ num_saving, saved_j, saved_low_j: low, saved_high_j: high }) {
  const isUnsure = low !== null && high !== null && low <= 0 && high >= 0;
  return num_saving === 0 || isUnsure ? null : saved_j;
}

/** @param {Totals} all */
function savedNote(all) {
  if (all.num_saving === 0) return "no job has a measured baseline";
  const slower = all.num_slower === 0 ? "" : `, ${count(all.num_slower)} of them slower for it`;
  const jobs = `in ${counted(all.num_saving, "job")}${slower}`;
  const saved = sureSaved(all);
  const share = saved && all.saved_of_j > 0 ? `${percent((100 * saved) / all.saved_of_j)}; ` : "";
  if (all.saved_low_j === null || all.saved_high_j === null) return share + jobs;
  return `${share}${wattHours(all.saved_low_j)} to ${wattHours(all.saved_high_j)} ${jobs}`;
}

/** @param {Totals} all */
function powerNote(all) {
  if (all.num_powered === 0) return "no running job has measured steps";
  return `of ${all.num_powered} of ${counted(all.num_running, "running job")}`;
}

/** @param {string} name @param {string} figure @param {string} note */
function entry(name, figure, note) {
  return make("div.total", make("dt", name), make("dd.figure", figure), make("dd.note", note));
}

/** @param {(number | null)[]} values */
function sumOrNull(values) {
  return values.some((value) => value === null) ? null : sum(/** @type {number[]} */ (values));
}
