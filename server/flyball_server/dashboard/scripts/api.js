// The planner's API as the page calls it: JSON, the token's header, errors in one line.

import { ApiError } from "./api_error.js";
import { followEvents } from "./event_stream.js";

export { ApiError };

const TOKEN_HEADER = "Flyball-Token";

/**
 * @typedef {object} Api
 * @property {(path: string, init?: {signal?: AbortSignal}) => Promise<any>} get
 * @property {(path: string, body: unknown, init?: {signal?: AbortSignal}) => Promise<any>} put
 * @property {(path: string, follower: import("./event_stream.js").Follower) => () => void} follow
 */

/**
 * The API below the page's own address, as a proxy may have put it anywhere.
 * @param {import("./token_prompt.js").TokenKeeper} tokens
 * @returns {Api} its calls reject with an ApiError
 */
export function createApi(tokens) {
  /**
   * @param {string} path
   * @param {RequestInit} init
   * @returns {Promise<Response>} a success
   */
  async function call(path, init) {
    for (;;) {
      const token = tokens.token;
      const answer = await send(path, init, token);
      if (answer.ok) return answer;
      const error = await ApiError.of(answer);
      // A proxy's own 401 asks for something else than our token.
      if (error.status !== 401 || !error.isPlanners) throw error;
      await tokens.ask(token, error);
    }
  }

  return {
    async get(path, { signal } = {}) {
      return body(await call(path, { signal }));
    },
    async put(path, content, { signal } = {}) {
      const headers = { "Content-Type": "application/json" };
      const init = { method: "PUT", body: JSON.stringify(content), headers, signal };
      return body(await call(path, init));
    },
    follow(path, follower) {
      const mark = path.includes("?") ? "&" : "?";
      return followEvents(
        (init, query) => call(query ? path + mark + query : path, init),
        follower,
      );
    },
  };
}

/**
 * @param {string} path
 * @param {RequestInit} init
 * @param {string | null} token
 * @returns {Promise<Response>}
 */
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
 * @param {Response} answer
 * @returns {Promise<any>} null where it has no body
 */
async function body(answer) {
  if (answer.status === 204) return null;
  try {
    return await answer.json();
  } catch (error) {
    throw ApiError.from(error);
  }
}
