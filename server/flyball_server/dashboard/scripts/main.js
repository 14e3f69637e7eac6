// The page's begin: theme, token, connection, and which of its two views the address asks for.

import { createApi } from "./api.js";
import { createConnection } from "./connection.js";
import { byId, make, setChildren, setText } from "./elements.js";
import { createJobPage } from "./job_page.js";
import { createJobsPage } from "./jobs_page.js";
import { bindThemeButton } from "./theme.js";
import { createTokenPrompt } from "./token_prompt.js";

/**
 * What the views are given.
 * @typedef {object} Shell
 * @property {import("./api.js").Api} api
 * @property {import("./connection.js").Connection} connection
 * @property {(text: string) => void} announce tells screen readers, politely
 * @property {() => void} reopen begins the view anew
 */

const JOB_PREFIX = "#/jobs/";

function begin() {
  const main = byId("main", HTMLElement);
  const connection = createConnection();
  const announcer = byId("announcer", HTMLElement);
  const tokens = createTokenPrompt({ onForget: () => open() });
  /** @type {Shell} */
  const shell = {
    api: createApi(tokens),
    connection,
    announce: (text) => setText(announcer, text),
    reopen: () => open(),
  };
  /** @type {{destroy(): void} | null} */
  let view = null;

  function open() {
    view?.destroy();
    connection.reset();
    main.replaceChildren();
    const jobId = namedJob();
    document.title = jobId === null ? "Flyball" : `${jobId} \u2013 Flyball`;
    setChildren(byId("trail", HTMLElement), ...trail(jobId));
    view = jobId === null ? createJobsPage(main, shell) : createJobPage(main, shell, jobId);
    window.scrollTo(0, 0);
  }

  bindThemeButton(byId("theme-button", HTMLButtonElement));
  byId("skip-link", HTMLAnchorElement).addEventListener("click", (event) => {
    event.preventDefault(); // the address says which view it is
    main.focus();
  });
  window.addEventListener("hashchange", () => {
    open();
    main.focus({ preventScroll: true });
  });
  open();
  void showVersion(shell.api);
}

/** @returns {string | null} the job that the address names; null: it asks for all */
function namedJob() {
  if (!location.hash.startsWith(JOB_PREFIX)) return null;
  const name = location.hash.slice(JOB_PREFIX.length);
  try {
    return decodeURIComponent(name) || null;
  } catch {
    return name;
  }
}

/**
 * @param {string | null} jobId
 * @returns {Node[]}
 */
function trail(jobId) {
  const all = make("a", { href: "#/", "aria-current": jobId === null ? "page" : null }, "Jobs");
  if (jobId === null) return [all];
  return [all, make("span", { class: "trail-job", "aria-current": "page" }, jobId)];
}

/** @param {import("./api.js").Api} api */
async function showVersion(api) {
  try {
    /** @type {import("./wire_types.js").Health} */
    const health = await api.get("healthz");
    setText(byId("planner-version", HTMLElement), `Flyball ${health.version}`);
  } catch {
    // The banner tells it when the planner is away.
  }
}

begin();
