// The planner's API: JSON, the token's header, errors as ApiError.

import { ApiError } from "./api_error.js";
import { followEvents } from "./event_stream.js";

/**
 * @import { Follower } from "./event_stream.js"
 * @import { TokenKeeper } from "./main.js"
 */

const TOKEN_HEADER = "Flyball-Token";
const ACCESS_HEADER = "Flyball-Access";

/**
 * Calls of the API; each rejects with an ApiError. The caller names the type of the answer.
 * @typedef {object} Api
 * @property {boolean} isReadOnly the token of the newest answer permits no change
 * @property {<T>(path: string, init?: {signal?: AbortSignal}) => Promise<T>} get
 * @property {<T>(path: string, body: unknown) => Promise<T>} put
 * @property {<E>(path: string, follower: Follower<E>) => () => void} follow returns what ends it
 */

/**
 * Create the API below the page's own address, wherever a proxy has put it.
 * @param {TokenKeeper} tokens
 * @returns {Api}
 */
export function createApi(tokens) {
  let isReadOnly = false;

  /** @param {string} path @param {RequestInit} init */
  async function call(path, init) {
    for (;;) {
      const token = tokens.token;
      const answer = await send(path, init, token);
      isReadOnly = answer.headers.get(ACCESS_HEADER) === "read-only";
      if (answer.ok) return answer;
      const error = await ApiError.of(answer);
      // A 401 of a proxy asks for something other than a token of the planner.
      if (error.status !== 401 || !error.isPlanners) throw error;
      await tokens.ask(token, error);
    }
  }

  return {
    get isReadOnly() {
      return isReadOnly;
    },
    get: async (path, { signal } = {}) => readAnswer(await call(path, { signal })),
    async put(path, content) {
      const headers = { "Content-Type": "application/json" };
      return readAnswer(
        await call(path, { method: "PUT", body: JSON.stringify(content), headers }),
      );
    },
    follow(path, follower) {
      return followEvents((init, query) => call(withQuery(path, query), init), follower);
    },
  };
}

/** @param {string} path @param {string} query empty: none */
function withQuery(path, query) {
  return query === "" ? path : `${path}${path.includes("?") ? "&" : "?"}${query}`;
}

/** @param {string} path @param {RequestInit} init @param {string | null} token */
async function send(path, init, token) {
  const headers = new Headers(init.headers);
  if (token !== null) headers.set(TOKEN_HEADER, token);
  try {
    return await fetch(path, { ...init, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw ApiError.from(error);
  }
}

/**
 * Read the JSON of an answer as the type that the caller knows from wire_types.js.
 * @template T
 * @param {Response} answer
 * @returns {Promise<T>}
 */
async function readAnswer(answer) {
  try {
    return await answer.json();
  } catch (error) {
    throw ApiError.from(error);
  }
}
