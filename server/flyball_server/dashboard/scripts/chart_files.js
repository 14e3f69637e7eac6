// Files of a chart: its figures as CSV, its picture as PNG; made in the browser.

import { fontFamily, make } from "./elements.js";
import { themeColors } from "./theme.js";

/** Row of a file; null: not measured. @typedef {(string | number | null)[]} CsvRow */

/**
 * @typedef {object} ChartFiles
 * @property {string | (() => string)} title of the chart
 * @property {() => CsvRow[]} rows names of the columns first
 * @property {() => (HTMLCanvasElement | SVGElement)[]} pictures from top to bottom
 * @property {() => LineName[]} [legend] of lines
 * @typedef {{label: string, color: string, dash: number[]}} LineName `color` empty: text alone
 */

const [TITLE_PX, LEGEND_PX] = [28, 20];
// Of an element in an SVG file, what the page's styles give it.
const STYLES = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin"],
  ...["opacity", "font-family", "font-size", "font-weight", "text-anchor", "paint-order"],
  ...["visibility", "r"],
];

/** Create the buttons that save a chart. @param {ChartFiles} files */
export function fileButtons({ title, rows, pictures, legend = () => [] }) {
  const name = typeof title === "string" ? title : title().split(",")[0];
  const button = (/** @type {string} */ kind, /** @type {() => Promise<Blob>} */ file) =>
    make(
      "button.quiet",
      {
        "aria-label": `${name}: save as ${kind}`,
        onclick: async () => save(await file(), `${fileName(name)}.${kind.toLowerCase()}`),
      },
      kind,
    );
  return make(
    "span.chart-files",
    button("CSV", async () => new Blob([csvText(rows())], { type: "text/csv" })),
    button("PNG", () => pictureOf(`${jobName()}: ${typeof title === "string" ? title : title()}`, legend(), pictures())),
  );
}

/** @param {CsvRow[]} rows */
export function csvText(rows) {
  const cell = (/** @type {string | number | null} */ value) => {
    const text = String(value ?? "");
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
}

function jobName() {
  return document.title.split(" \u2013 ")[0];
}

/** @param {string} title */
function fileName(title) {
  return `${jobName()} ${title}`.replaceAll(/[^\w.+-]+/g, "-").toLowerCase();
}

/** @param {Blob} file @param {string} name */
function save(file, name) {
  const href = URL.createObjectURL(file);
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/**
 * Draw pictures below a title, on the page's ground.
 * @param {string} title
 * @param {LineName[]} legend
 * @param {(HTMLCanvasElement | SVGElement)[]} pictures
 * @returns {Promise<Blob>}
 */
async function pictureOf(title, legend, pictures) {
  const ratio = devicePixelRatio;
  const parts = await Promise.all(
    pictures.map(async (picture) => {
      const { width, height } = picture.getBoundingClientRect();
      return { width, height, image: picture instanceof SVGElement ? await imageOf(picture) : picture };
    }),
  );
  const canvas = make("canvas");
  canvas.width = Math.ceil(ratio * Math.max(...parts.map(({ width }) => width)));
  const head = TITLE_PX + (legend.length > 0 ? LEGEND_PX : 0);
  canvas.height = Math.ceil(ratio * parts.reduce((sum, { height }) => sum + height, head));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const colors = themeColors("surface", "text");
  context.scale(ratio, ratio);
  context.fillStyle = colors.surface;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = colors.text;
  context.font = `600 13px ${fontFamily()}`;
  context.fillText(title, 8, 18);
  drawLegend(context, legend);
  let top = head;
  for (const { width, height, image } of parts) {
    context.drawImage(image, 0, top, width, height);
    top += height;
  }
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the chart is too large"))));
  });
}

/** @param {CanvasRenderingContext2D} context @param {LineName[]} legend */
function drawLegend(context, legend) {
  context.font = `11px ${fontFamily()}`;
  context.lineWidth = 2;
  let left = 8;
  for (const { label, color, dash } of legend) {
    if (color) {
      context.strokeStyle = color;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(left, TITLE_PX + 6);
      context.lineTo(left + 22, TITLE_PX + 6);
      context.stroke();
      left += 28;
    }
    context.fillText(label, left, TITLE_PX + 10);
    left += context.measureText(label).width + 16;
  }
  context.setLineDash([]);
}

/** @param {SVGElement} svg */
async function imageOf(svg) {
  const copy = /** @type {SVGElement} */ (svg.cloneNode(true));
  const copies = [copy, ...copy.querySelectorAll("*")];
  [svg, ...svg.querySelectorAll("*")].forEach((element, index) => {
    const style = getComputedStyle(element);
    // As attributes: the page's policy forbids inline styles.
    for (const name of STYLES) copies[index].setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const image = new Image();
  const text = new XMLSerializer().serializeToString(copy);
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  await image.decode();
  return image;
}
