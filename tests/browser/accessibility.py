"""Accessibility of a page: names, order, contrast.

Read from the browser: its accessibility tree, and the colours of drawn text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.browser.contrast import Rgb, contrast

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Controls and images need a name.
_NAMED_ROLES = re.compile(
    "button|checkbox|combobox|dialog|image|link|listbox|option|radio|searchbox|slider|spinbutton"
    "|tab|textbox"
)
_FAULTS = ("doubled_ids", "lost_references", "jumping", "headless_tables")
_LEAST, _LEAST_LARGE = 4.5, 3.0

# Drawn texts with their colour, ground and size. Layers are blended from the first that hides all
# below it; a text on an image is left out.
_DRAWN_TEXT = """() => {
  const channels = (text) => {
    const parts = text.match(/[\\d.]+/g).map(Number);
    if (text.startsWith("color(srgb")) parts.forEach((v, i) => { if (i < 3) parts[i] = 255 * v; });
    return parts.length === 3 ? [...parts, 1] : parts;
  };
  const over = (top, below) => {
    const blend = (at) => top[at] * top[3] + below[at] * (1 - top[3]);
    return [blend(0), blend(1), blend(2), 1];
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== "none") return null;
      layers.push(channels(style.backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    const text = node.textContent.trim();
    const options = { opacityProperty: true, visibilityProperty: true };
    if (!text || !element.checkVisibility(options)) continue;
    if (element.closest(":disabled, [aria-disabled=true], option, .visually-hidden")) continue;
    const range = document.createRange();
    range.selectNode(node);
    const box = range.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;
    const style = getComputedStyle(element);
    const ground = behind(element);
    if (ground === null) continue;
    const ink = channels(element instanceof SVGElement ? style.fill : style.color);
    for (let at = element; at; at = at.parentElement) ink[3] *= getComputedStyle(at).opacity;
    found.push({
      text: text.slice(0, 60),
      ink: over(ink, ground).slice(0, 3),
      ground: ground.slice(0, 3),
      size_px: Number.parseFloat(style.fontSize),
      weight: Number(style.fontWeight),
    });
  }
  return found;
}"""

_STRUCTURE = """() => {
  const seen = (element) => element.checkVisibility({ visibilityProperty: true });
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const refers = ["aria-labelledby", "aria-describedby", "aria-controls", "for"];
  return {
    lang: document.documentElement.lang,
    title: document.title,
    headings: all("h1, h2, h3, h4, h5, h6")
      .map((each) => [Number(each.tagName[1]), each.textContent]),
    mains: all("main").length,
    doubled_ids: ids.filter((id, at) => ids.indexOf(id) !== at),
    lost_references: refers.flatMap((name) => all(`[${name}]`).flatMap((element) =>
      element.getAttribute(name).split(/\\s+/).filter((id) => !ids.includes(id)))),
    jumping: all("[tabindex]").filter((each) => each.tabIndex > 0).map((each) => each.outerHTML),
    headless_tables: all("table").filter((each) => !each.querySelector("th")).length,
  };
}"""


def assert_accessible(page: Page) -> None:
    """Check that controls have names, headings an order, and texts a contrast."""
    faults = [f"no name: {control}" for control in nameless_loop_states(page)]
    faults += structure_faults(page)
    faults += [f"too faint: {text}" for text in faint_texts(page)]
    assert not faults, "\n".join(faults)


def structure_faults(page: Page) -> list[str]:
    """Return faults of language, title, headings, ids and tables."""
    found = page.evaluate(_STRUCTURE)
    faults = [f"{name}: {found[name]}" for name in _FAULTS if found[name]]
    if found["lang"] != "en" or not found["title"] or found["mains"] != 1:
        faults.append(f"language, title, main: {found}")
    levels = [level for level, _ in found["headings"]]
    deepest = 0
    for level in levels:
        if level > deepest + 1:
            faults.append(f"headings skip a level: {found['headings']}")
        deepest = level
    if levels.count(1) != 1:
        faults.append(f"not one main heading: {found['headings']}")
    return faults


def nameless_loop_states(page: Page) -> list[str]:
    """Return the controls and images without a name."""
    session = page.context.new_cdp_session(page)
    try:
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    finally:
        session.detach()
    return [
        f"{_value(node, 'role')} {node['nodeId']}: {_value(node, 'description')}"
        for node in nodes
        if not node["ignored"]
        and _NAMED_ROLES.fullmatch(_value(node, "role"))
        and not _value(node, "name").strip()
    ]


def faint_texts(page: Page) -> list[str]:
    """Return the texts with less contrast than WCAG 2.2 AA requires, with their ratio."""
    faint: list[str] = []
    for drawn in page.evaluate(_DRAWN_TEXT):
        is_large = drawn["size_px"] >= 24 or (drawn["size_px"] >= 18.66 and drawn["weight"] >= 700)
        ink: Rgb = drawn["ink"]
        ratio = contrast(ink, drawn["ground"])
        if ratio < (_LEAST_LARGE if is_large else _LEAST):
            faint.append(f"{drawn['text']!r}: {ratio:.2f}, {ink} on {drawn['ground']}")
    return faint


def _value(node: dict[str, Any], name: str) -> str:
    """Return a property of a node of the accessibility tree; empty: it has none."""
    return str(node.get(name, {}).get("value", ""))
