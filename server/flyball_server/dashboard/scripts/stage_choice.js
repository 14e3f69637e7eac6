// A field to choose the stage that a chart shows.

import { make } from "./elements.js";

export class StageChoice {
  /**
   * @param {HTMLElement} head of the chart
   * @param {number} num_stages
   * @param {string} label what is shown of the stage, for those who cannot see the chart
   * @param {() => void} onChange
   */
  constructor(head, num_stages, label, onChange) {
    this.num_stages = num_stages;
    this.onChange = onChange;
    this.stage = 0;
    this.field = /** @type {HTMLInputElement} */ (
      make("input", {
        type: "number",
        min: 0,
        max: num_stages - 1,
        value: 0,
        class: "stage-choice",
        "aria-label": label,
        oninput: () => this.choose(Number(this.field.value)),
      })
    );
    head.append(make("label", { class: "stage-label" }, "stage ", this.field));
  }

  /** @param {number} stage what is none stays unchosen */
  choose(stage) {
    if (!Number.isInteger(stage) || stage < 0 || stage >= this.num_stages) return;
    this.stage = stage;
    if (Number(this.field.value) !== stage) this.field.value = String(stage);
    this.onChange();
  }
}
