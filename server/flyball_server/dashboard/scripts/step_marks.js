// What is drawn on charts of steps beside their lines: versions, stragglers, held-back clocks.

import { fontFamily } from "./step_chart.js";
import { versionRuns } from "./step_series.js";

/**
 * @typedef {import("./step_series.js").StepSeries} StepSeries
 * @typedef {import("./step_chart.js").Plot} Plot
 * @typedef {"power" | "thermal" | "other"} Reason
 * @typedef {import("./step_chart.js").ChartColors} ChartColors
 */

/** @type {{reason: Reason, label: string, sign: string, color: string}[]} */
export const REASONS = [
  { reason: "power", label: "power limit", sign: "\u25b2", color: "warn" },
  { reason: "thermal", label: "heat", sign: "\u25c6", color: "bad" },
  { reason: "other", label: "other reason", sign: "\u25cf", color: "text-muted" },
];

// Marks nearer to each other than this are one, px.
const SPACE = 8;
const MOST_NAMED = 3;
// A run of steps that is narrower has no name of its own, px.
const LEAST_NAMED = 12;

/**
 * Thin lines where another version begins.
 * @param {Plot} plot
 * @param {ChartColors} colors
 * @param {StepSeries} series
 */
export function drawVersions(plot, colors, series) {
  for (const run of versionRuns(series).slice(1)) {
    const x = Math.round(plot.valToPos(series.step[run.from] - 0.5, "x", true));
    verticalLine(plot.ctx, x, plot.bbox, colors["text-muted"], devicePixelRatio);
  }
}

/**
 * The versions' names at their lines, where there is room.
 * @param {Plot} plot
 * @param {ChartColors} colors
 * @param {StepSeries} series
 */
export function nameVersions(plot, colors, series) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  let freeFrom = bbox.left;
  for (const run of versionRuns(series)) {
    const x = Math.round(plot.valToPos(series.step[run.from] - 0.5, "x", true));
    const end = plot.valToPos(series.step[run.to] + 0.5, "x", true);
    if (x < freeFrom - ratio || end - x < LEAST_NAMED * ratio) continue;
    const name = run.version === null ? "no plan" : `v${run.version}`;
    const from = Math.max(x, bbox.left) + 2 * ratio;
    const width = writeOn(ctx, name, from, bbox.top + ratio, colors.surface, colors["text-muted"]);
    freeFrom = from + width + 4 * ratio;
  }
}

/**
 * A tint over the steps that ran a plan made for a straggler.
 * @param {Plot} plot
 * @param {ChartColors} colors
 * @param {ReturnType<typeof import("./step_series.js").plannedStragglers>} planned
 */
export function drawStragglers(plot, colors, planned) {
  const { ctx, bbox } = plot;
  for (const { first_step } of planned) {
    const x = Math.max(bbox.left, plot.valToPos(first_step - 0.5, "x", true));
    const right = bbox.left + bbox.width;
    if (x >= right) continue;
    ctx.fillStyle = `${colors.warn}1c`;
    ctx.fillRect(x, bbox.top, right - x, bbox.height);
  }
}

/**
 * Who the tinted steps were planned for.
 * @param {Plot} plot
 * @param {ChartColors} colors
 * @param {ReturnType<typeof import("./step_series.js").plannedStragglers>} planned
 */
export function nameStragglers(plot, colors, planned) {
  const { ctx, bbox } = plot;
  const tinted = planned.filter(({ first_step }) => first_step <= (plot.scales.x.max ?? -1));
  const ratio = devicePixelRatio;
  tinted.slice(0, MOST_NAMED).forEach(({ straggler }, index) => {
    const isLast = index === MOST_NAMED - 1 && tinted.length > MOST_NAMED;
    const name = `planned for slow rank ${straggler.rank}, ${straggler.slowdown.toFixed(2)}\u00d7`;
    const text = isLast ? `${name}, and ${tinted.length - MOST_NAMED} more` : name;
    ctx.font = `${11 * ratio}px ${fontFamily()}`;
    const from = bbox.left + bbox.width - ctx.measureText(text).width - 6 * ratio;
    writeOn(
      ctx,
      text,
      from,
      bbox.top + bbox.height - 15 * (index + 1) * ratio,
      colors.surface,
      colors.warn,
    );
  });
}

