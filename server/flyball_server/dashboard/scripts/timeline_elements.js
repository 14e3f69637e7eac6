// The elements of the timeline that is drawn: panes, buttons, what is told of a box.

import { make, setChildren } from "./elements.js";

const HELP =
  "Wheel, pinch, + and \u2212 zoom; dragging and arrow keys pan; 0 shows all. Enter reads boxes:" +
  " then arrow keys go from box to box, and Escape ends it.";

let numMade = 0;

/**
 * @typedef {object} TimelineElements
 * @property {HTMLElement} surface holds the panes; takes the focus.
 * @property {HTMLElement[]} titles of the plan's pane, of the baseline's.
 * @property {HTMLCanvasElement[]} canvases likewise.
 * @property {HTMLElement} tools
 * @property {HTMLElement} help
 */

/**
 * @param {{zoomOut: () => void, zoomIn: () => void, showAll: () => void}} actions
 * @returns {TimelineElements}
 */
export function makeTimelineElements(actions) {
  numMade += 1;
  const help = make("p", { class: "timeline-help", id: `timeline-help-${numMade}` }, HELP);
  const surface = make("div", {
    class: "timeline-surface",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "timeline",
    "aria-describedby": help.id,
  });
  const titles = [0, 1].map(() => make("h3", { class: "timeline-title" }));
  const canvases = [0, 1].map(() => document.createElement("canvas"));
  titles.forEach((title, pane) => surface.append(title, canvases[pane]));
  const tools = make(
    "div",
    { class: "timeline-tools", role: "group", "aria-label": "Zoom" },
    button("\u2212", actions.zoomOut, "Zoom out"),
    button("+", actions.zoomIn, "Zoom in"),
    button("Show all", actions.showAll),
  );
  return { surface, titles, canvases, tools, help };
}

/**
 * @param {string} text
 * @param {() => void} onclick
 * @param {string} [label]
 */
function button(text, onclick, label) {
  return make("button", { type: "button", onclick, "aria-label": label }, text);
}

/** A place in the surface, px. @typedef {import("./timeline_marks.js").Box} Box */

/** The frame around a box and its figures beside it. */
export class TimelineTip {
  /** @param {HTMLElement} surface */
  constructor(surface) {
    this._surface = surface;
    this._frame = make("div", { class: "timeline-frame", hidden: true });
    // The same words are announced when a box is reached by keys.
    this._words = make("div", { class: "timeline-tip", hidden: true, "aria-hidden": "true" });
    surface.append(this._frame, this._words);
  }

  hide() {
    this._frame.hidden = true;
    this._words.hidden = true;
  }

  /**
   * @param {string[]} lines
   * @param {Box} place
   * @param {boolean} isFramed
   */
  show(lines, place, isFramed) {
    this._frame.hidden = !isFramed;
    this._words.hidden = false;
    if (isFramed) setPlace(this._frame, place);
    if (this._words.textContent !== lines.join("")) {
      setChildren(this._words, ...lines.map((line) => make("div", {}, line)));
    }
    const { offsetWidth: width, offsetHeight: height } = this._words;
    const left = place.left + place.width / 2 - width / 2;
    const above = place.top - height - 6;
    setPlace(this._words, {
      left: Math.max(0, Math.min(left, this._surface.clientWidth - width)),
      top: above < 0 ? place.top + place.height + 6 : above,
    });
  }
}

/**
 * @param {HTMLElement} element
 * @param {Partial<Box>} place
 */
function setPlace(element, place) {
  for (const [name, value] of Object.entries(place)) element.style.setProperty(name, `${value}px`);
}
