"""Work of a step: what its microbatches are, and how much longer it makes each instruction.

Times are nearly linear in the number of tokens and in the sum of the squared lengths of sequences,
which attention grows with: `factor = a + b sum(L) + c sum(L^2)`, for each stage, kind and chunk.
The factor is relative to the instruction's time in the profile. A caller that knows it better gives
the factor itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import NamedTuple, cast

from flyball_pipeline.dag import AlikeNodes, DependencyDag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import MAX_NUM_MICROBATCHES

MicrobatchWork = tuple[float, ...]
"""Work of a microbatch: a factor alone, or the sum of its lengths and that of their squares."""

StepWork = tuple[MicrobatchWork, ...]
"""Work of a step, by microbatch."""

# Below and above, an instruction would take no time, or a step for ever.
_LEAST_FACTOR, _MOST_FACTOR = 1e-3, 100.0
_MOST_LENGTHS = 1e18
_PYTHON_NUMBERS = {int, float}


class WorkCoefficients(NamedTuple):
    """Coefficients of an instruction's factor, not negative, and not all 0."""

    constant: float
    #: Per unit of length (a token, a patch).
    of_lengths: float
    #: Per unit of squared length.
    of_squares: float

    def factor(self, work: MicrobatchWork) -> float:
        """Return the time of an instruction on such a microbatch over its time in the profile."""
        if len(work) == 1:
            return work[0]
        lengths, squares = work
        factor = self.constant + self.of_lengths * lengths + self.of_squares * squares
        return min(max(factor, _LEAST_FACTOR), _MOST_FACTOR)


def step_work(microbatches: Sequence[float | Sequence[float]]) -> StepWork:
    """Return the work of a step.

    Args:
        microbatches: per microbatch, the lengths of its sequences in tokens, or the number of
            patches of each of its images; or one number, its time over the time in the profile.

    Raises:
        PipelineError: a number is not finite or not positive, or there is none.
    """
    if not _is_list(microbatches):
        raise PipelineError(
            "must be a list with an entry for each microbatch, such as [[512, 128], [640]]",
            field="work",
        )
    try:
        return checked_work([_work_of(microbatch) for microbatch in microbatches])
    except OverflowError:
        raise PipelineError(f"must be numbers up to {_MOST_LENGTHS:g}", field="work") from None


def _work_of(microbatch: float | Sequence[float]) -> MicrobatchWork:
    if not _is_list(microbatch):
        (factor,) = _numbers_of([cast("float", microbatch)])
        return (float(factor),)
    lengths = _numbers_of(cast("Sequence[float]", microbatch))
    if not lengths or min(lengths) < 0:
        raise PipelineError("lengths must be numbers from 0 on, at least one", field="work")
    return math.fsum(lengths), math.fsum(map(operator.mul, lengths, lengths))


def _is_list(given: object) -> bool:
    if isinstance(given, (list, tuple)):  # as most are: a look at `Sequence` takes longer
        return True
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


def _numbers_of(given: Sequence[float]) -> Sequence[float]:
    """Return numbers; a tensor is none, since it may have to be read from a GPU."""
    kinds = set(map(type, given))
    if kinds <= _PYTHON_NUMBERS:
        return given
    for kind in kinds:
        if issubclass(kind, bool) or not issubclass(kind, Real):
            raise PipelineError(
                f"must be Python numbers, not {kind.__name__}; convert them, as with tolist()",
                field="work",
            )
    return list(map(float, given))


def checked_work(rows: Sequence[Sequence[float]]) -> StepWork:
    """Return the work of a step as it was sent.

    Raises:
        PipelineError: a row is not one factor from 0.001 to 100, nor two sums that are not
            negative; or there is no row, or there are too many.
    """
    if not 0 < len(rows) <= MAX_NUM_MICROBATCHES:
        raise PipelineError(
            f"must have an entry for each of 1 to {MAX_NUM_MICROBATCHES} microbatches, not"
            f" {len(rows)}",
            field="work",
        )
    for row in rows:
        if len(row) == 2:
            is_work = 0 <= row[0] <= _MOST_LENGTHS and 0 <= row[1] <= _MOST_LENGTHS
        else:
            is_work = len(row) == 1 and _LEAST_FACTOR <= row[0] <= _MOST_FACTOR
        if not is_work:
            raise PipelineError(
                f"must be a factor from {_LEAST_FACTOR:g} to {_MOST_FACTOR:g}, or lengths,"
                f" not {list(row)}",
                field="work",
            )
    return tuple(map(tuple, rows))


def has_lengths_outside(work: StepWork, lengths_range: tuple[float, float] | None) -> bool:
    """Return whether a microbatch's sum of lengths is outside a range; None: there is none."""
    if lengths_range is None:
        return False
    least, most = lengths_range
    return any(len(microbatch) == 2 and not least <= microbatch[0] <= most for microbatch in work)


def work_factors(
    dag: DependencyDag,
    work: StepWork,
    coefficients: Mapping[AlikeNodes, WorkCoefficients],
    slowness: Sequence[float] = (),
    lengths_range: tuple[float, float] | None = None,
) -> list[float] | None:
    """Return per node of a step's DAG its time in the step over its time in the profile.

    Args:
        dag: what waits for what.
        work: work of each microbatch.
        coefficients: by stage, kind and chunk; a place without them takes factors alone.
        slowness: per stage, the time of its slowest GPU over what the plan assumes; empty: 1.
        lengths_range: sums of a microbatch's lengths that the coefficients hold for; None: any.

    Returns:
        None where coefficients are missing for lengths, or the step has other microbatches.
    """
    places, place_of_node = dag.alike
    microbatches = [instruction.microbatch for instruction in dag.instruction]
    if len(work) != 1 + max(microbatches) or has_lengths_outside(work, lengths_range):
        return None
    of_places: list[list[float]] = []
    for place in places:
        of_place = coefficients.get(place)
        if of_place is None and any(len(row) != 1 for row in work):
            return None
        factor = (of_place or WorkCoefficients(1.0, 0.0, 0.0)).factor
        slow = slowness[place[0]] if slowness else 1.0
        of_places.append([slow * factor(row) for row in work])
    both = zip(place_of_node, microbatches, strict=True)
    return [of_places[place][microbatch] for place, microbatch in both]
