"""Times of a stage's instructions over the clock: where power limits them, and monotone elsewhere.

Online profiling estimates the times (`instruction_times`); recorded runs reach the highest
clocks, where a GPU may draw all the power that it is allowed and no longer runs at the clock that
was asked for. Its time there is as measured; below, a lower clock never takes less time.
"""

# scipy has no types: its results are unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flyball_server.profiling.instruction_times import StageTimes
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.stage_points import StagePoints

# A slope of the time over the clock is taken across at least this share of the clock.
_STEP = 0.03
# Slopes are d(log time) / d(log clock), 1 where only the clock counts. A class whose slope at low
# clocks is less than this is bound by memory, and its time cannot show a limit of power.
_LEAST_SLOPE = 0.3
# A point is limited where the slope down from it is less than this share of the slope at the
# lowest clocks, within the lowest share of the window.
_LIMITED_SHARE, _LOWEST_SHARE = 0.3, 0.12


@dataclass(frozen=True, kw_only=True)
class StageCurves:
    """Times of a stage, monotone where power does not limit them.

    Attributes:
        is_limited: per point, whether it was measured and found limited; shape (num_points,).
    """

    times: StageTimes
    is_limited: NDArray[np.bool_]


def curves_of(points: StagePoints, times: StageTimes) -> StageCurves:
    """Return the curves of a stage's times."""
    num_clocks = len(points.clocks_mhz)
    clocks_mhz = np.array(points.clocks_mhz, dtype=np.float64)
    mean_s = times.mean_s.copy()
    is_limited = np.zeros(points.num_points, dtype=np.bool_)
    for index in range(len(points.classes)):
        of_class = slice(index * num_clocks, (index + 1) * num_clocks)
        measured = times.num_probes[of_class] > 0
        limited = _limited(clocks_mhz, mean_s[of_class], measured)
        is_limited[of_class] = limited
        free = int(np.flatnonzero(limited)[-1]) + 1 if limited.any() else 0
        weights = 1 / np.square(times.error_s[of_class][free:])
        mean_s[of_class][free:] = rising(mean_s[of_class][free:], weights)
    return StageCurves(times=replace(times, mean_s=mean_s), is_limited=is_limited)


def _limited(
    clocks_mhz: FloatArray, times_s: FloatArray, measured: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Per clock, in falling order, whether power limited it."""
    limited = np.zeros(len(clocks_mhz), dtype=np.bool_)
    at = np.flatnonzero(measured)
    if len(at) < 2:
        return limited
    lowest = int(at[-1])
    above = clocks_mhz[at] / clocks_mhz[lowest]
    near = at[(above >= 1 + _STEP) & (above <= 1 + _LOWEST_SHARE)]
    if len(near) == 0:
        return limited
    usual = _slope(clocks_mhz, times_s, int(near[0]), lowest)
    if usual < _LEAST_SLOPE:
        return limited
    for upper in at[above > 1 + _LOWEST_SHARE].tolist():
        below = at[clocks_mhz[at] <= clocks_mhz[upper] / (1 + _STEP)]
        slope = _slope(clocks_mhz, times_s, upper, int(below[0]))
        limited[upper] = slope < _LIMITED_SHARE * usual
    return limited


def _slope(clocks_mhz: FloatArray, times_s: FloatArray, upper: int, lower: int) -> float:
    return float(
        np.log(times_s[lower] / times_s[upper]) / np.log(clocks_mhz[upper] / clocks_mhz[lower])
    )


def rising(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the closest values that never fall, by weighted least squares."""
    if len(values) == 0:
        return values
    # Imported with the first replay: scipy has no types, and loads slowly.
    from scipy.optimize import isotonic_regression  # noqa: PLC0415

    return np.asarray(isotonic_regression(values, weights=weights).x, dtype=np.float64)
