// Start of the page: theme, token, connection, and the view that the address names.

import { createApi } from "./api.js";
import { ComparePage } from "./compare_page.js";
import { createConnection } from "./connection.js";
import { byId, decoded, isTyping, make, setChildren, setText } from "./elements.js";
import { JobPage } from "./job_page.js";
import { JobsPage } from "./jobs_page.js";
import { bindThemeButton } from "./theme.js";

/**
 * @import { Api } from "./api.js"
 * @import { ApiError } from "./api_error.js"
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

// Planners below other paths of the same host have other tokens.
const KEY = `flyball-token ${new URL(".", location.href).pathname}`;

/**
 * @typedef {object} TokenKeeper
 * @property {string | null} token
 * @property {(refused: string | null, error: ApiError) => Promise<void>} ask
 *   resolves once the token differs from the refused one; rejects with the error if none is given
 */

/**
 * Bind the dialog and the button of the page.
 * @param {{onForget: () => void}} options
 * @returns {TokenKeeper}
 */
export function createTokenPrompt({ onForget }) {
  const dialog = byId("token-dialog", HTMLDialogElement);
  const input = byId("token-input", HTMLInputElement);
  const problem = byId("token-problem", HTMLElement);
  const forget = byId("forget-token", HTMLButtonElement);
  /** @type {Promise<boolean> | null} */
  let asking = null;
  let token = stored();
  forget.hidden = token === null;

  /** @param {string | null} value */
  function keep(value) {
    token = value;
    store(value);
    forget.hidden = value === null;
  }

  /** @returns {Promise<boolean>} true: a token was given */
  function open() {
    input.value = "";
    dialog.returnValue = "";
    dialog.showModal();
    input.focus();
    return new Promise((resolve) => {
      dialog.onclose = () => resolve(dialog.returnValue === "given");
    });
  }

  byId("token-form", HTMLFormElement).addEventListener("submit", (event) => {
    event.preventDefault();
    const given = input.value.trim();
    const wrong = whyUnusable(given);
    setText(problem, wrong);
    if (wrong !== "") {
      input.focus();
      return;
    }
    keep(given);
    input.value = "";
    dialog.close("given");
  });
  byId("token-cancel", HTMLButtonElement).addEventListener("click", () => dialog.close(""));
  forget.addEventListener("click", () => {
    keep(null);
    onForget();
  });

  return {
    get token() {
      return token;
    },
    async ask(refused, error) {
      if (token !== refused) return; // another call has asked
      if (asking === null) {
        setText(problem, refused === null ? "" : "The planner does not accept this token.");
        asking = open().finally(() => {
          asking = null;
        });
      }
      if (!(await asking)) throw error;
    },
  };
}

/** @param {string} token @returns {string} empty: it can be sent */
function whyUnusable(token) {
  if (token === "") return "Enter a token.";
  return /^[\x21-\x7e]+$/.test(token)
    ? ""
    : "A token contains only ASCII characters and no spaces.";
}

function stored() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** @param {string | null} token */
function store(token) {
  try {
    if (token === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, token);
  } catch {
    // Without storage it holds until the page is left.
  }
}

begin();
