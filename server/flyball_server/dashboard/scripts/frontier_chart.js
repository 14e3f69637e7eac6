// The interactive frontier: pointer and keys choose plans and show their figures.

import { hasModifier, make, placeTip, setChildren } from "./elements.js";
import { pointSentence } from "./frontier_curve.js";
import { FrontierPicture } from "./frontier_picture.js";

/**
 * @import { Mark } from "./frontier_curve.js"
 * @import { Frame, Shown } from "./frontier_picture.js"
 * @import { FrontierPoint } from "./wire_types.js"
 */

/** Point by its number, or mark. @typedef {{point: number} | {mark: Mark}} Told */

const HEIGHTS = { wide: 480, narrow: 320 };
const NARROW = 400;
// px around a point or mark, for a pointer and for a finger.
const REACH = { fine: 22, coarse: 44 };
const POINT_FIRST = 4; // px by which a point is preferred to a mark

export class FrontierChart {
  /** @param {(point: FrontierPoint) => void} choose */
  constructor(choose) {
    this._choose = choose;
    this._picture = new FrontierPicture();
    this._tip = make("div.frontier-tip", { hidden: true, "aria-hidden": "true" });
    this.element = make("div.frontier-chart", this._picture.element, this._tip);
    /** @type {Shown | null} */
    this._shown = null;
    /** @type {Frame | null} */
    this._frame = null;
    this._current = 0;
    /** @type {Told | null} */
    this._told = null;
    this._observer = new ResizeObserver(() => this._draw());
    this._observer.observe(this.element);
    this._listen();
  }

  get picture() {
    return this._picture.element;
  }

  destroy() {
    this._observer.disconnect();
  }

  /** @param {Shown} shown */
  show(shown) {
    const isOther = this._shown?.frontier !== shown.frontier;
    this._shown = shown;
    if (isOther) this._current = 0;
    this._draw();
    if (isOther) this.setChosen(null);
  }

  /** Mark a point as chosen, or none. @param {FrontierPoint | null} point */
  setChosen(point) {
    const points = this._shown?.frontier.points ?? [];
    this._picture.setChosen(point ? points.indexOf(point) : null);
  }

  focus() {
    this._picture.points[this._current]?.focus();
  }

  _listen() {
    const { element } = this;
    element.addEventListener("keydown", (event) => this._onKey(event));
    element.addEventListener("pointermove", (event) => this._onPointer(event));
    element.addEventListener("pointerleave", () => this._tell(null));
    element.addEventListener("click", (event) => {
      const point = this._clicked(event);
      if (point >= 0) this._pick(point);
    });
    element.addEventListener("focusin", (event) => {
      const point = this._indexOf(event);
      if (point >= 0) this._tell({ point });
    });
    element.addEventListener("focusout", () => this._tell(null));
  }

  /** Return the number of the point of an event; -1: none. @param {Event} event */
  _indexOf({ target }) {
    return this._picture.points.findIndex((element) =>
      element.contains(/** @type {Node} */ (target)),
    );
  }

  /** Return the number of the point that a click chooses; -1: none. @param {MouseEvent} event */
  _clicked(event) {
    // A click of assistive technology has no place: only its element counts.
    const near = event.detail > 0 ? this._near(event) : null;
    if (near === null) return this._indexOf(event);
    return "point" in near ? near.point : -1;
  }

  /** @param {KeyboardEvent} event */
  _onKey(event) {
    const index = this._indexOf(event);
    if (index < 0 || hasModifier(event)) return;
    const last = this._picture.points.length - 1;
    /** @type {Record<string, number>} */
    const moves = {
      ArrowRight: Math.min(last, index + 1),
      ArrowDown: Math.min(last, index + 1),
      ArrowLeft: Math.max(0, index - 1),
      ArrowUp: Math.max(0, index - 1),
      Home: 0,
      End: last,
    };
    if (event.key in moves) this._go(moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") this._pick(index);
    else if (event.key === "Escape" && this._told) this._tell(null);
    else return;
    event.preventDefault();
  }

  /** @param {number} index */
  _go(index) {
    this._current = index;
    this._picture.setCurrent(index);
    this.focus();
  }

  /** @param {number} index */
  _pick(index) {
    if (!this._shown?.canChoose) return;
    this._current = index;
    this._picture.setCurrent(index);
    this._choose(this._shown.frontier.points[index]);
  }

  /** @param {PointerEvent} event */
  _onPointer(event) {
    const near = this._near(event);
    const canPick = near !== null && "point" in near && this._shown?.canChoose === true;
    this.element.classList.toggle("at-point", canPick);
    this._tell(near);
  }

  /**
   * Return the point or mark nearest to the pointer.
   * @param {MouseEvent} event
   * @returns {Told | null}
   */
  _near(event) {
    if (!this._shown || !this._frame) return null;
    const { left, top } = this.element.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    /** @type {Told[]} */
    const all = [
      ...this._shown.frontier.points.map((_, point) => ({ point })),
      ...this._shown.marks.map((mark) => ({ mark })),
    ];
    let nearest = null;
    let least = matchMedia("(pointer: coarse)").matches ? REACH.coarse : REACH.fine;
    for (const each of all) {
      const [atX, atY] = this._placeOf(each);
      const away = Math.hypot(atX - x, atY - y) - ("point" in each ? POINT_FIRST : 0);
      if (away < least) [nearest, least] = [each, away];
    }
    return nearest;
  }

  /** @param {Told} told @returns {[number, number]} px */
  _placeOf(told) {
    const { x, y } = /** @type {Frame} */ (this._frame);
    if ("mark" in told) return [x(told.mark.time_s), y(told.mark.energy_j)];
    const point = /** @type {Shown} */ (this._shown).frontier.points[told.point];
    return [x(point.iteration_time_s), y(point.energy_j)];
  }

  /** @param {Told | null} told */
  _tell(told) {
    this._told = told;
    this._tip.hidden = told === null;
    this._picture.setTold(told && "point" in told ? told.point : null);
    if (!told || !this._shown) return;
    const { points, baseline } = this._shown.frontier;
    const words = "mark" in told ? told.mark.words : pointSentence(points[told.point], baseline);
    setChildren(this._tip, ...words.split("; ").map((part) => make("div", part)));
    const [left, top] = this._placeOf(told);
    placeTip(this._tip, { left, top, width: 0, height: 0 }, 14);
  }

  _draw() {
    const width = this.element.clientWidth;
    if (!this._shown || !width) return;
    const height = width < NARROW ? HEIGHTS.narrow : HEIGHTS.wide;
    this._frame = this._picture.draw(this._shown, width, height);
    this._picture.setCurrent(this._current);
    const told = this._told;
    // Marks are replaced after each step.
    const isStillThere = told && "point" in told && told.point < this._picture.points.length;
    this._tell(isStillThere ? told : null);
  }
}
