"""How long a step takes when every instruction's time scatters.

The longest of many noisy paths is longer than the longest path of the mean times, the more so
the more paths are nearly as long. So the mean and the spread of a step's time are taken from a
sample of noisy iterations. The same draws serve every step, the measured one at the highest
clocks too: what the model leaves out of that one is added to all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.iterations import Baseline
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.step_design import StepGraph

_NUM_DRAWS = 16
# A step at so many standard deviations above its mean must still keep the cap.
_DEVIATIONS = 4.0


@dataclass(frozen=True, kw_only=True)
class NoisyPipeline:
    """An iteration's instructions with their mean times and scatter.

    Attributes:
        durations_s: at the highest clocks; shape (num_nodes,).
        factors: what draws multiply the times by; shape (num draws, num_nodes).
        beyond_s: what the measured steps at the highest clocks took beyond the draws' mean.
        scatter_s: standard deviation of a measured step there.
    """

    graph: StepGraph
    durations_s: FloatArray
    factors: FloatArray
    beyond_s: float
    scatter_s: float

    @classmethod
    def measured(
        cls,
        graph: StepGraph,
        *,
        durations_s: FloatArray,
        scatter: FloatArray,
        baseline: Baseline,
    ) -> NoisyPipeline:
        """The pipeline whose steps at the highest clocks take what was measured.

        Args:
            graph: its instructions.
            durations_s: per node, mean at the highest clocks, s.
            scatter: per node, standard deviation of a single one, as a share.
            baseline: the measured steps.
        """
        draws = np.random.default_rng(0).standard_normal((_NUM_DRAWS, len(durations_s)))
        factors = 1 + scatter * draws
        sample_s = _sample_s(graph, factors * durations_s)
        return cls(
            graph=graph,
            durations_s=durations_s,
            factors=factors,
            beyond_s=baseline.iteration_time_s - float(sample_s.mean()),
            scatter_s=baseline.scatter * baseline.iteration_time_s,
        )

    @property
    def quickest_s(self) -> float:
        """Longest path at the highest clocks, without noise, s."""
        return float(self.graph.finish_s(self.durations_s).max())

    def predicted_s(self, durations_s: FloatArray) -> float:
        """The longest that a step with these mean times should ever take, s."""
        sample_s = _sample_s(self.graph, self.factors * durations_s)
        spread_s = max(float(sample_s.std(ddof=1)), self.scatter_s)
        return float(sample_s.mean()) + self.beyond_s + _DEVIATIONS * spread_s


def _sample_s(graph: StepGraph, drawn_s: FloatArray) -> FloatArray:
    return np.array([graph.finish_s(durations_s).max() for durations_s in drawn_s])
