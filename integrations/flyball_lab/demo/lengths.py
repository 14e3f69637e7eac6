"""Parts of `flyball demo --lengths`: lengths of its sequences, and its measured steps."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.options import JOB_ID, DemoOptions
from flyball_lab.demo.run_folder import DemoFailedError
from flyball_lab.demo.verdict import COMPARISON_TOLERANCE_PERCENT, TOLERANCE_PERCENT
from flyball_pipeline.work import WorkCoefficients
from flyball_wire.closed_loop import ComparisonRequest, ComparisonState
from flyball_wire.savings import BaselineOrigin, Estimate, VersionSavings

MOST_TOKENS = 24
"""Tokens of the longest sequence, to which the others are padded."""
_ALL_STEPS = 10_000
_SEED = 1788
_MEDIAN_TOKENS, _SCATTER, _FEWEST_TOKENS = 7, 0.7, 2
# Time of an instruction over that in the profile, whose sequences have some 8.6 tokens, the mean.
_TRUE = WorkCoefficients(0.15, 0.09, 0.0008)


def num_tokens(number: int) -> int:
    """Return the length of a microbatch's only sequence: log-normal, with a heavy tail.

    Args:
        number: number of the microbatch since the begin of training.
    """
    draw = random.Random(f"{_SEED}/{number}").lognormvariate(math.log(_MEDIAN_TOKENS), _SCATTER)
    return min(MOST_TOKENS, max(_FEWEST_TOKENS, round(draw)))


def work_factor(tokens: int) -> float:
    """Return an emulated instruction's time and energy over those in the profile."""
    return _TRUE.factor((tokens, tokens * tokens))


@dataclass(kw_only=True)
class ComparedSteps:
    """Steps with plans of their own in turn with steps at the highest clocks, as they come."""

    num_pairs: int
    is_started: bool = False
    #: Predicted saving of steps with plans of their own in J, by step.
    predicted_j: dict[int, float] = field(default_factory=dict[int, float])

    def follow(self, client: PlannerClient) -> bool:
        """Start comparing once a step has a plan of its own; return whether it is over."""
        own_plan = client.get_job_overview(JOB_ID).own_plan
        if own_plan is not None:
            self.predicted_j[own_plan.step] = own_plan.predicted_saved_j
        if not self.is_started:
            if own_plan is not None:
                client.put_comparison(JOB_ID, ComparisonRequest(num_pairs=self.num_pairs))
                self.is_started = True
            return False
        state = client.get_comparison(JOB_ID).state
        return state in {ComparisonState.DONE, ComparisonState.ENDED}

    def result(self, client: PlannerClient) -> LengthsResult:
        """Return what was measured.

        Raises:
            DemoFailedError: no step had a plan of its own, or none was compared.
        """
        steps = client.list_steps(JOB_ID, limit=_ALL_STEPS)
        predicted_j = tuple(
            (self.predicted_j[step.step], step.energy_j)
            for step in steps
            if step.step in self.predicted_j and step.energy_j is not None
        )
        if not predicted_j:
            notes = "; ".join(client.get_job(JOB_ID).notes)
            raise DemoFailedError(f"no step had a plan of its own{notes and f': {notes}'}")
        version = client.get_comparison(JOB_ID).version
        for savings in client.get_report(JOB_ID).versions:
            is_compared = savings.baseline == BaselineOrigin.INTERLEAVED
            if savings.version == version and is_compared and savings.saving_percent is not None:
                return LengthsResult(savings=savings, predicted_j=predicted_j)
        raise DemoFailedError("the comparison with the highest clocks did not come to its end")


@dataclass(frozen=True, kw_only=True)
class LengthsResult:
    """Result of a run on sequences that differ in length."""

    #: The planner's, at equal work.
    savings: VersionSavings
    #: Predicted saving and measured energy of steps with plans of their own, J.
    predicted_j: Sequence[tuple[float, float]]

    @property
    def predicted_percent(self) -> float:
        """Energy that these steps save, predicted as they were planned, %."""
        saved_j = sum(saved for saved, _ in self.predicted_j)
        return 100 * saved_j / (saved_j + sum(used for _, used in self.predicted_j))

    def failed_condition(self) -> str | None:
        """Return the condition that does not hold, as one line; None: the demo succeeded."""
        saving, predicted = self.savings.saving_percent, self.predicted_percent
        if saving is None or saving.mean <= 0:
            return f"steps on plans of their own saved no energy at equal work: {_text(saving)}"
        low, high = (saving.mean if end is None else end for end in (saving.low, saving.high))
        if not low - TOLERANCE_PERCENT <= predicted <= high + TOLERANCE_PERCENT:
            return (
                f"measured saving at equal work is {_text(saving)}, predicted {predicted:.1f} %,"
                f" and at most {TOLERANCE_PERCENT:.1f} points beyond the interval are allowed"
            )
        return None

    def unjudged_time(self, options: DemoOptions) -> str | None:
        """Return why time is not judged, as one line; None: it is that of the highest clocks."""
        slower, most_percent = self.savings.slowdown_percent, COMPARISON_TOLERANCE_PERCENT
        if slower is None or abs(slower.mean) <= most_percent:
            return None
        return (
            "this computer is too busy to judge time: steps on plans of their own took"
            f" {slower.mean:+.1f} % at equal work, more than {most_percent:.1f} % either way;"
            f" a larger --time-scale than {options.time_scale:g} helps"
        )

    def lines(self) -> list[str]:
        """Return the result for people."""
        each, lengths = self.savings, sorted(num_tokens(number) for number in range(1000))
        short, long = lengths[100], lengths[900]
        return [
            "Sequences that differ in length, 4 stages (emulated A100; nothing here is a real GPU)",
            "",
            f"{'at equal work':<16}{'measured (emulated)':<28}predicted",
            f"{'energy saved':<16}{_text(each.saving_percent):<28}{self.predicted_percent:.1f} %",
            f"{'time':<16}{_text(each.slowdown_percent, '+.1f'):<28}+0.0 %",
            "",
            f"Measured: {each.num_steps} steps on plans of their own, in turn with steps at the"
            " highest clocks; means with their 95 % intervals.",
            f"Predicted: mean of {len(self.predicted_j)} steps, as their ranks planned them.",
            f"Emulated: 8 of 10 sequences have {short} to {long} tokens, for"
            f" which a GPU takes {work_factor(short):.2f} to {work_factor(long):.2f} times the"
            f" time and energy in its profile; the longest has {lengths[-1]}. The planner learns"
            " this from announced lengths and from the times of the first steps.",
        ]

    def document(self, *, failed: str | None, unjudged: str | None) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return {
            "emulated": True,
            "succeeded": failed is None,
            "failed_condition": failed,
            "unjudged_time": unjudged,
            "plan_version": self.savings.version,
            "measured": asdict(self.savings),
            "predicted": {"saving_percent": self.predicted_percent},
        }


def _text(percent: Estimate | None, form: str = ".1f") -> str:
    if percent is None:
        return "not measured"
    mean = f"{percent.mean:{form}} %"
    if percent.low is None or percent.high is None:
        return mean
    return f"{mean} [{percent.low:{form}}, {percent.high:{form}}]"
