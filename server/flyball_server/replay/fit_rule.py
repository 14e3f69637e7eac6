"""Choice of the runs to fit: `every-second`, `spread:N`, `names:a,b,c` or `all`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.replay.recorded_runs import RecordingError

FIT_FORMS = ("every-second", "spread:5", "names:baseline,perseus-3", "all")
DEFAULT_FIT = "every-second"


@dataclass(frozen=True, kw_only=True)
class FitRule:
    """A choice of runs.

    Attributes:
        kind: `every-second`: the first, third, fifth ... in the file's order; `spread`: as many
            as `count`, evenly spaced from the first to the last; `names`: those named; `all`.
        count: of `spread`.
        names: of `names`.
    """

    kind: str
    count: int = 0
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The rule as it is given."""
        if self.kind == "spread":
            return f"spread:{self.count}"
        return f"names:{','.join(self.names)}" if self.kind == "names" else self.kind

    def chosen(self, names: Sequence[str]) -> tuple[int, ...]:
        """Places of the runs to fit, rising.

        Args:
            names: of all runs, in the file's order.

        Raises:
            RecordingError: a run that is named is not there, or there are fewer than `count`.
        """
        if self.kind == "every-second":
            return tuple(range(0, len(names), 2))
        if self.kind == "all":
            return tuple(range(len(names)))
        if self.kind == "names":
            for name in self.names:
                if name not in names:
                    raise RecordingError(
                        f"--fit names an unknown run; known: {', '.join(names)}",
                        run=name,
                    )
            return tuple(sorted({names.index(name) for name in self.names}))
        if self.count > len(names):
            raise RecordingError(f"--fit spread:{self.count} of {len(names)} runs; give fewer")
        last = len(names) - 1
        return tuple(round(place * last / (self.count - 1)) for place in range(self.count))


def parse_fit(text: str) -> FitRule:
    """Return the rule that `text` gives.

    Raises:
        ValueError: it gives none; the message lists the forms.
    """
    kind, colon, value = text.partition(":")
    if text in ("every-second", "all"):
        return FitRule(kind=text)
    if kind == "spread" and value.isdecimal() and 2 <= len(value) + 1 <= 6 and int(value) >= 2:
        return FitRule(kind=kind, count=int(value))
    names = tuple(name.strip() for name in value.split(","))
    if kind == "names" and colon and all(names):
        return FitRule(kind=kind, names=names)
    raise ValueError(f"unknown {text!r}; known: {', '.join(FIT_FORMS)}")