/**
 * Small text on a ground of its own, so that no line runs through it.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {string} ground
 * @param {string} color
 * @returns {number} its width
 */
function writeOn(context, text, x, y, ground, color) {
  const ratio = devicePixelRatio;
  context.font = `${11 * ratio}px ${fontFamily()}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  const width = context.measureText(text).width + 4 * ratio;
  context.fillStyle = ground;
  context.fillRect(x, y, width, 14 * ratio);
  context.fillStyle = color;
  context.fillText(text, x + 2 * ratio, y + 7.5 * ratio);
  return width;
}

/**
 * Small arrows at the edge for values beyond the axis.
 * @param {Plot} plot
 * @param {ChartColors} colors
 * @param {number[]} steps
 * @param {import("./step_series.js").Column} values
 */
export function drawBeyond(plot, colors, steps, values) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const { min = 0, max = 0 } = plot.scales.y;
  ctx.fillStyle = colors.text;
  values.forEach((value, index) => {
    if (value === null || (value >= min && value <= max)) return;
    const x = plot.valToPos(steps[index], "x", true);
    const isAbove = value > max;
    const tip = isAbove ? bbox.top : bbox.top + bbox.height;
    const foot = tip + (isAbove ? 6 : -6) * ratio;
    polygon(ctx, [
      [x, tip],
      [x - 3 * ratio, foot],
      [x + 3 * ratio, foot],
    ]);
  });
}

/**
 * One lane a reason, a mark a step; each reason has a shape of its own.
 * @param {Plot} plot
 * @param {ChartColors} colors
 * @param {StepSeries} series
 */
export function drawHeldBack(plot, colors, series) {
  REASONS.forEach(({ reason, color }, lane) => {
    const y = plot.valToPos(REASONS.length - 0.5 - lane, "y", true);
    plot.ctx.fillStyle = colors[color];
    let last = Number.NEGATIVE_INFINITY;
    series.heldBack.forEach((held, index) => {
      if (held[reason] === 0) return;
      const x = plot.valToPos(series.step[index], "x", true);
      if (x - last < SPACE * devicePixelRatio) return;
      last = x;
      drawSign(plot.ctx, reason, x, y, 4 * devicePixelRatio);
    });
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Reason} reason
 * @param {number} x
 * @param {number} y
 * @param {number} size half of its width
 */
export function drawSign(context, reason, x, y, size) {
  if (reason === "power")
    polygon(context, [
      [x, y - size],
      [x - size, y + size],
      [x + size, y + size],
    ]);
  else if (reason === "thermal")
    polygon(context, [
      [x, y - size],
      [x + size, y],
      [x, y + size],
      [x - size, y],
    ]);
  else {
    context.beginPath();
    context.arc(x, y, 0.8 * size, 0, 2 * Math.PI);
    context.fill();
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number][]} corners
 */
function polygon(context, corners) {
  context.beginPath();
  corners.forEach(([x, y], index) => (index === 0 ? context.moveTo(x, y) : context.lineTo(x, y)));
  context.closePath();
  context.fill();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {{top: number, height: number}} bbox
 * @param {string} color
 * @param {number} ratio
 */
function verticalLine(context, x, bbox, color, ratio) {
  context.strokeStyle = color;
  context.lineWidth = ratio;
  context.setLineDash([2 * ratio, 3 * ratio]);
  context.beginPath();
  context.moveTo(x, bbox.top);
  context.lineTo(x, bbox.top + bbox.height);
  context.stroke();
  context.setLineDash([]);
}
