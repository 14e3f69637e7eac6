// The first view: all jobs in a table, searched and sorted, with totals above, live.

import { make, setAttribute, setChildren, setText } from "./elements.js";
import { count, counted } from "./format.js";
import { progressText } from "./job_words.js";
import { searched, sorted } from "./jobs_order.js";
import { jobCells } from "./jobs_row.js";
import { showTotals } from "./jobs_totals.js";
import { refusalNotice } from "./refusal_notice.js";

/**
 * @typedef {import("./wire_types.js").JobOverview} JobOverview
 * @typedef {import("./jobs_order.js").Column} Column
 */

// More rows than these are shown when somebody asks for them.
const FIRST_ROWS = 200;
// What is said of time passed is renewed, ms.
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

/**
 * @param {HTMLElement} main
 * @param {import("./main.js").Shell} shell
 * @returns {{destroy(): void}}
 */
export function createJobsPage(main, shell) {
  const page = new JobsPage(main, shell);
  const stop = shell.api.follow("api/v1/events", {
    onEvent: (name, data) => page.take(name, data),
    onState: (connected, text, refusal) => page.connected(connected, text, refusal),
  });
  const timer = setInterval(() => page.renew(), RENEW_MS);
  return {
    destroy() {
      stop();
      clearInterval(timer);
      page.destroy();
    },
  };
}

class JobsPage {
  /**
   * @param {HTMLElement} main
   * @param {import("./main.js").Shell} shell
   */
  constructor(main, shell) {
    this.main = main;
    this.shell = shell;
    /** @type {JobOverview[]} */
    this.jobs = [];
    /** @type {import("./jobs_order.js").Order} */
    this.order = { column: null, falling: false };
    this.numRows = FIRST_ROWS;
    /** @type {Map<string, {row: HTMLElement, told: string}>} */
    this.rows = new Map();
    this.isThere = false;
    this.search = /** @type {HTMLInputElement} */ (
      make("input", {
        type: "search",
        id: "search",
        placeholder: "Search ( / )",
        "aria-label": "Search jobs by name, state, schedule, policy, target, real or emulated",
        oninput: () => this.showRows(),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.clearByKey(event),
      })
    );
    this.found = make("span", { class: "note", role: "status" });
    this.totals = make("div", { class: "totals-strips" });
    this.heads = COLUMNS.map((column) => this.head(column));
    this.body = make("tbody", { class: "job-rows" });
    this.more = make("button", { type: "button", hidden: true, onclick: () => this.showMore() });
    this.table = make(
      "table",
      { class: "jobs" },
      make("thead", {}, make("tr", {}, ...this.heads)),
      this.body,
    );
    this.place = make(
      "div",
      { class: "page jobs-page" },
      make("p", { class: "note" }, "Loading\u2026"),
    );
    setChildren(this.main, this.place);
    this.onKey = (/** @type {KeyboardEvent} */ event) => this.searchByKey(event);
    document.addEventListener("keydown", this.onKey);
  }

  destroy() {
    document.removeEventListener("keydown", this.onKey);
  }

  /**
   * @param {(typeof COLUMNS)[number]} column
   * @returns {HTMLElement}
   */
  head({ column, text, note, falling }) {
    const sortButton = make(
      "button",
      { type: "button", class: "sort", onclick: () => this.sortBy(column, falling) },
      text,
      make("span", { class: "sort-sign", "aria-hidden": "true" }),
    );
    return make(
      "th",
      { scope: "col", "data-column": column },
      sortButton,
      note ? make("small", { class: "note" }, note) : null,
    );
  }

  /**
   * @param {string} name
   * @param {any} data
   */
  take(name, data) {
    if (name === "trouble") {
      this.shell.connection.trouble(troubleText(data));
      return;
    }
    if (name !== "overview") return;
    this.shell.connection.trouble(null);
    this.shell.connection.heard();
    this.jobs = data.jobs;
    this.show();
  }

  /**
   * @param {boolean} connected
   * @param {string} text
   * @param {number} refusal status of an answer that stays; 0: none
   */
  connected(connected, text, refusal) {
    if (refusal !== 0) {
      this.shell.connection.stop();
      setChildren(this.main, refusalNotice(refusal, text, this.shell.reopen));
      return;
    }
    this.shell.connection.set(connected, text);
  }

