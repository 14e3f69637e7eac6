// The instructions of a predicted iteration as typed arrays, and where their boxes lie; no drawing.
//
// Across is time in s, downwards rows; a box's bottom and height are shares of its row's height.

/** @typedef {import("./wire_types.js").TimelineRow} TimelineRow */
/** @typedef {import("./wire_types.js").TimelineOfPlan} TimelineOfPlan */

/**
 * What tells a kind of instruction without colour.
 *
 * @typedef {object} Look
 * @property {string} letter
 * @property {number} height share of the box's full height.
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
 * Where boxes of one kind and chunk stand in a row, from 0 (its top) to 1.
 *
 * @typedef {object} Slot
 * @property {string} kind
 * @property {number} chunk
 * @property {number} top
 * @property {number} bottom
 */

/**
 * One row, ready to be drawn; all arrays as long, in the order of execution.
 *
 * @typedef {object} RowLayout
 * @property {number} stage
 * @property {number} dpRank
 * @property {string} name `stage 3`, or `dp 1, stage 3` of several pipelines.
 * @property {number} blockingPower_w of the row's GPUs together while they wait.
 * @property {number} count
 * @property {Float64Array} start_s
 * @property {Float64Array} end_s
 * @property {Int32Array} clock_mhz
 * @property {Int32Array} microbatch
 * @property {Uint16Array} slot index into the layout's slots.
 * @property {Float64Array} energy_j
 * @property {Float64Array} float_s
 * @property {Uint8Array} isCritical
 */

/**
 * Instructions of the critical path that run on end in one row.
 *
 * @typedef {object} CriticalRun
 * @property {number} row
 * @property {number} start_s
 * @property {number} end_s
 */

/**
 * Where the critical path goes from one row to another.
 *
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
 * @property {number} shortest_s the shortest instruction's time.
 * @property {CriticalRun[]} criticalRuns in the order of the path.
 * @property {CriticalLink[]} criticalLinks
 */

/**
 * @param {TimelineOfPlan} timeline
 * @returns {Layout}
 */
export function layOut(timeline) {
  const slots = slotsOf(timeline.rows);
  const places = new Map(slots.map((slot, index) => [`${slot.kind} ${slot.chunk}`, index]));
  const hasPipelines = timeline.rows.some((row) => row.dp_rank > 0);
  const rows = timeline.rows.map((row) => rowLayout(row, places, hasPipelines));
  for (const [row, position] of timeline.critical_path) rows[row].isCritical[position] = 1;
  const clocks = rows.flatMap((row) =>
    row.count ? [row.clock_mhz.reduce(least), row.clock_mhz.reduce(most)] : [],
  );
  return {
    iterationTime_s: timeline.iteration_time_s,
    energy_j: timeline.energy_j,
    bubbleFraction: timeline.bubble_fraction,
    rows,
    slots,
    numChunks: 1 + slots.reduce((highest, slot) => Math.max(highest, slot.chunk), 0),
    slowest_mhz: clocks.length ? clocks.reduce(least) : 0,
    fastest_mhz: clocks.length ? clocks.reduce(most) : 0,
    shortest_s: rows.map(shortestTime_s).reduce(least, timeline.iteration_time_s),
    ...criticalPath(rows, timeline.critical_path),
  };
}

/**
 * Kind and microbatch, as `F3`; `F3.1` in model chunk 1.
 *
 * @param {Layout} layout
 * @param {RowLayout} row
 * @param {number} position
 */
export function instructionLabel(layout, row, position) {
  const { kind, chunk } = layout.slots[row.slot[position]];
  return `${lookOf(kind).letter}${row.microbatch[position]}${chunk ? `.${chunk}` : ""}`;
}

/**
 * The position in the row of the instruction that runs at a time, or -1 while it waits.
 *
 * @param {RowLayout} row
 * @param {number} time_s
 */
export function positionAt(row, time_s) {
  const position = lastStartedBy(row, time_s);
  return position >= 0 && time_s < row.end_s[position] ? position : -1;
}

/**
 * The position in the row of the instruction nearest to a time, -1 in an empty row.
 *
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
 * The last instruction that has started by a time, or -1.
 *
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
  const start_s = Float64Array.from(row.start_s);
  return {
    stage: row.stage,
    dpRank: row.dp_rank,
    name: hasPipelines ? `dp ${row.dp_rank}, stage ${row.stage}` : `stage ${row.stage}`,
    blockingPower_w: row.blocking_power_w,
    count: start_s.length,
    start_s,
    end_s: start_s.map((start, position) => start + row.duration_s[position]),
    clock_mhz: Int32Array.from(row.clock_mhz),
    microbatch: Int32Array.from(row.microbatches),
    slot: Uint16Array.from(
      row.kinds,
      (kind, position) => places.get(`${kind} ${row.chunks[position]}`) ?? 0,
    ),
    energy_j: Float64Array.from(row.energy_j),
    float_s: Float64Array.from(row.float_s),
    isCritical: new Uint8Array(start_s.length),
  };
}

/** @param {RowLayout} row */
function shortestTime_s({ start_s, end_s }) {
  return end_s.reduce(
    (shortest, end, at) => Math.min(shortest, end - start_s[at]),
    Number.POSITIVE_INFINITY,
  );
}

/**
 * Where each kind and chunk stands: heights tell kinds, later chunks stand higher.
 *
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
    // Of several pipelines each has a path of its own: none goes from one to another.
    if (last && rows[last.row].dpRank === rows[row].dpRank) {
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
