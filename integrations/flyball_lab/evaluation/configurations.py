"""What one run of the evaluation is: a model, a schedule, a policy, microbatches and pipelines."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_profiles.stage_profile import OperatingPoint, StageProfile

FITTED = "fitted, not measured"
GIVEN = "given"


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A pipeline to emulate.

    Attributes:
        gpu: name in the GPU table.
        origin: of its profile: FITTED, or GIVEN by the user.
        microbatch_size: samples of a microbatch; None: unknown.
        num_microbatches: of an iteration in the figures that do not vary them.
        blocking_power_w: W of a waiting GPU.
    """

    name: str
    gpu: str
    origin: str
    microbatch_size: int | None
    num_microbatches: int
    blocking_power_w: float
    profile: StageProfile

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return self.profile.num_stages


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How clocks and order are chosen.

    Attributes:
        label: in tables and plots.
        policy, schedule, reconfigure: as the planner names them.
    """

    label: str
    policy: str
    schedule: str
    reconfigure: str


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One run.

    Attributes:
        num_pipelines: data-parallel ones, alike.
    """

    model: Model
    manner: Manner
    num_microbatches: int
    num_pipelines: int = 1

    @property
    def num_ranks(self) -> int:
        """GPUs of the run."""
        return self.num_pipelines * self.model.num_stages

    @property
    def title(self) -> str:
        """For progress and messages."""
        shape = (
            f", {self.num_pipelines} x {self.model.num_stages}" if self.num_pipelines > 1 else ""
        )
        return (
            f"{self.model.name}, {self.num_microbatches} microbatches{shape}: {self.manner.label}"
        )


BASELINE = Manner(label="baseline", policy="baseline", schedule="1f1b", reconfigure="default")
UNIFORM = Manner(label="uniform", policy="uniform", schedule="1f1b", reconfigure="default")
ENVELOPE_1F1B = Manner(
    label="envelope, 1F1B, balanced", policy="envelope", schedule="1f1b", reconfigure="balanced"
)
ENVELOPE_DEFAULT = Manner(
    label="envelope, EnvPipe's order, default",
    policy="envelope",
    schedule="envpipe",
    reconfigure="default",
)
ENVELOPE_GREEDY = Manner(
    label="envelope, EnvPipe's order, greedy",
    policy="envelope",
    schedule="envpipe",
    reconfigure="greedy",
)
ENVPIPE = Manner(
    label="envelope, EnvPipe's order, balanced",
    policy="envelope",
    schedule="envpipe",
    reconfigure="balanced",
)
FRONTIER_1F1B = Manner(
    label="frontier, 1F1B", policy="frontier", schedule="1f1b", reconfigure="balanced"
)
FRONTIER_ENVPIPE = Manner(
    label="frontier, EnvPipe's order", policy="frontier", schedule="envpipe", reconfigure="balanced"
)


def merged_profile(profile: StageProfile, num_pipelines: int) -> StageProfile:
    """The profile of as many alike pipelines merged: energies and ranks of a stage add up."""
    if num_pipelines == 1:
        return profile
    return _changed(profile, num_pipelines=num_pipelines)


def with_heavier_last_stage(profile: StageProfile, factor: float) -> StageProfile:
    """The last stage takes `factor` times as long, at the same power: time and energy grow."""
    return _changed(profile, last_stage_factor=factor)


def _changed(
    profile: StageProfile, *, num_pipelines: int = 1, last_stage_factor: float = 1.0
) -> StageProfile:
    factors = [1.0] * (profile.num_stages - 1) + [last_stage_factor]
    return StageProfile(
        points={
            (stage, kind): tuple(
                OperatingPoint(
                    frequency_mhz=point.frequency_mhz,
                    time_s=point.time_s * factors[stage],
                    energy_j=point.energy_j * factors[stage] * num_pipelines,
                )
                for point in points
            )
            for (stage, kind), points in profile.points.items()
        },
        num_ranks_per_stage=tuple(
            num_ranks * num_pipelines for num_ranks in profile.num_ranks_per_stage
        ),
    )
