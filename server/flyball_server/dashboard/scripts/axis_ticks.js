// Round figures along an axis.

/**
 * @typedef {object} Ticks
 * @property {number[]} values rising, within the axis.
 * @property {number} decimals that tell neighbouring values apart.
 */

/**
 * Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most `most` of them.
 *
 * @param {number} low
 * @param {number} high above `low`
 * @param {number} most at least 1
 * @returns {Ticks}
 */
export function roundTicks(low, high, most) {
  if (!(high > low) || !(most >= 1)) return { values: [], decimals: 0 };
  const rough = (high - low) / most;
  const power = Math.floor(Math.log10(rough));
  for (const [factor, shift] of [
    [1, 0],
    [2, 0],
    [5, 0],
    [1, 1],
    [2, 1],
  ]) {
    const exponent = power + shift;
    const ticks = multiples(low, high, factor, exponent);
    if (ticks.length <= most) return { values: ticks, decimals: Math.max(0, -exponent) };
  }
  return { values: [], decimals: 0 };
}

/**
 * @param {number} low
 * @param {number} high
 * @param {number} factor
 * @param {number} exponent
 */
function multiples(low, high, factor, exponent) {
  const step = factor * 10 ** exponent;
  const values = [];
  const tolerance = (high - low) * 1e-9;
  for (
    let count = Math.ceil((low - tolerance) / step);
    count * step <= high + tolerance;
    count += 1
  ) {
    // Through text, so that 3 times 0.1 is 0.3.
    values.push(Number((count * step).toFixed(Math.max(0, -exponent))));
  }
  return values;
}
