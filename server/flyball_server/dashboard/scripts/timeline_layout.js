// The instructions of a predicted iteration and the place of their boxes, in s and rows.

/** @import { TimelineOfPlan, TimelineRow } from "./wire_types.js" */

/**
 * Signs of a kind of instruction beside its colour.
 * @typedef {object} Look
 * @property {string} letter
 * @property {number} height share of the full height
 * @property {"" | "/" | "\\"} hatch
 * @property {string} words
 */

/** As in `server/flyball_server/cli/plots/timeline_plot.py`. @type {Record<string, Look>} */
export const LOOKS = {
  forward: { letter: "F", height: 0.7, hatch: "", words: "lower" },
  backward: { letter: "B", height: 1, hatch: "", words: "full height" },
  backward_input: { letter: "I", height: 1, hatch: "/", words: "full height, hatched" },
  backward_weight: { letter: "W", height: 0.7, hatch: "\\", words: "lower, hatched" },
  recompute: { letter: "R", height: 0.45, hatch: "", words: "lowest" },
  step: { letter: "S", height: 1, hatch: "", words: "full height" },
};
const UNKNOWN_LOOK = /** @type {Look} */ ({ letter: "?", height: 1, hatch: "", words: "" });

/** Share of a row that boxes take; the rest keeps rows apart. */
export const ROW_FILL = 0.86;
const CHUNK_SHIFT = 0.2;

/** @param {string} kind */
export function lookOf(kind) {
  return LOOKS[kind] ?? UNKNOWN_LOOK;
}

/**
 * Place of boxes of one kind and chunk in a row, from 0 (top) to 1.
 * @typedef {object} Slot
 * @property {string} kind
 * @property {number} chunk
 * @property {number} top
 * @property {number} bottom
 */

/**
 * Row of the timeline with what drawing needs, in the order of execution.
 * @typedef {object} RowPlaces
 * @property {string} name `stage 3`, or `dp 1, stage 3` of several pipelines
 * @property {number} count
 * @property {number[]} end_s
 * @property {number[]} slot index into the layout's slots
 * @property {boolean[]} isCritical
 */

/** @typedef {TimelineRow & RowPlaces} RowLayout */

/**
 * Consecutive instructions of the critical path in one row.
 * @typedef {object} CriticalRun
 * @property {number} row
 * @property {number} start_s
 * @property {number} end_s
 */

/**
 * Step of the critical path from one row to another.
 * @typedef {object} CriticalLink
 * @property {number} time_s
 * @property {number} fromRow
 * @property {number} toRow
 */

/**
 * @typedef {object} Layout
 * @property {number} iterationTime_s
 * @property {number} energy_j
 * @property {number} bubbleFraction
 * @property {RowLayout[]} rows
 * @property {Slot[]} slots
 * @property {number} numChunks
 * @property {number} slowest_mhz
 * @property {number} fastest_mhz
 * @property {number} shortest_s time of the shortest instruction
 * @property {CriticalRun[]} criticalRuns in the order of the path
 * @property {CriticalLink[]} criticalLinks
 */

/** @param {TimelineOfPlan} timeline @returns {Layout} */
export function layOut(timeline) {
  const slots = slotsOf(timeline.rows);
  const places = new Map(slots.map((slot, index) => [`${slot.kind} ${slot.chunk}`, index]));
  const hasPipelines = timeline.rows.some((row) => row.dp_rank > 0);
  const rows = timeline.rows.map((row) => rowLayout(row, places, hasPipelines));
  for (const [row, position] of timeline.critical_path) rows[row].isCritical[position] = true;
  const clocks = rows.flatMap((row) => row.clock_mhz);
  return {
    iterationTime_s: timeline.iteration_time_s,
    energy_j: timeline.energy_j,
    bubbleFraction: timeline.bubble_fraction,
    rows,
    slots,
    numChunks: 1 + slots.reduce((highest, slot) => Math.max(highest, slot.chunk), 0),
    slowest_mhz: clocks.reduce(least, clocks[0] ?? 0),
    fastest_mhz: clocks.reduce(most, 0),
    shortest_s: rows.flatMap((row) => row.duration_s).reduce(least, timeline.iteration_time_s),
    ...criticalPath(rows, timeline.critical_path),
  };
}

/**
 * Return kind and microbatch as `F3`; `F3.1` in model chunk 1.
 * @param {Layout} layout
 * @param {RowLayout} row
 * @param {number} position
 */
