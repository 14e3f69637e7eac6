// Placement of labels beside marks, without overlaps.

/**
 * Upper left corner and size, px.
 * @typedef {{x: number, y: number, width: number, height: number}} Rectangle
 */

/**
 * Mark with the size of its label, px.
 * @typedef {object} Labelled
 * @property {number} x middle of the mark
 * @property {number} y
 * @property {number} radius of the mark
 * @property {number} width of the label
 * @property {number} height
 * @property {[number, number]} [prefers] preferred direction; [0, 1]: below
 */

/** @typedef {{x: number, y: number, radius: number}} Spot */

/**
 * Upper left corner of a label; `isFar`: a line should lead to it.
 * @typedef {{x: number, y: number, isFar: boolean}} Placed
 */

// Right, left, above, below, then diagonally.
const STRAIGHT = [[1, 0], [-1, 0], [0, -1], [0, 1]];
const DIRECTIONS = [...STRAIGHT, [1, -1], [1, 1], [-1, -1], [-1, 1]];
const DISTANCES = [5, 12, 24, 38, 56, 78, 104, 134, 170];
const FAR = 16;
const COSTS = { spot: 40, notPreferred: 25, nearOther: 80, mark: 200, crossing: 400 };
const IMPOSSIBLE = { overlap: 1e5, outside: 1e6 };

/**
 * Possible place of a label; `leader`: line from its mark.
 * @typedef {object} Candidate
 * @property {Rectangle} rectangle
 * @property {number} distance
 * @property {boolean} isPreferred
 * @property {Line | null} leader
 */

/** From x1, y1 to x2, y2. @typedef {[number, number, number, number]} Line */

/**
 * @param {Labelled[]} marks in the order of choice
 * @param {Spot[]} spots to avoid, beside the marks
 * @param {Rectangle} room
 * @returns {Placed[]} in the order of the marks
 */
export function placeLabels(marks, spots, room) {
  const all = [...marks, ...spots];
  /** @type {Candidate[]} */
  const taken = [];
  return marks.map((mark) => {
    const judged = candidates(mark, room).map((candidate) => {
      let sum = cost(candidate, all, taken, room);
      if (isNearOther(candidate, mark, marks)) sum += COSTS.nearOther;
      if (marks.some((other) => strikes(candidate, other))) sum += COSTS.mark;
      return { candidate, sum };
    });
    const least = judged.reduce((one, other) => (other.sum < one.sum ? other : one));
    const { rectangle, leader } = least.candidate;
    taken.push(least.candidate);
    return { x: rectangle.x, y: rectangle.y, isFar: leader !== null };
  });
}

/** @param {Labelled} mark @param {Rectangle} room @returns {Candidate[]} */
function candidates({ x, y, radius, width, height, prefers }, room) {
  return DISTANCES.flatMap((distance) =>
    DIRECTIONS.map(([toX, toY]) => {
      const away = (radius + distance) * (toX !== 0 && toY !== 0 ? Math.SQRT1_2 : 1);
      const left = x + toX * (away + width / 2) - width / 2;
      const rectangle = {
        x: Math.max(room.x, Math.min(left, room.x + room.width - width)),
        y: y + toY * (away + height / 2) - height / 2,
        width,
        height,
      };
      const isPreferred = !prefers || (prefers[0] === toX && prefers[1] === toY);
      const leader = distance < FAR ? null : leaderTo(rectangle, x, y);
      return { rectangle, distance, isPreferred, leader };
    }),
  );
}

/**
 * @param {Candidate} candidate
 * @param {Spot[]} spots
 * @param {Candidate[]} taken
 * @param {Rectangle} room
 */
function cost({ rectangle, distance, isPreferred, leader }, spots, taken, room) {
  let sum = distance + (isPreferred ? 0 : COSTS.notPreferred);
  for (const spot of spots) if (covers(rectangle, spot)) sum += COSTS.spot;
  for (const other of taken) {
    if (overlap(rectangle, other.rectangle)) sum += IMPOSSIBLE.overlap;
    if (leader && crosses(leader, other.rectangle)) sum += COSTS.crossing;
    if (other.leader && crosses(other.leader, rectangle)) sum += COSTS.crossing;
  }
  if (!isInside(rectangle, room)) sum += IMPOSSIBLE.outside;
  return sum;
}

/**
 * Return whether a label without a line is as near to another mark as to its own.
 * @param {Candidate} candidate
 * @param {Labelled} mark
 * @param {Labelled[]} marks
 */
function isNearOther({ rectangle, leader }, mark, marks) {
  if (leader) return false;
  const own = awayFrom(rectangle, mark) - mark.radius;
  return marks.some(
    (other) => other !== mark && awayFrom(rectangle, other) - other.radius <= own + 3,
  );
}

/**
 * Return the distance of a spot to a rectangle.
 * @param {Rectangle} rectangle
 * @param {{x: number, y: number}} spot
 */
function awayFrom(rectangle, { x, y }) {
  const [, , toX, toY] = leaderTo(rectangle, x, y);
  return Math.hypot(x - toX, y - toY);
}

/**
 * Return the line from a mark to the nearest place of its label.
 * @param {Rectangle} rectangle
 * @param {number} x
 * @param {number} y
 * @returns {Line}
 */
export function leaderTo(rectangle, x, y) {
  return [
    x,
    y,
    Math.min(Math.max(x, rectangle.x), rectangle.x + rectangle.width),
    Math.min(Math.max(y, rectangle.y), rectangle.y + rectangle.height),
  ];
}

/** Return whether a line meets a rectangle. @param {Line} line @param {Rectangle} rectangle */
function crosses([x1, y1, x2, y2], { x, y, width, height }) {
  let [from, until] = [0, 1];
  const sides = [
    [x1 - x2, x1 - x],
    [x2 - x1, x + width - x1],
    [y1 - y2, y1 - y],
    [y2 - y1, y + height - y1],
  ];
  for (const [outward, room] of sides) {
    if (outward === 0 && room < 0) return false;
    if (outward < 0) from = Math.max(from, room / outward);
    if (outward > 0) until = Math.min(until, room / outward);
  }
  return from <= until;
}

/** @param {Rectangle} one @param {Rectangle} other */
function overlap(one, other) {
  return (
    one.x < other.x + other.width &&
    other.x < one.x + one.width &&
    one.y < other.y + other.height &&
    other.y < one.y + one.height
  );
}

/** @param {Rectangle} rectangle @param {Spot} spot */
function covers(rectangle, spot) {
  return awayFrom(rectangle, spot) < spot.radius;
}

/**
 * Return whether a label or its line lies on another mark.
 * @param {Candidate} candidate
 * @param {Labelled} mark
 */
function strikes({ rectangle, leader }, mark) {
  const { x, y, radius } = mark;
  if (covers(rectangle, mark)) return true;
  if (!leader || (leader[0] === x && leader[1] === y)) return false;
  const size = 1.4 * radius;
  return crosses(leader, { x: x - size / 2, y: y - size / 2, width: size, height: size });
}

/** @param {Rectangle} inner @param {Rectangle} outer */
function isInside(inner, outer) {
  return (
    inner.x >= outer.x &&
    inner.y >= outer.y &&
    inner.x + inner.width <= outer.x + outer.width &&
    inner.y + inner.height <= outer.y + outer.height
  );
}
