// Live events of the planner, read from a streamed answer: EventSource could not send the token.

import { ApiError } from "./api_error.js";

/** How long is waited, ms. */
export const TIMES = {
  /** The planner sends something every 10 s at least; a stream silent for longer is dead. */
  silence_ms: 35_000,
  firstPause_ms: 500,
  longestPause_ms: 10_000,
  /** A stream ends by itself after some time, and another follows; not faster than this. */
  nextStream_ms: 250,
  /** Between questions where the planner holds no stream. */
  poll_ms: 5_000,
  /** After so much asking like that a stream is tried again. */
  heldAgain_ms: 60_000,
  /** A page that nobody sees for so long follows nothing. */
  hidden_ms: 120_000,
};

// Why a stream was ended.
const ASLEEP = "nobody looks";

/**
 * @typedef {object} StreamMessage
 * @property {string} name
 * @property {string} data
 * @property {string | null} id
 *
 * @typedef {object} Follower
 * @property {(name: string, data: any) => void} onEvent
 * @property {(connected: boolean, text: string, refusal: number) => void} onState
 *   `text`: what is wrong; empty: nothing. `refusal`: the status of an answer after which nothing is
 *   asked for again; 0: it goes on
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
 * @param {typeof TIMES} [times]
 * @returns {() => void} ends it
 */
export function followEvents(open, follower, times = TIMES) {
  const following = new Following(open, follower, times);
  void following.run();
  return () => following.stop();
}

/** One subscription through all of its streams. */
class Following {
  /**
   * @param {(init: RequestInit, query: string) => Promise<Response>} open
   * @param {Follower} follower
   * @param {typeof TIMES} times
   */
  constructor(open, follower, times) {
    this.open = open;
    this.follower = follower;
    this.times = times;
    this.isStopped = false;
    /** @type {string | null} */
    this.lastId = null;
    this.pause_ms = times.firstPause_ms;
    // Where the planner holds no more calls, each is answered at once and asked again later.
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
   * One stream to its end.
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
    const timer = new Silence(this.times.silence_ms, () => this.stream.abort());
    try {
      const query = this.isHeld ? "" : "wait_s=0";
      const answer = await this.open({ headers, signal: this.stream.signal }, query);
      this.pause_ms = this.times.firstPause_ms;
      this.tell(() => this.follower.onState(true, "", 0));
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
      this.tell(() => this.follower.onState(true, "", 0));
      for (const message of parser.take(decoder.decode(value, { stream: true }))) {
        const data = JSON.parse(message.data);
        if (message.id !== null) this.lastId = message.id;
        this.tell(() => this.follower.onEvent(message.name, data));
      }
    }
  }

  /**
   * What fails in the page itself is no trouble of the planner's.
   * @param {() => void} action
   */
  tell(action) {
    if (this.isStopped) return;
    try {
      action();
    } catch (error) {
      console.error(error);
    }
  }

  /**
   * @param {ApiError} error
   * @returns {number | null} ms until it is tried again; null: it is not
   */
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
    // Many pages that lost the same planner do not come back in step.
    return pause_ms * (0.75 + 0.5 * Math.random());
  }

  /**
   * At least so long, and as long as nobody looks; who begins to look ends it.
   * @param {number} pause_ms
   */
  async rest(pause_ms) {
    await this.pause((resolve) => setTimeout(resolve, pause_ms));
    while (this.isAsleep && !this.isStopped) await this.pause(() => undefined);
  }

  /** @param {(resolve: () => void) => number | undefined} begin returns a timer */
  async pause(begin) {
    if (this.isStopped) return;
    /** @type {number | undefined} */
    let timer;
    await new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
      this.wake = resolve;
      timer = begin(resolve);
    });
    clearTimeout(timer);
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

/** Tells when nothing has been heard for too long. */
class Silence {
  /** @param {number} silence_ms @param {() => void} onSilence */
  constructor(silence_ms, onSilence) {
    this.silence_ms = silence_ms;
    this.onSilence = onSilence;
    this.heard();
  }

  heard() {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.onSilence, this.silence_ms);
  }

  end() {
    clearTimeout(this.timer);
  }
}
