"""The pictures in docs/images: those that the scripts make, none too large for a page."""

from __future__ import annotations

from pathlib import Path

from docs.scripts.take_screenshots import IMAGES, MOST_BYTES, PICTURES, THEMES

ROOT = Path(__file__).parents[2]


def test_the_dashboards_pictures_are_those_that_the_script_takes() -> None:
    taken = {f"dashboard-{picture.name}-{theme}.png" for picture in PICTURES for theme in THEMES}
    taken.add("dashboard-narrow-light.png")
    assert {path.name for path in IMAGES.glob("dashboard-*")} == taken
    assert ROOT / "docs/images" == IMAGES


def test_no_picture_is_too_large_for_a_page() -> None:
    sizes = {path.name: path.stat().st_size for path in IMAGES.iterdir()}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > MOST_BYTES} == {}
