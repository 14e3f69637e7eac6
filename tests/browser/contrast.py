"""Contrast of colours as WCAG 2.2 defines it."""

from __future__ import annotations

from collections.abc import Sequence

Rgb = Sequence[float]
"""Red, green and blue, 0 to 255."""


def contrast(one: Rgb, other: Rgb) -> float:
    """From 1, the same, to 21, black on white; WCAG 2.2, "contrast ratio"."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Rgb) -> float:
    """From 0, black, to 1, white; WCAG 2.2, "relative luminance"."""
    red, green, blue = (_linear(channel / 255) for channel in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(share: float) -> float:
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
