// @ts-check
// The one kind of error that calls of the API end with: its HTTP status and one line of text.

/** A call that was not answered as meant; `status` 0: no answer came. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} detail
   * @param {number | null} [retryAfter_s] when the planner says to ask again
   */
  constructor(status, detail, retryAfter_s = null) {
    super(detail);
    this.name = "ApiError";
    this.status = status;
    this.detail = detail;
    this.retryAfter_s = retryAfter_s;
  }

  /**
   * Whatever was thrown, as one of these.
   * @param {unknown} error
   * @returns {ApiError}
   */
  static from(error) {
    if (error instanceof ApiError) return error;
    if (error instanceof SyntaxError) return new ApiError(0, "The planner's answer cannot be read");
    return new ApiError(0, "The planner does not answer");
  }

  /**
   * What an answer that is no success says.
   * @param {Response} answer
   * @returns {Promise<ApiError>}
   */
  static async of(answer) {
    let detail = `The planner answers ${answer.status}`;
    try {
      const problem = await answer.json();
      if (typeof problem.detail === "string") detail = problem.detail;
    } catch {
      // A proxy's page, say: its status is all that is told.
    }
    const retry = Number(answer.headers.get("Retry-After") ?? Number.NaN);
    return new ApiError(answer.status, detail, Number.isFinite(retry) ? retry : null);
  }
}
