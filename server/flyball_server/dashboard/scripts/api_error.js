// The error of a failed API call: HTTP status and one line of text.

// Answers of the planner that asking again does not change.
const FINAL = [401, 403, 404, 422];

/** Failed call of the API; `status` 0: no answer, or none that can be read. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} detail
   * @param {object} [more]
   * @param {number | null} [more.retryAfter_s] time after which the planner can be asked again
   * @param {boolean} [more.isPlanners] the text is the planner's, not a proxy's
   */
  constructor(status, detail, { retryAfter_s = null, isPlanners = false } = {}) {
    super(detail);
    this.name = "ApiError";
    this.status = status;
    this.detail = detail;
    this.retryAfter_s = retryAfter_s;
    this.isPlanners = isPlanners;
  }

  /** Asking again is of no use. */
  get isFinal() {
    return this.isPlanners && FINAL.includes(this.status);
  }

  /** Return what a call threw as an ApiError. @param {unknown} error @returns {ApiError} */
  static from(error) {
    if (error instanceof ApiError) return error;
    if (error instanceof SyntaxError)
      return new ApiError(0, "The planner sent an invalid response");
    return new ApiError(0, "The planner does not respond");
  }

  /** Read the error of an unsuccessful answer. @param {Response} answer */
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
      // Not JSON, such as a proxy's page: only its status is known.
    }
    const retry = Number(answer.headers.get("Retry-After") ?? Number.NaN);
    const retryAfter_s = Number.isFinite(retry) ? retry : null;
    return new ApiError(answer.status, detail, { retryAfter_s, isPlanners });
  }
}
