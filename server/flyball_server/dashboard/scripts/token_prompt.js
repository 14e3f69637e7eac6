// Dialog for a token of the planner, which is kept until the tab is closed.

import { byId, setText } from "./elements.js";

/** @import { ApiError } from "./api_error.js" */

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

/**
 * @param {string} token
 * @returns {string} empty: it can be sent
 */
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
