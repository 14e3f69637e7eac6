// @ts-check
// Live events of the planner, read from a streamed answer: EventSource could not send the token.

import { ApiError } from "./api_error.js";

// The planner sends something every 10 s at least; a stream that is silent for longer is dead.
const SILENCE_MS = 35_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
// A stream ends by itself after some time, and another follows; not faster than this.
const NEXT_STREAM_MS = 250;
// A page that nobody sees for so long follows nothing.
const HIDDEN_MS = 120_000;

/**
 * @typedef {object} StreamMessage
 * @property {string} name
 * @property {string} data
 * @property {string | null} id
 *
 * @typedef {object} Follower
 * @property {(name: string, data: any) => void} onEvent
 * @property {(connected: boolean, text: string, status: number) => void} onState
 *   `status`: of the answer that ended it; 0: none came
 */

/** Puts the lines of an event stream together, however they were cut on their way. */
export class StreamParser {
  constructor() {
    this.rest = "";
    this.name = "";
    /** @type {string[]} */
    this.data = [];
    /** @type {string | null} */
    this.id = null;
  }

  /**
   * @param {string} text the next piece
   * @returns {StreamMessage[]} what is complete with it
   */
  take(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.line(line.replace(/\r$/, "")));
  }

  /**
   * @param {string} line
   * @returns {StreamMessage[]}
   */
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
 * Follow events until stopped: a stream that ends or breaks is taken up again where it was.
 * @param {(init: RequestInit, query: string) => Promise<Response>} open asks for the stream,
 *   `query` put behind its address; rejects with an ApiError
 * @param {Follower} follower
 * @returns {() => void} ends it
 */
export function followEvents(open, follower) {
  const following = new Following(open, follower);
  void following.run();
  return () => following.stop();
}

/** One subscription through all of its streams. */
class Following {
  /**
   * @param {(init: RequestInit, query: string) => Promise<Response>} open
   * @param {Follower} follower
   */
  constructor(open, follower) {
    this.open = open;
    this.follower = follower;
    this.isStopped = false;
    /** @type {string | null} */
    this.lastId = null;
    this.pause_ms = FIRST_PAUSE_MS;
    // Where the planner holds no more calls, each is answered at once and asked again later.
    this.isHeld = true;
    this.stream = new AbortController();
    this.onVisibility = () => this.watchVisibility();
    document.addEventListener("visibilitychange", this.onVisibility);
    /** @type {number | undefined} */
    this.hiddenTimer = undefined;
    /** @type {(() => void) | null} */
    this.wake = null;
    this.isAsleep = false;
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
      if (!this.isStopped) await this.sleep(pause_ms);
    }
  }

  /**
   * One stream to its end.
   * @returns {Promise<number | null>} ms until the next; null: there is none
   */
  async once() {
    try {
      await this.read();
      return this.isHeld ? NEXT_STREAM_MS : LONGEST_PAUSE_MS / 2;
    } catch (error) {
      if (this.isStopped) return null;
      if (this.isAsleep) return NEXT_STREAM_MS;
      return this.afterFailure(error);
    }
  }

  async read() {
    const headers = new Headers({ Accept: "text/event-stream" });
    if (this.lastId !== null) headers.set("Last-Event-ID", this.lastId);
    const timer = new Silence(() => this.stream.abort());
    try {
      const query = this.isHeld ? "" : "wait_s=0";
      const answer = await this.open({ headers, signal: this.stream.signal }, query);
      this.pause_ms = FIRST_PAUSE_MS;
      this.follower.onState(true, "", answer.status);
      await this.readBody(answer, timer);
    } finally {
      timer.end();
    }
  }

  /**
   * @param {Response} answer
   * @param {Silence} timer
   */
  async readBody(answer, timer) {
    const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
    const decoder = new TextDecoder();
    const parser = new StreamParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.isStopped) return;
      timer.heard();
      this.follower.onState(true, "", answer.status);
      for (const message of parser.take(decoder.decode(value, { stream: true }))) {
        if (message.id !== null) this.lastId = message.id;
        this.follower.onEvent(message.name, JSON.parse(message.data));
      }
    }
  }

  /**
   * @param {unknown} error
   * @returns {number | null}
   */
  afterFailure(error) {
    const known = ApiError.from(error);
    if (known.status === 503 && this.isHeld && known.retryAfter_s !== null) {
      this.isHeld = false;
      return NEXT_STREAM_MS;
    }
    this.isHeld = true;
    this.follower.onState(false, known.detail, known.status);
    if (known.status >= 400 && known.status < 500) return null;
    const pause_ms = this.pause_ms;
    this.pause_ms = Math.min(2 * pause_ms, LONGEST_PAUSE_MS);
    // Many pages that lost the same planner do not come back in step.
    return pause_ms * (0.75 + 0.5 * Math.random());
  }

  /** @param {number} pause_ms */
  async sleep(pause_ms) {
    while (this.isAsleep && !this.isStopped) {
      await new Promise((resolve) => (this.wake = () => resolve(undefined)));
    }
    if (this.isStopped) return;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, pause_ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
    this.wake = null;
  }

  watchVisibility() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) {
      this.hiddenTimer = setTimeout(() => {
        this.isAsleep = true;
        this.stream.abort();
      }, HIDDEN_MS);
    } else {
      this.isAsleep = false;
      this.wake?.();
    }
  }
}

/** Tells when nothing has been heard for too long. */
class Silence {
  /** @param {() => void} onSilence */
  constructor(onSilence) {
    this.onSilence = onSilence;
    this.heard();
  }

  heard() {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.onSilence, SILENCE_MS);
  }

  end() {
    clearTimeout(this.timer);
  }
}
