// Connection state: live or not, the time of the figures, and the notice of a refused page.

import { byId, make, setChildren, setText } from "./elements.js";
import { clockTime } from "./format.js";

/**
 * @import { Follower } from "./event_stream.js"
 * @import { Shell } from "./main.js"
 */

// Interruptions shorter than this get no banner.
const GRACE_MS = 1_000;

/**
 * @typedef {object} Connection
 * @property {() => void} heard records an event as the time of the figures
 * @property {(connected: boolean, text: string) => void} set `text`: problem; empty: the page was
 *   hidden and follows nothing
 * @property {(text: string | null) => void} trouble sets or clears a problem of the planner itself
 * @property {() => void} stop ends the figures, without a sign or a banner: the page says why
 * @property {() => void} reset forgets everything, for another page
 */

/** @returns {Connection} */
export function createConnection() {
  const banner = byId("banner", HTMLElement);
  const sign = byId("connection", HTMLElement);
  /** @type {Date | null} */
  let heardAt = null;
  /** @type {string | null} */
  let away = null;
  /** @type {string | null} */
  let troubled = null;
  let isStopped = false;
  /** @type {number | undefined} */
  let timer;

  function show() {
    const problem = away ?? troubled;
    const isAway = isStopped || problem !== null;
    const state = isAway ? "away" : heardAt === null ? "connecting" : "live";
    sign.dataset.state = state;
    setText(sign, isAway ? "not live" : state);
    sign.hidden = isStopped; // the page says why
    document.documentElement.dataset.figures = state === "away" ? "stale" : "live";
    clearTimeout(timer);
    if (!problem) banner.hidden = true;
    else if (!banner.hidden) tell();
    else timer = setTimeout(tell, GRACE_MS);
  }

  function tell() {
    const since = heardAt === null ? "" : ` Figures of ${clockTime(heardAt)}.`;
    const lead = away === null ? "Planner reports a problem" : "Planner away";
    setText(banner, `${lead}: ${away ?? troubled}.${since} Asking again.`);
    banner.hidden = false;
  }

  return {
    heard() {
      if (troubled === null) heardAt = new Date();
    },
    set(connected, text) {
      const next = connected ? null : withoutDot(text);
      const isNew = next !== away || sign.dataset.state === "connecting";
      away = next;
      if (connected && troubled === null) heardAt = new Date();
      if (isNew) show();
    },
    trouble(text) {
      const next = text === null ? null : withoutDot(text);
      if (next === troubled) return;
      troubled = next;
      show();
    },
    stop() {
      isStopped = true;
      away = troubled = null;
      show();
    },
    reset() {
      isStopped = false;
      heardAt = away = troubled = null;
      show();
    },
  };
}

/** @param {string} text */
function withoutDot(text) {
  return text.replace(/\.$/, "");
}

// By HTTP status.
const LEADS = new Map([
  [401, "This planner asks for a token"],
  [403, "This token does not open this page"],
  [404, "There is no such job here"],
]);

/** @typedef {{name: "trouble", data: {detail: string}}} TroubleEvent */

/**
 * Follow the events of a page, and show the state of the connection meanwhile.
 * @template {{name: string, data: unknown}} E
 * @param {Shell} shell
 * @param {string} path
 * @param {object} page
 * @param {(event: E) => void} page.onEvent
 * @param {(status: number, text: string) => void} page.onRefusal gets a final answer
 * @returns {() => void} ends it
 */
export function followPage({ api, connection }, path, { onEvent, onRefusal }) {
  /** @type {Follower<E | TroubleEvent>} */
  const follower = {
    onEvent(event) {
      if (event.name === "trouble") {
        connection.trouble(/** @type {TroubleEvent} */ (event).data.detail);
        return;
      }
      if (event.name === "overview") connection.trouble(null);
      connection.heard();
      onEvent(/** @type {E} */ (event));
    },
    onState(connected, text, refusal) {
      if (refusal !== 0) onRefusal(refusal, text);
      else connection.set(connected, text);
    },
  };
  return api.follow(path, follower);
}

/**
 * Replace a page by the planner's refusal.
 * @param {Shell} shell
 * @param {HTMLElement} main
 * @param {number} status
 * @param {string} detail text of the planner
 */
export function showRefusal({ connection, reopen }, main, status, detail) {
  connection.stop();
  setChildren(
    main,
    make(
      "section.notice",
      { role: "alert" },
      make("h1", LEADS.get(status) ?? "The planner refuses this"),
      make("p", status === 401 ? "Without one it shows no job." : detail),
      make(
        "p.buttons",
        make("button", { onclick: reopen }, status === 401 ? "Enter a token" : "Try again"),
        make("a.button", { href: "#/" }, "All jobs"),
      ),
    ),
  );
}