export function instructionLabel(layout, row, position) {
  const { kind, chunk } = layout.slots[row.slot[position]];
  return `${lookOf(kind).letter}${row.microbatches[position]}${chunk ? `.${chunk}` : ""}`;
}

/**
 * Return the position of the instruction that runs at a time; -1: a wait.
 * @param {RowLayout} row
 * @param {number} time_s
 */
export function positionAt(row, time_s) {
  const position = lastStartedBy(row, time_s);
  return position >= 0 && time_s < row.end_s[position] ? position : -1;
}

/**
 * Return the position of the instruction nearest to a time; -1: the row is empty.
 * @param {RowLayout} row
 * @param {number} time_s
 */
export function nearestPosition(row, time_s) {
  const position = lastStartedBy(row, time_s);
  if (position < 0) return row.count ? 0 : -1;
  const isLast = position + 1 === row.count;
  const after = isLast ? Number.POSITIVE_INFINITY : row.start_s[position + 1] - time_s;
  return time_s - row.end_s[position] <= after ? position : position + 1;
}

/**
 * Return the position of the last instruction that has started by a time; -1: none.
 * @param {RowLayout} row
 * @param {number} time_s
 */
export function lastStartedBy(row, time_s) {
  let [low, high] = [0, row.count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.start_s[middle] <= time_s) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * @param {TimelineRow} row
 * @param {Map<string, number>} places
 * @param {boolean} hasPipelines
 * @returns {RowLayout}
 */
function rowLayout(row, places, hasPipelines) {
  const { kinds, chunks, start_s, duration_s, dp_rank, stage } = row;
  return {
    ...row,
    name: hasPipelines ? `dp ${dp_rank}, stage ${stage}` : `stage ${stage}`,
    count: start_s.length,
    end_s: start_s.map((start, position) => start + duration_s[position]),
    slot: kinds.map((kind, position) => places.get(`${kind} ${chunks[position]}`) ?? 0),
    isCritical: start_s.map(() => false),
  };
}

/**
 * Place each kind and chunk: heights show kinds, later chunks stand higher.
 * @param {TimelineRow[]} rows
 * @returns {Slot[]}
 */
function slotsOf(rows) {
  /** @type {Map<string, {kind: string, chunk: number}>} */
  const seen = new Map();
  for (const row of rows) {
    row.kinds.forEach((kind, position) => {
      const name = `${kind} ${row.chunks[position]}`;
      if (!seen.has(name)) seen.set(name, { kind, chunk: row.chunks[position] });
    });
  }
  const chunks = 1 + [...seen.values()].reduce((highest, each) => Math.max(highest, each.chunk), 0);
  const shift = chunks > 1 ? (ROW_FILL * CHUNK_SHIFT) / (chunks - 1) : 0;
  const tallest = chunks > 1 ? ROW_FILL * (1 - CHUNK_SHIFT) : ROW_FILL;
  return [...seen.values()].map(({ kind, chunk }) => {
    const bottom = (1 + ROW_FILL) / 2 - chunk * shift;
    return { kind, chunk, bottom, top: bottom - tallest * lookOf(kind).height };
  });
}

/**
 * @param {RowLayout[]} rows
 * @param {[number, number][]} path
 * @returns {{criticalRuns: CriticalRun[], criticalLinks: CriticalLink[]}}
 */
function criticalPath(rows, path) {
  /** @type {CriticalRun[]} */
  const criticalRuns = [];
  /** @type {CriticalLink[]} */
  const criticalLinks = [];
  for (const [row, position] of path) {
    const last = criticalRuns.at(-1);
    const end_s = rows[row].end_s[position];
    if (last && last.row === row) {
      last.end_s = end_s;
      continue;
    }
    // Each of several pipelines has a path of its own.
    if (last && rows[last.row].dp_rank === rows[row].dp_rank) {
      criticalLinks.push({ time_s: last.end_s, fromRow: last.row, toRow: row });
    }
    criticalRuns.push({ row, start_s: rows[row].start_s[position], end_s });
  }
  return { criticalRuns, criticalLinks };
}

/** @param {number} one @param {number} other */
function least(one, other) {
  return Math.min(one, other);
}

/** @param {number} one @param {number} other */
function most(one, other) {
  return Math.max(one, other);
}
