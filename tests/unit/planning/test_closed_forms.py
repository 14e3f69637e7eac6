"""Bubbles and activations of equal stages, as the papers' formulas give them.

K stages, M microbatches, v chunks a stage; F, I, W the times of a chunk's forward and of the input
and weight part of its backward.
"""

from __future__ import annotations

import itertools

import pytest

from flyball_server.planning.model.simulator import Simulation, simulate

from .tiny_pipelines import B, F, I, W, model_of, timed_profile

NUM_STAGES = (1, 2, 3, 4, 6)
# Multiples of the number of stages, as interleaving wants them.
GROUPS = (1, 2, 5)


def simulated(
    schedule: str,
    num_stages: int,
    num_microbatches: int,
    times: tuple[float, float, float] = (1.0, 1.0, 1.0),
    num_chunks: int = 1,
) -> Simulation:
    """All at the highest clock; a whole backward takes as long as both its parts."""
    forward_s, input_s, weight_s = times
    times_s = {F: forward_s, B: input_s + weight_s, I: input_s, W: weight_s}
    profile = timed_profile(num_stages, times_s, num_chunks)
    model = model_of(profile, num_microbatches, schedule)
    return simulate(model, model.baseline())


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "looped-bfs"])
@pytest.mark.parametrize("num_stages", NUM_STAGES)
@pytest.mark.parametrize("num_chunks", [2, 3, 4])
def test_chunks_divide_the_bubble_of_one_f_one_b(
    schedule: str, num_stages: int, num_chunks: int
) -> None:
    """(K-1) / (v M + K-1): Narayanan et al., SC 2021; the same for breadth first."""
    for group in GROUPS:
        num_microbatches = group * num_stages
        simulation = simulated(
            schedule, num_stages, num_microbatches, (1.0, 0.75, 1.25), num_chunks
        )
        slots = num_chunks * num_microbatches + num_stages - 1
        assert simulation.iteration_time_s == 3 * slots
        assert simulation.bubble_fraction == pytest.approx((num_stages - 1) / slots, abs=1e-12)


@pytest.mark.parametrize("num_stages", NUM_STAGES)
@pytest.mark.parametrize(
    "times", [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (4.0, 5.0, 3.0), (3.0, 5.0, 2.0), (4.0, 6.0, 1.0)]
)
def test_zb_h1_leaves_the_bubble_of_its_paper(
    num_stages: int, times: tuple[float, float, float]
) -> None:
    """(K-1) (F + I - W) for M >= K and W <= I, F <= I: Qi et al., ICLR 2024, table 2."""
    forward_s, input_s, weight_s = times
    for num_microbatches in (num_stages, num_stages + 1, 3 * num_stages + 1):
        bubble_s = (num_stages - 1) * (forward_s + input_s - weight_s)
        assert simulated("zb-h1", num_stages, num_microbatches, times).iteration_time_s == (
            num_microbatches * sum(times) + bubble_s
        )


@pytest.mark.parametrize("num_stages", NUM_STAGES)
def test_zbv_has_no_bubble_but_the_first_where_all_parts_take_equally_long(num_stages: int) -> None:
    """From 2 K - 1 microbatches on, only the wait for the first one is left: K-1 forwards."""
    for num_microbatches in (2 * num_stages - 1, 2 * num_stages, 4 * num_stages + 1):
        simulation = simulated("zbv", num_stages, num_microbatches, num_chunks=2)
        assert simulation.iteration_time_s == 6 * num_microbatches + num_stages - 1


@pytest.mark.parametrize("num_stages", NUM_STAGES)
@pytest.mark.parametrize("num_chunks", [2, 3])
def test_interleaved_zero_bubble_is_zb_h1_in_its_bubble_and_less_than_interleaved(
    num_stages: int, num_chunks: int
) -> None:
    """K-1 forwards of a chunk, a third of what interleaved 1F1B idles."""
    num_microbatches = 2 * num_stages
    busy_s = 3 * num_chunks * num_microbatches
    idle_s = [
        simulated(name, num_stages, num_microbatches, num_chunks=num_chunks).iteration_time_s
        - busy_s
        for name in ("interleaved-1f1b", "interleaved-zb")
    ]
    assert idle_s == [3 * (num_stages - 1), num_stages - 1]


@pytest.mark.parametrize("num_stages", NUM_STAGES)
@pytest.mark.parametrize("num_chunks", [2, 3, 4])
def test_interleaving_holds_its_warm_up_and_one_more(num_stages: int, num_chunks: int) -> None:
    """min((v-1) K + 2 (K-1-s) + 1, v M) chunks on stage s."""
    for num_microbatches in (num_stages, 2 * num_stages, 3 * num_stages):
        peaks = simulated(
            "interleaved-1f1b", num_stages, num_microbatches, num_chunks=num_chunks
        ).peak_activations
        assert peaks == tuple(
            min(
                (num_chunks - 1) * num_stages + 2 * (num_stages - 1 - stage) + 1,
                num_chunks * num_microbatches,
            )
            for stage in range(num_stages)
        )


@pytest.mark.parametrize("num_stages", NUM_STAGES)
def test_breadth_first_holds_all(num_stages: int) -> None:
    peaks = simulated("looped-bfs", num_stages, 3, num_chunks=2).peak_activations
    assert peaks == (6,) * num_stages


@pytest.mark.parametrize(
    ("num_stages", "num_microbatches"), list(itertools.product(NUM_STAGES, (1, 3, 6, 13)))
)
def test_zb_h1_and_zbv_hold_no_more_than_the_first_stage_of_one_f_one_b(
    num_stages: int, num_microbatches: int
) -> None:
    """K whole stages; ZBV in chunks, of which two make a stage."""
    of_zb_h1 = simulated("zb-h1", num_stages, num_microbatches).peak_activations
    assert of_zb_h1 == (min(num_stages, num_microbatches),) * num_stages
    of_zbv = simulated("zbv", num_stages, num_microbatches, num_chunks=2).peak_activations
    assert max(of_zbv) == 2 * min(num_stages, num_microbatches)


@pytest.mark.parametrize("num_stages", NUM_STAGES)
def test_dualpipev_holds_one_chunk_more_than_zbv(num_stages: int) -> None:
    """2 K + 1 chunks on every stage (DeepSeek's table of DualPipeV says PP + 1, for PP = 2 K)."""
    for num_microbatches in (2 * num_stages, 2 * num_stages + 3):
        simulation = simulated("dualpipev", num_stages, num_microbatches, num_chunks=2)
        assert simulation.peak_activations == (2 * num_stages + 1,) * num_stages
