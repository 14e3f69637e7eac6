// The theme's colours for canvases, which know no CSS variables.

/** @typedef {import("./clock_scale.js").Rgb} Rgb */

/**
 * The tokens' values as they hold now, each `#rrggbb`, so that two digits make it transparent.
 *
 * @template {string} Name
 * @param {...Name} names of `styles/tokens.css`, without the dashes: `text-muted`
 * @returns {Record<Name, string>}
 */
export function themeColors(...names) {
  // A token holds two colours, light and dark: which one it is comes out where it is used.
  const probe = document.createElement("span");
  document.documentElement.append(probe);
  const colors = names.map((name) => {
    probe.style.color = `var(--${name}, #808080)`;
    return [name, hexOf(getComputedStyle(probe).color)];
  });
  probe.remove();
  return Object.fromEntries(colors);
}

/**
 * @param {string} color `rgb(1, 2, 3)`
 * @returns {string}
 */
function hexOf(color) {
  const channels = color.match(/\d+/g) ?? [];
  return `#${channels.map((channel) => Number(channel).toString(16).padStart(2, "0")).join("")}`;
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
