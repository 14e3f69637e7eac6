// Tables in a frame that scrolls, tables that can be opened, rows that are kept.

import { make, setChildren } from "./elements.js";

/**
 * Create a table in a frame that scrolls on its own.
 * @param {string} label of the frame
 * @param {{selector?: string, caption?: string, heads: string[]}} options `heads` of the columns;
 *   empty: a column without a head
 */
export function makeTable(label, { selector = "table", caption, heads }) {
  const body = make("tbody");
  const cells = heads.map((text) => (text ? make("th", { scope: "col" }, text) : make("td")));
  const head = make("thead", make("tr", ...cells));
  const table = make(selector, caption && make("caption", caption), head, body);
  const attributes = { tabindex: 0, role: "group", "aria-label": label };
  return { frame: make("div.table-frame", attributes, table), table, body };
}

/**
 * Create a table's row of texts, the first of them its head.
 * @param {string[]} texts
 * @param {string[]} [selectors] of the other cells; left out: numbers
 */
export function makeRow([head = "", ...texts], selectors = []) {
  const cells = texts.map((text, index) => make(selectors[index] ?? "td.number", text));
  return make("tr", make("th", { scope: "row" }, head), ...cells);
}

/** Rows of a table by key; a row keeps its element, and with it the focus. */
export class KeyedRows {
  /** @param {HTMLElement} body */
  constructor(body) {
    this.body = body;
    /** @type {Map<string, {row: HTMLElement, content: string}>} */
    this.rows = new Map();
  }

  /**
   * Show these rows in order; one is filled again only if its content has changed.
   * @param {{key: string, content: string, fill(row: HTMLElement): void}[]} shown
   */
  show(shown) {
    const kept = new Set(shown.map(({ key }) => key));
    for (const [key, { row }] of this.rows) {
      if (kept.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    for (const [index, { key, content, fill }] of shown.entries()) {
      const known = this.rows.get(key);
      const row = known?.row ?? make("tr");
      if (known?.content !== content) {
        const hadFocus = row.contains(document.activeElement);
        fill(row);
        /** @type {HTMLElement | null} */
        const control = row.querySelector("a, button");
        if (hadFocus) control?.focus({ preventScroll: true });
        this.rows.set(key, { row, content });
      }
      const there = this.body.children[index] ?? null;
      if (there !== row) this.body.insertBefore(row, there);
    }
  }
}

/** Table in a closed `details`; its rows are created while it is open. */
export class DetailsTable {
  /**
   * @param {HTMLDetailsElement} element empty
   * @param {string} summary
   * @param {string} label
   * @param {Parameters<typeof makeTable>[1]} options
   */
  constructor(element, summary, label, options) {
    const { frame, table, body } = makeTable(label, options);
    this.element = element;
    this.table = table;
    this.body = body;
    /** @type {() => HTMLElement[]} */
    this.makeRows = () => [];
    element.append(make("summary", summary), frame);
    element.addEventListener("toggle", () => this.render());
  }

  /** @param {() => HTMLElement[]} makeRows */
  show(makeRows) {
    this.makeRows = makeRows;
    this.render();
  }

  render() {
    if (this.element.open) setChildren(this.body, ...this.makeRows());
  }
}
