"""Targets of a plan: the forms that a text may have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flyball_wire.options import OptionError

TARGET_FORMS = ("fastest", "slowdown:5%", "deadline:2.9", "least-energy", "power:8000")
TARGET_FORM = "fastest, least-energy, slowdown:5%, deadline:2.9 (s), power:8000 (W) or power:limit"
LIMIT_TARGET = "power:limit"
"""Target of the sum of the GPUs' enforced power limits, as an average power."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An aim: `fastest`, `slowdown` (share), `deadline` (s), `least-energy`, `power` (W).

    The power of `power:limit` is infinite until the limits are known.
    """

    kind: str
    value: float = 0.0


def parse_target(text: str) -> Target:
    """Return the target that `text` names; a slowdown is in percent with `%`, else a share.

    Raises:
        OptionError: it names none, or a share of 1 or more, which may be percent without the sign.
    """
    target = _target(text)
    if target is None:
        raise OptionError(f"must be {TARGET_FORM}, not {text!r}", field="target")
    return target


def is_target(text: str) -> bool:
    """Return whether a text names a target.

    Raises:
        OptionError: it names a share of 1 or more.
    """
    return _target(text) is not None


def _target(text: str) -> Target | None:
    kind, colon, value_text = text.partition(":")
    forms = {form.partition(":")[0]: ":" in form for form in TARGET_FORMS}
    if kind not in forms or bool(colon) != forms[kind]:
        return None
    if not colon:
        return Target(kind=kind)
    if text == LIMIT_TARGET:
        return Target(kind=kind, value=math.inf)
    number_text = value_text.removesuffix("%") if kind == "slowdown" else value_text
    try:
        value = float(number_text) / (1 if number_text == value_text else 100)
    except ValueError:
        return None
    least = 0.0 if kind == "slowdown" else math.ulp(0.0)
    if not (math.isfinite(value) and value >= least):
        return None
    if kind == "slowdown" and value >= 1 and number_text == value_text:
        raise OptionError(
            f"{text!r} would be {100 * value:g} %; write 'slowdown:{value_text}%' or"
            f" 'slowdown:{100 * value:g}%'",
            field="target",
        )
    return Target(kind=kind, value=value)
