// Live events of the planner, read with fetch: EventSource cannot send the token's header.

import { ApiError } from "./api_error.js";

/** Waiting times in ms. */
export const TIMES = {
  /** Silence after which a stream is dead: the planner sends something every 10 s. */
  silence_ms: 35_000,
  firstPause_ms: 500,
  longestPause_ms: 10_000,
  /** Pause before the next stream after one that ended normally. */
  nextStream_ms: 250,
  /** Polling interval where the planner holds no stream open. */
  poll_ms: 5_000,
  /** Time of polling after which a stream is tried again. */
  heldAgain_ms: 60_000,
  /** Time after which a hidden page follows nothing. */
  hidden_ms: 120_000,
};

// Reason of an abort.
const ASLEEP = "the page is hidden";

/**
 * @typedef {object} StreamMessage
 * @property {string} name
 * @property {string} data
 * @property {string | null} id
 */

/**
 * Handlers of a subscription.
 * @template E
 * @typedef {object} Follower
 * @property {(event: E) => void} onEvent gets events as `{name, data}`
 * @property {(connected: boolean, text: string, refusal: number) => void} onState
 *   `text`: problem; empty: none. `refusal`: HTTP status of a final answer; 0: following goes on
 */

/**
 * Request of the stream with a query; rejects with an ApiError.
 * @typedef {(init: RequestInit, query: string) => Promise<Response>} Open
 */

/** Parser of an event stream that arrives in pieces of any length. */
export class StreamParser {
  constructor() {
    this.rest = "";
    this.name = "";
    /** @type {string[]} */
    this.data = [];
    /** @type {string | null} */
    this.id = null;
  }

  /** @param {string} text next piece @returns {StreamMessage[]} messages that it completes */
  take(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.line(line.replace(/\r$/, "")));
  }

  /** @param {string} line @returns {StreamMessage[]} */
  line(line) {
    if (line === "") return this.dispatch();
    const [, field, value] = /^([^:]*):? ?(.*)$/.exec(line) ?? ["", "", ""];
    if (field === "event") this.name = value;
    else if (field === "data") this.data.push(value);
    else if (field === "id") this.id = value;
    return [];
  }

  /** @returns {StreamMessage[]} */
  dispatch() {
    const message = { name: this.name || "message", data: this.data.join("\n"), id: this.id };
    const isEmpty = this.data.length === 0;
    this.name = "";
    this.data = [];
    return isEmpty ? [] : [message];
  }
}

/**
 * Follow events until stopped; a stream that ends or breaks is resumed after its last event.
 * @template E
 * @param {Open} open
 * @param {Follower<E>} follower
 * @param {typeof TIMES} [times]
 * @returns {() => void} ends it
 */
export function followEvents(open, follower, times = TIMES) {
  const following = new Following(open, follower, times);
  void following.run();
  return () => following.stop();
}

/**
 * One subscription through all of its streams.
 * @template E
 */
class Following {
  /** @param {Open} open @param {Follower<E>} follower @param {typeof TIMES} times */
  constructor(open, follower, times) {
    this.open = open;
    this.follower = follower;
    this.times = times;
    this.isStopped = false;
    /** @type {string | null} */
    this.lastId = null;
    this.pause_ms = times.firstPause_ms;
    // A planner that holds no more calls answers at once and is polled.
    this.isHeld = true;
    this.refusedAt_ms = 0;
    this.stream = new AbortController();
    /** @type {number | undefined} */
    this.hiddenTimer = undefined;
    /** @type {(() => void) | null} */
    this.wake = null;
    this.isAsleep = false;
    this.onVisibility = () => this.watchVisibility();
    document.addEventListener("visibilitychange", this.onVisibility);
    this.watchVisibility();
  }

  stop() {
    this.isStopped = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    clearTimeout(this.hiddenTimer);
    this.stream.abort();
    this.wake?.();
  }

