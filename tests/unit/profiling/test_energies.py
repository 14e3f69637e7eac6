"""The energy regression, on steps made by hand: what is known of each, and how well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import context_of, equal_profile

from flyball_pipeline.instruction import InstructionKind
from flyball_server.planning.scheduling import schedule_for
from flyball_server.profiling.observations import (
    InstructionTimes,
    ProbeSetup,
    StageStep,
)
from flyball_server.profiling.stage_estimates import StageEnergies, StageFindings, find

F, B = InstructionKind.FORWARD, InstructionKind.BACKWARD
CLOCKS = (1400, 1200, 1000)
TIMES_S = {F: dict(zip(CLOCKS, (1.0, 1.1, 1.3), strict=True)), B: dict.fromkeys(CLOCKS, 2.0)}
ENERGIES_J = {
    F: dict(zip(CLOCKS, (300.0, 250.0, 220.0), strict=True)),
    B: dict(zip(CLOCKS, (640.0, 540.0, 480.0), strict=True)),
}
BLOCKING_POWER_W, NUM_MICROBATCHES = 80.0, 8


def setup_of(num_stages: int = 1, blocking_power_w: float | None = None) -> ProbeSetup:
    context = context_of(equal_profile(num_stages), NUM_MICROBATCHES)
    return ProbeSetup(
        schedule=schedule_for("1f1b", context),
        clocks_mhz=(CLOCKS,) * num_stages,
        num_ranks=(1,) * num_stages,
        blocking_power_w=None if blocking_power_w is None else (blocking_power_w,) * num_stages,
    )


def step_of(
    step: int,
    slow: dict[tuple[InstructionKind, int], int],
    *,
    idle_s: float = 5.0,
    stage: int = 0,
    extra_j: float = 0.0,
) -> StageStep:
    """A step with so many instructions at a lower clock, the rest at the highest."""
    counts = {(kind, CLOCKS[0]): NUM_MICROBATCHES for kind in (F, B)}
    for (kind, mhz), count in slow.items():
        counts[kind, CLOCKS[0]] -= count
        counts[kind, mhz] = count
    busy_s = sum(count * TIMES_S[kind][mhz] for (kind, mhz), count in counts.items())
    energy_j = sum(count * ENERGIES_J[kind][mhz] for (kind, mhz), count in counts.items())
    return StageStep(
        stage=stage,
        step=step,
        version=1,
        iteration_time_s=busy_s + idle_s,
        energy_j=energy_j + idle_s * BLOCKING_POWER_W + extra_j,
        instructions=tuple(
            InstructionTimes(
                kind=kind,
                chunk=0,
                sm_clock_mhz=mhz,
                count=count,
                mean_s=TIMES_S[kind][mhz],
                variance_s2=0.0,
            )
            for (kind, mhz), count in counts.items()
            if count
        ),
    )


DESIGN: tuple[dict[tuple[InstructionKind, int], int], ...] = (
    {},
    {(F, 1200): 6},
    {(F, 1000): 6},
    {(B, 1200): 6},
    {(B, 1000): 6},
    {},
)


def steps_of(block: int, **changes: float) -> list[StageStep]:
    idle_s = (3.0, 6.0, 4.0, 7.0, 5.0, 9.0)
    return [
        step_of(row * block + index, slow, idle_s=idle_s[row], **changes)  # type: ignore[arg-type]
        for row, slow in enumerate(DESIGN)
        for index in range(block)
    ]


def energies_of(findings: StageFindings) -> StageEnergies:
    assert findings.energies is not None
    return findings.energies


def test_energies_come_back_divided_by_equal_power_at_the_highest_clock() -> None:
    """A forward of 1 s and a backward of 2 s take 940 J: 313.3 and 626.7 J, 13.3 J moved."""
    (findings,) = find(setup_of(), steps_of(block=4))
    energies = energies_of(findings)
    moved_j = {F: 940 / 3 - 300, B: 300 - 940 / 3}
    divided = [ENERGIES_J[kind][mhz] + moved_j[kind] for kind in (F, B) for mhz in CLOCKS]
    assert energies.mean_j == pytest.approx(divided, rel=0.01)
    assert energies.blocking_power_w == pytest.approx(BLOCKING_POWER_W, rel=0.02)
    assert (energies.error_j < 0.02 * energies.mean_j).all()


def test_ranks_together_draw_blocking_power_each() -> None:
    setup = setup_of()
    ranks = [replace(step, energy_j=4 * (step.energy_j or 0)) for step in steps_of(block=4)]
    four = ProbeSetup(schedule=setup.schedule, clocks_mhz=setup.clocks_mhz, num_ranks=(4,))
    (findings,) = find(four, ranks)
    assert energies_of(findings).blocking_power_w == pytest.approx(BLOCKING_POWER_W, rel=0.02)
    assert energies_of(findings).mean_j[[0, 3]].sum() == pytest.approx(4 * 940, rel=0.01)


def noisy_errors_j(order: Sequence[int]) -> float:
    """Standard error of E(1000 MHz) - E(1400 MHz) of forwards, with a late counter."""
    random = np.random.default_rng(3)
    late_j = 30 * random.standard_normal(len(order) + 1)
    steps = [
        step_of(index, {(F, 1000): 6 * is_slow}, extra_j=late_j[index + 1] - late_j[index])
        for index, is_slow in enumerate(order)
    ]
    (findings,) = find(setup_of(blocking_power_w=BLOCKING_POWER_W), steps)
    contrast = np.array([1, 0, -1, 0, 0, 0, 0])
    return float(np.sqrt(contrast @ energies_of(findings).covariance @ contrast))


def test_neighbouring_steps_at_the_same_clocks_tell_more_than_scattered_ones() -> None:
    assert noisy_errors_j([0] * 12 + [1] * 12) < 0.5 * noisy_errors_j([0, 1] * 12)


def test_steps_that_are_not_clean_or_at_other_clocks_do_not_count() -> None:
    steps = steps_of(block=2)
    wild = replace(steps[0], iteration_time_s=1e3, energy_j=1e6)
    spoilt = replace(wild, step=50, is_clean=False)
    at_default = replace(wild.instructions[0], sm_clock_mhz=None, mean_s=9.0)
    default_clock = replace(wild, step=51, version=None, instructions=(at_default,))
    (clean,), (both,) = (
        find(setup_of(), each) for each in (steps, [*steps, spoilt, default_clock])
    )
    assert energies_of(both).mean_j.tolist() == energies_of(clean).mean_j.tolist()
