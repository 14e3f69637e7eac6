// What stands in the page's place when the planner refuses it: no token, another's, no such job.

import { make } from "./elements.js";

const LEADS = new Map([
  [401, "This planner asks for a token"],
  [403, "This token does not open this page"],
  [404, "There is no such job here"],
]);

/**
 * @param {number} status
 * @param {string} detail the planner's own words
 * @param {() => void} retry
 * @returns {HTMLElement}
 */
export function refusalNotice(status, detail, retry) {
  return make(
    "section",
    { class: "notice", role: "alert" },
    make("h1", {}, LEADS.get(status) ?? "The planner refuses this"),
    make("p", {}, status === 401 ? "Without one it shows no job." : detail),
    make(
      "p",
      { class: "buttons" },
      make(
        "button",
        { type: "button", onclick: retry },
        status === 401 ? "Enter a token" : "Try again",
      ),
      make("a", { href: "#/", class: "button" }, "All jobs"),
    ),
  );
}