  async run() {
    while (!this.isStopped) {
      this.stream = new AbortController();
      const pause_ms = await this.once();
      if (pause_ms === null) return;
      await this.rest(pause_ms);
    }
  }

  /**
   * Read one stream to its end.
   * @returns {Promise<number | null>} ms until the next; null: there is none
   */
  async once() {
    try {
      await this.read();
      return this.isHeld ? this.times.nextStream_ms : this.times.poll_ms;
    } catch (error) {
      if (this.isStopped) return null;
      if (this.stream.signal.reason === ASLEEP) return this.times.nextStream_ms;
      return this.afterFailure(ApiError.from(error));
    }
  }

  async read() {
    const headers = new Headers({ Accept: "text/event-stream" });
    if (this.lastId !== null) headers.set("Last-Event-ID", this.lastId);
    this.isHeld ||= performance.now() - this.refusedAt_ms >= this.times.heldAgain_ms;
    /** @type {number | undefined} */
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.stream.abort(), this.times.silence_ms);
    };
    heard();
    try {
      const query = this.isHeld ? "" : "wait_s=0";
      const answer = await this.open({ headers, signal: this.stream.signal }, query);
      this.pause_ms = this.times.firstPause_ms;
      this.tell(() => this.follower.onState(true, "", 0));
      await this.readBody(answer, heard);
    } finally {
      clearTimeout(timer);
    }
  }

  /** @param {Response} answer @param {() => void} heard */
  async readBody(answer, heard) {
    const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
    const decoder = new TextDecoder();
    const parser = new StreamParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.isStopped) return;
      heard();
      this.tell(() => this.follower.onState(true, "", 0));
      for (const message of parser.take(decoder.decode(value, { stream: true }))) {
        /** @type {unknown} */
        const event = { name: message.name, data: JSON.parse(message.data) };
        if (message.id !== null) this.lastId = message.id;
        this.tell(() => this.follower.onEvent(/** @type {E} */ (event)));
      }
    }
  }

  /** Call the follower; its own errors are no problem of the planner. @param {() => void} action */
  tell(action) {
    if (this.isStopped) return;
    try {
      action();
    } catch (error) {
      console.error(error);
    }
  }

  /** @param {ApiError} error @returns {number | null} ms until the next try; null: none */
  afterFailure(error) {
    const { longestPause_ms, nextStream_ms } = this.times;
    if (error.status === 503 && this.isHeld && error.retryAfter_s !== null) {
      this.isHeld = false;
      this.refusedAt_ms = performance.now();
      return nextStream_ms;
    }
    this.isHeld = true;
    this.tell(() => this.follower.onState(false, error.detail, error.isFinal ? error.status : 0));
    if (error.isFinal) return null;
    const pause_ms = this.pause_ms;
    this.pause_ms = Math.min(2 * pause_ms, longestPause_ms);
    // Many pages that lost the same planner do not return at the same moment.
    return pause_ms * (0.75 + 0.5 * Math.random());
  }

  /**
   * Pause, and go on pausing while the page is hidden; showing it ends the pause.
   * @param {number} pause_ms
   */
  async rest(pause_ms) {
    await this.pause(pause_ms);
    while (this.isAsleep && !this.isStopped) await this.pause(null);
  }

  /** @param {number | null} pause_ms null: until the page is shown */
  async pause(pause_ms) {
    if (this.isStopped) return;
    await new Promise((resolve) => {
      this.wake = () => resolve(undefined);
      if (pause_ms !== null) setTimeout(resolve, pause_ms);
    });
    this.wake = null;
  }

  watchVisibility() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) {
      this.hiddenTimer = setTimeout(() => this.fallAsleep(), this.times.hidden_ms);
    } else {
      this.isAsleep = false;
      this.wake?.();
    }
  }

  fallAsleep() {
    this.isAsleep = true;
    this.tell(() => this.follower.onState(false, "", 0));
    this.stream.abort(ASLEEP);
  }
}
