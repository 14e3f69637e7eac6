// @ts-check
// The theme's colours for canvases, which know no CSS variables.

/** @typedef {import("./clock_scale.js").Rgb} Rgb */

/**
 * The tokens' values as they hold now.
 *
 * @template {string} Name
 * @param {...Name} names of `styles/tokens.css`, without the dashes: `text-muted`
 * @returns {Record<Name, string>}
 */
export function themeColors(...names) {
  const style = getComputedStyle(document.documentElement);
  const colors = names.map((name) => [
    name,
    style.getPropertyValue(`--${name}`).trim() || "#808080",
  ]);
  return Object.fromEntries(colors);
}

/**
 * A CSS colour as its channels.
 *
 * @param {string} color
 * @returns {Rgb}
 */
export function channelsOf(color) {
  const canvas = document.createElement("canvas");
  canvas.width = 1;
  canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) return [128, 128, 128];
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return [red, green, blue];
}
