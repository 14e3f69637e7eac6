// The one kind of error that calls of the API end with: its HTTP status and one line of text.

// What the planner answers so it answers again until somebody does something about it.
const FINAL = [401, 403, 404, 422];

/** A call that was not answered as meant; `status` 0: no answer came. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} detail
   * @param {object} [more]
   * @param {number | null} [more.retryAfter_s] when the planner says to ask again
   * @param {boolean} [more.isPlanners] the words are the planner's own: no proxy's in front of it
   */
  constructor(status, detail, { retryAfter_s = null, isPlanners = false } = {}) {
    super(detail);
    this.name = "ApiError";
    this.status = status;
    this.detail = detail;
    this.retryAfter_s = retryAfter_s;
    this.isPlanners = isPlanners;
  }

  /** Whether to ask again is of no use. */
  get isFinal() {
    return this.isPlanners && FINAL.includes(this.status);
  }

  /**
   * Whatever a call threw, as one of these.
   * @param {unknown} error
   * @returns {ApiError}
   */
  static from(error) {
    if (error instanceof ApiError) return error;
    if (error instanceof SyntaxError) return new ApiError(0, "The planner sent an invalid response");
    return new ApiError(0, "The planner does not respond");
  }

  /**
   * What an answer that is no success says.
   * @param {Response} answer
   * @returns {Promise<ApiError>}
   */
  static async of(answer) {
    let detail = `The planner answers ${answer.status}`;
    let isPlanners = false;
    try {
      const problem = await answer.json();
      if (typeof problem.detail === "string") {
        detail = problem.detail;
        isPlanners = true;
      }
    } catch {
      // A proxy's page, say: its status is all that is told.
    }
    const retry = Number(answer.headers.get("Retry-After") ?? Number.NaN);
    const retryAfter_s = Number.isFinite(retry) ? retry : null;
    return new ApiError(answer.status, detail, { retryAfter_s, isPlanners });
  }
}
