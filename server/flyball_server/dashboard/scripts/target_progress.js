// @ts-check
// How far a target that was asked for from this page is, in words.

import { counted } from "./format.js";

/** @typedef {import("./wire_types.js").JobPageState} JobPageState */

/**
 * A target that the planner has taken.
 *
 * @typedef {object} Asked
 * @property {string} target
 * @property {number | null} versionBefore the newest one when it was asked.
 * @property {number | null} version the newest one of the planner's answer.
 * @property {string | null} inForce the target that a timetable has in force instead; else null.
 */

/**
 * @param {Asked} asked
 * @param {JobPageState} state
 * @returns {{words: string, isOver: boolean}} `isOver`: nothing more will come of it.
 */
export function progressOf({ target, versionBefore, version, inForce }, { overview, history }) {
  if (inForce !== null) {
    return over(
      `${target} is the job's own target now. The timetable has ${inForce} in force; outside its windows the new one holds.`,
    );
  }
  if (version === null)
    return over(`${target} is the job's target now. It is planned as soon as there is a profile.`);
  if (version === versionBefore) {
    return over(`The job was planned for ${target} already: version ${version} stays.`);
  }
  const plan = history.find((each) => each.version === version);
  if (plan && plan.first_step !== null) {
    return over(`Version ${version} holds from step ${plan.first_step}.`);
  }
  if (overview.active_version !== null && overview.active_version > version) {
    return over(`Version ${overview.active_version} has overtaken version ${version}.`);
  }
  return { words: `Version ${version} is made. ${waitingWords(overview)}`, isOver: false };
}

/** @param {import("./wire_types.js").JobOverview} overview */
function waitingWords({ num_ranks, num_present }) {
  const ranks = counted(num_ranks, "rank");
  if (num_present < num_ranks) {
    return `It takes effect when ${ranks} have it; of these, ${num_present} were heard of lately.`;
  }
  return `It waits until ${ranks} have it.`;
}

/** @param {string} words */
function over(words) {
  return { words, isOver: true };
}
