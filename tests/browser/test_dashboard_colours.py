"""The dashboard's colours: contrast in both themes, each the same however it is chosen."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from playwright.sync_api import Page
from tests.browser.accessibility import faint_texts
from tests.browser.contrast import contrast

GROUNDS = ("--bg", "--surface", "--surface-2")
TEXTS = ("--text", "--text-muted", "--accent", "--good", "--warn", "--bad", "--critical")
# Lines, borders of controls, focus rings: what is told apart but not read.
MARKS = ("--focus", "--control-border", *(f"--series-{number}" for number in range(1, 9)))
TOKENS = (files("flyball_server") / "dashboard/styles/tokens.css").read_text(encoding="utf-8")


@pytest.fixture
def page_of_tokens(browser_page: Page) -> Page:
    browser_page.goto("about:blank")
    browser_page.add_style_tag(content=TOKENS)
    return browser_page


def colours(page: Page) -> dict[str, tuple[int, ...]]:
    """The tokens' colours in force: red, green and blue."""
    names = re.findall(r"(--[\w-]+): light-dark", TOKENS)
    values = page.evaluate(
        """(names) => names.map((name) => {
          document.body.style.color = `var(${name})`;
          return getComputedStyle(document.body).color.match(/\\d+/g).map(Number);
        })""",
        names,
    )
    return dict(zip(names, map(tuple, values), strict=True))


def choose(page: Page, theme: str) -> None:
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_marks_can_be_told_from_what_they_are_on(page_of_tokens: Page, theme: str) -> None:
    choose(page_of_tokens, theme)
    found = colours(page_of_tokens)
    pairs = [(text, ground, 4.5) for text in TEXTS for ground in GROUNDS]
    pairs += [(mark, ground, 3.0) for mark in MARKS for ground in ("--bg", "--surface")]
    pairs += [("--accent-contrast", "--accent", 4.5)]
    faint = {
        (ink, ground): round(contrast(found[ink], found[ground]), 2)
        for ink, ground, least in pairs
        if contrast(found[ink], found[ground]) < least
    }
    assert faint == {}


def test_a_theme_is_the_same_chosen_or_from_the_system(page_of_tokens: Page) -> None:
    light = colours(page_of_tokens)
    page_of_tokens.emulate_media(color_scheme="dark")
    by_system = colours(page_of_tokens)
    choose(page_of_tokens, "light")
    assert colours(page_of_tokens) == light
    page_of_tokens.emulate_media(color_scheme="light")
    choose(page_of_tokens, "dark")
    assert colours(page_of_tokens) == by_system != light


@pytest.mark.parametrize(
    ("style", "ratio"),
    [
        ("color: #777777; background: #ffffff", 4.48),  # the classic that just fails
        ("color: rgba(0, 0, 0, 0.5); background: #ffffff", 3.98),  # 1.05 / (0.2140 + 0.05)
        ("color: #000000; opacity: 0.3", 2.11),  # 1.05 / (0.4480 + 0.05)
    ],
)
def test_faint_text_is_found_with_its_ratio(browser_page: Page, style: str, ratio: float) -> None:
    browser_page.set_content(f'<p style="{style}">faint</p><p style="color: #767676">enough</p>')
    [found] = faint_texts(browser_page)
    assert found.startswith(f"'faint': {ratio:.2f}")
