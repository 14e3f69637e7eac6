// Says whether the figures are live; when the planner is away, from when those on the page are.

import { byId, setText } from "./elements.js";
import { clockTime } from "./format.js";

// A planner that is back within this time gets no banner, ms.
const GRACE_MS = 1_000;

/**
 * @typedef {object} Connection
 * @property {() => void} heard the planner has just told something
 * @property {(connected: boolean, text: string) => void} set `text` empty where it is not connected:
 *   nobody has looked, and nothing is wrong
 * @property {(text: string | null) => void} trouble what the planner itself has trouble with
 * @property {() => void} stop nothing is followed any more: the view says why
 * @property {() => void} reset another page: nothing is known yet
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

/**
 * @param {string} text
 * @returns {string}
 */
function withoutDot(text) {
  return text.replace(/\.$/, "");
}
