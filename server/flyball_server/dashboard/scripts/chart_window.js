// Which of the known steps the charts show: the newest so many, or a range that was chosen.

/** @typedef {import("./wire_types.js").StagesOfStep} StagesOfStep */

export const WINDOWS = [100, 500, 2000];
const LEAST_STEPS = 4;

export class ChartWindow {
  constructor() {
    this.num_steps = WINDOWS[1];
    /** @type {[number, number] | null} null: the newest, and so on */
    this.chosen = null;
  }

  /** @param {number} num_steps */
  followNewest(num_steps = this.num_steps) {
    this.num_steps = num_steps;
    this.chosen = null;
  }

  /**
   * @param {number} from step, may lie between two
   * @param {number} to
   * @param {StagesOfStep[]} steps rising
   */
  choose(from, to, steps) {
    const inside = steps.filter(({ step }) => step >= from && step <= to);
    if (inside.length >= LEAST_STEPS)
      this.chosen = [inside[0].step, inside[inside.length - 1].step];
  }

  /**
   * Closer to a step, or further away from it.
   * @param {number} factor below 1: closer
   * @param {number | null} around a step; null: the middle
   * @param {StagesOfStep[]} steps rising
   */
  zoom(factor, around, steps) {
    const shown = this.shown(steps);
    if (shown.length === 0) return;
    const first = shown[0].step;
    const last = shown[shown.length - 1].step;
    const centre = around ?? (first + last) / 2;
    this.choose(centre - factor * (centre - first), centre + factor * (last - centre), steps);
  }

  /**
   * @param {StagesOfStep[]} steps rising
   * @returns {StagesOfStep[]} those to show
   */
  shown(steps) {
    if (this.chosen === null) return steps.slice(-this.num_steps);
    const [from, to] = this.chosen;
    const inside = steps.filter(({ step }) => step >= from && step <= to);
    if (inside.length > 0) return inside;
    // They have become too old to be kept.
    this.followNewest();
    return this.shown(steps);
  }
}
