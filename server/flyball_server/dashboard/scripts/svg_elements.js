// Makes elements of SVG pictures; what is written in them is always text.

/**
 * @param {string} tag
 * @param {Record<string, string | number | null | undefined>} [attributes] null: left out.
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/**
 * A line through points, as the `d` of a path.
 *
 * @param {[number, number][]} points px
 */
export function lineThrough(points) {
  return points
    .map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`)
    .join("");
}

/**
 * How wide a text will be, px.
 *
 * @param {string} text
 * @param {string} font as CSS has it.
 */
export function textWidth(text, font) {
  const context = document.createElement("canvas").getContext("2d");
  if (!context) return 7 * text.length;
  context.font = font;
  return context.measureText(text).width;
}