  show() {
    if (this.jobs.length === 0) {
      this.isThere = false;
      setChildren(this.place, emptyState());
      return;
    }
    if (!this.isThere) {
      this.isThere = true;
      const tools = make(
        "div",
        { class: "page-head" },
        make("h1", {}, "Jobs"),
        this.search,
        this.found,
      );
      setChildren(
        this.place,
        this.totals,
        tools,
        make("div", { class: "table-frame" }, this.table),
        this.more,
      );
    }
    showTotals(this.totals, this.jobs);
    this.showRows();
  }

  showRows() {
    const found = sorted(searched(this.jobs, this.search.value), this.order);
    const shown = found.slice(0, this.numRows);
    const now = new Date();
    const kept = new Set(shown.map((job) => job.job_id));
    for (const [jobId, { row }] of this.rows) {
      if (!kept.has(jobId)) {
        row.remove();
        this.rows.delete(jobId);
      }
    }
    shown.forEach((job, index) => this.put(this.row(job, now), index));
    setText(
      this.found,
      this.search.value === ""
        ? ""
        : `${count(found.length)} of ${counted(this.jobs.length, "job")}`,
    );
    this.more.hidden = found.length <= shown.length;
    setText(this.more, `Show ${count(found.length - shown.length)} more`);
  }

  /**
   * @param {HTMLElement} row
   * @param {number} index
   */
  put(row, index) {
    const there = this.body.children[index] ?? null;
    if (there !== row) this.body.insertBefore(row, there);
  }

  /**
   * The job's row, made anew only where what it tells has changed.
   * @param {JobOverview} job
   * @param {Date} now
   * @returns {HTMLElement}
   */
  row(job, now) {
    const known = this.rows.get(job.job_id);
    const row = known?.row ?? make("tr");
    const told = JSON.stringify(job) + progressText(job, now);
    if (known?.told !== told) {
      const hadFocus = row.contains(document.activeElement);
      setChildren(row, ...jobCells(job, now));
      if (hadFocus) row.querySelector("a")?.focus({ preventScroll: true });
      this.rows.set(job.job_id, { row, told });
    }
    return row;
  }

  /**
   * A click sorts by the column, another turns it round, a third brings back the first order.
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

  renew() {
    if (this.isThere) this.showRows();
  }

  /** @param {KeyboardEvent} event */
  searchByKey(event) {
    const isTyping = event.target instanceof HTMLInputElement;
    if (
      event.key === "/" &&
      !isTyping &&
      !event.ctrlKey &&
      !event.metaKey &&
      !event.altKey &&
      this.isThere
    ) {
      event.preventDefault();
      this.search.focus();
    }
  }

  /** @param {KeyboardEvent} event */
  clearByKey(event) {
    if (event.key !== "Escape") return;
    this.search.value = "";
    this.showRows();
  }
}

/**
 * @param {{detail?: string} | null} data of a `trouble` event
 * @returns {string}
 */
export function troubleText(data) {
  return String(data?.detail ?? "its log says why");
}

/** @returns {HTMLElement} */
function emptyState() {
  const code = (/** @type {string} */ text) => make("code", {}, text);
  return make(
    "section",
    { class: "notice empty" },
    make("h1", {}, "No job here yet"),
    make(
      "p",
      {},
      "A job appears here as soon as one of its ranks, or you, registers it with this planner.",
    ),
    make(
      "ol",
      {},
      make(
        "li",
        {},
        "On emulated GPUs: ",
        code("make demo"),
        ", in a clone of the repository, trains a small model with a planner of its own.",
      ),
      make(
        "li",
        {},
        "In a training script, on every rank: ",
        code(`flyball.attach(engine, job_id="my-job", planner_url="${plannerUrl()}")`),
      ),
      make(
        "li",
        {},
        "The job's stage profile is put with one call, or measured in its first steps with ",
        code('profiling="online"'),
        ".",
      ),
    ),
  );
}

/** @returns {string} this page's address, which is the planner's */
function plannerUrl() {
  return location.href.replace(/[#?].*$/, "").replace(/\/$/, "");
}
