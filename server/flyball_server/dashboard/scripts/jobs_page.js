// The page of all jobs: a live table, searched and sorted, with totals above.

import { compareAddress } from "./compare_page.js";
import { followPage, showRefusal } from "./connection.js";
import { byId, hasModifier, isTyping, make, setAttribute, setChildren, setText } from "./elements.js";
import { count, counted } from "./format.js";
import { progressText } from "./job_words.js";
import { searched, sorted } from "./jobs_order.js";
import { jobCells } from "./jobs_row.js";
import { showTotals } from "./jobs_totals.js";
import { KeyedRows } from "./tables.js";

/**
 * @import { Column, Order } from "./jobs_order.js"
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
    this.totals = make("div.totals-strips");
    this.heads = COLUMNS.map((column) => this.head(column));
    const body = make("tbody.job-rows");
    this.rows = new KeyedRows(body);
    this.more = make("button", { hidden: true, onclick: () => this.showMore() });
    this.table = make("table.jobs", make("thead", make("tr", ...this.heads)), body);
    this.compare = make("a.compare", { href: "#/compare" }, "Compare two");
    this.place = make("div.page.jobs-page", make("p.note", "Loading\u2026"));
    setChildren(main, this.place);
    this.ended = new AbortController();
    const { signal } = this.ended;
    document.addEventListener("keydown", (event) => this.searchByKey(event), { signal });
    this.timer = setInterval(() => this.renew(), RENEW_MS);
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
      const head = make("div.page-head", make("h1", "Jobs"), this.search, this.found, this.compare);
      const frame = make("div.table-frame", this.table);
      setChildren(this.place, this.totals, head, frame, this.more);
    }
    this.compare.hidden = jobs.length < 2;
    const [a, b] = jobs;
    if (b) this.compare.href = compareAddress([[a.job_id, null], [b.job_id, null]]);
    showTotals(this.totals, jobs);
    this.showRows();
  }

  showRows() {
    const found = sorted(searched(this.jobs, this.search.value), this.order);
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
    setText(this.found, this.search.value === "" ? "" : total);
    this.more.hidden = found.length <= shown.length;
    setText(this.more, `Show ${count(found.length - shown.length)} more`);
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

  renew() {
    if (this.isThere) this.showRows();
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
