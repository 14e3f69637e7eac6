// How far a target that was asked for from this page is, in words.

import { counted, targetText } from "./format.js";
import { isOver } from "./job_words.js";

/** @typedef {import("./job_state.js").JobPageState} JobPageState */

/**
 * A target that the planner has taken.
 *
 * @typedef {object} Asked
 * @property {string} target
 * @property {number | null} versionBefore the newest one when it was asked.
 * @property {number | null} version the newest one of the planner's answer.
 * @property {string | null | undefined} inForce the target that a timetable has in force instead;
 *   null: none has; undefined: not known.
 */

/**
 * @param {Asked} asked
 * @param {JobPageState} state
 * @returns {{words: string, isOver: boolean}} `isOver`: nothing more will come of it.
 */
export function progressOf(asked, { overview, history }) {
  const { versionBefore, version, inForce } = asked;
  const target = targetText(asked.target);
  if (typeof inForce === "string") {
    return over(
      `${target} is the job's own target now. The timetable has ${targetText(inForce)} in force; outside its windows the new one holds.`,
    );
  }
  if (version === null)
    return over(`${target} is the job's target now. It is planned as soon as there is a profile.`);
  if (version === versionBefore) {
    return over(
      inForce === null
        ? `The job was planned for ${target} already: version ${version} stays.`
        : `${target} is the job's own target now: version ${version} stays.`,
    );
  }
  const plan = history.find((each) => each.version === version);
  if (plan && plan.first_step !== null) {
    return over(`Version ${version} holds from step ${plan.first_step}.`);
  }
  if (overview.active_version !== null && overview.active_version > version) {
    return over(`Version ${overview.active_version} has replaced version ${version}.`);
  }
  if (isOver(overview)) return over(`The job has ended; version ${version} was never active.`);
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
