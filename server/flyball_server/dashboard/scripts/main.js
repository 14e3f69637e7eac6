// Start of the page: theme, token, connection, and the view that the address names.

import { createApi } from "./api.js";
import { ComparePage } from "./compare_page.js";
import { createConnection } from "./connection.js";
import { byId, decoded, isTyping, make, setChildren, setText } from "./elements.js";
import { JobPage } from "./job_page.js";
import { JobsPage } from "./jobs_page.js";
import { bindThemeButton } from "./theme.js";
import { createTokenPrompt } from "./token_prompt.js";

/**
 * @import { Api } from "./api.js"
 * @import { Connection } from "./connection.js"
 */

/**
 * Context of the views.
 * @typedef {object} Shell
 * @property {Api} api
 * @property {Connection} connection
 * @property {(text: string) => void} announce passes a text to screen readers
 * @property {() => void} reopen creates the view again
 */

const JOB_PREFIX = "#/jobs/";

function begin() {
  const main = byId("main", HTMLElement);
  const connection = createConnection();
  const announcer = byId("announcer", HTMLElement);
  const tokens = createTokenPrompt({ onForget: open });
  const announce = (/** @type {string} */ text) => setText(announcer, text);
  /** @type {Shell} */
  const shell = { api: createApi(tokens), connection, announce, reopen: open };
  /** @type {{destroy(): void} | null} */
  let view = null;

  function open() {
    view?.destroy();
    connection.reset();
    main.replaceChildren();
    byId("sections", HTMLElement).hidden = true;
    const jobId = namedJob();
    document.title = jobId === null ? "Flyball" : `${jobId} \u2013 Flyball`;
    setChildren(byId("trail", HTMLElement), ...trail(jobId));
    if (location.hash.startsWith("#/compare")) view = new ComparePage(main, shell);
    else view = jobId === null ? new JobsPage(main, shell) : new JobPage(main, shell, jobId);
    window.scrollTo(0, 0);
  }

  const keys = byId("keys-dialog", HTMLDialogElement);
  byId("keys-button", HTMLButtonElement).addEventListener("click", () => keys.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "?" || isTyping(event) || keys.open) return;
    event.preventDefault();
    keys.showModal();
  });
  bindThemeButton(byId("theme-button", HTMLButtonElement));
  byId("skip-link", HTMLAnchorElement).addEventListener("click", (event) => {
    event.preventDefault(); // the fragment names the view
    main.focus();
  });
  window.addEventListener("hashchange", () => {
    open();
    main.focus({ preventScroll: true });
  });
  open();
}

/** Return the job that the address names; null: all jobs. */
function namedJob() {
  if (!location.hash.startsWith(JOB_PREFIX)) return null;
  return decoded(location.hash.slice(JOB_PREFIX.length)) || null;
}

/** @param {string | null} jobId */
function trail(jobId) {
  const isComparison = location.hash.startsWith("#/compare");
  const isAll = jobId === null && !isComparison;
  const all = make("a", { href: "#/", "aria-current": isAll ? "page" : null }, "Jobs");
  if (isComparison) return [all, make("span.trail-job", { "aria-current": "page" }, "Compare")];
  if (jobId === null) return [all];
  return [all, make("span.trail-job", { "aria-current": "page" }, jobId)];
}

begin();
