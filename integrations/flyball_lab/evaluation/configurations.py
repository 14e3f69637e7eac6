"""One run of the evaluation: a model, a schedule, a policy, microbatches and pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flyball_profiles.evaluation_models import load_fitted_model
from flyball_profiles.examples import EXAMPLE_PROFILE_NAME, load_example_profile
from flyball_profiles.gpu_windows import gpu_names, load_gpu_window
from flyball_profiles.stage_profile import OperatingPoint, ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_wire.command import CommandError
from flyball_wire.plan_options import Policy, Reconfigure

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
    """Choice of clocks and order.

    Attributes:
        label: in tables and plots.
        policy, schedule, reconfigure: as the planner names them.
    """

    label: str
    policy: Policy
    schedule: str
    reconfigure: Reconfigure


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


BASELINE = Manner(
    label="baseline", policy=Policy.BASELINE, schedule="1f1b", reconfigure=Reconfigure.DEFAULT
)
UNIFORM = Manner(
    label="uniform", policy=Policy.UNIFORM, schedule="1f1b", reconfigure=Reconfigure.DEFAULT
)
ENVELOPE_1F1B = Manner(
    label="envelope, 1F1B, balanced",
    policy=Policy.ENVELOPE,
    schedule="1f1b",
    reconfigure=Reconfigure.BALANCED,
)
ENVELOPE_DEFAULT = Manner(
    label="envelope, EnvPipe's order, default",
    policy=Policy.ENVELOPE,
    schedule="envpipe",
    reconfigure=Reconfigure.DEFAULT,
)
ENVELOPE_GREEDY = Manner(
    label="envelope, EnvPipe's order, greedy",
    policy=Policy.ENVELOPE,
    schedule="envpipe",
    reconfigure=Reconfigure.GREEDY,
)
ENVPIPE = Manner(
    label="envelope, EnvPipe's order, balanced",
    policy=Policy.ENVELOPE,
    schedule="envpipe",
    reconfigure=Reconfigure.BALANCED,
)
FRONTIER_1F1B = Manner(
    label="frontier, 1F1B",
    policy=Policy.FRONTIER,
    schedule="1f1b",
    reconfigure=Reconfigure.BALANCED,
)
FRONTIER_ENVPIPE = Manner(
    label="frontier, EnvPipe's order",
    policy=Policy.FRONTIER,
    schedule="envpipe",
    reconfigure=Reconfigure.BALANCED,
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


# Of the profiles that come without an experiment of EnvPipe's: as EnvPipe's 4 a stage.
_MICROBATCHES_PER_STAGE = 4


def fitted_model(name: str, *, num_pipelines: int = 1) -> Model:
    """A model of EnvPipe's; its samples are shared out over the pipelines."""
    fitted = load_fitted_model(name)
    per_pipeline = fitted.minibatch_size // num_pipelines
    return Model(
        name=fitted.name,
        gpu=fitted.gpu,
        origin=FITTED,
        microbatch_size=fitted.microbatch_size,
        num_microbatches=per_pipeline // fitted.microbatch_size,
        blocking_power_w=fitted.blocking_power_w,
        profile=fitted.profile,
    )


def example_model() -> Model:
    """The shipped GPT-3 175B pipeline on A100."""
    profile = load_example_profile()
    return Model(
        name=EXAMPLE_PROFILE_NAME,
        gpu="a100",
        origin=FITTED,
        microbatch_size=None,
        num_microbatches=_MICROBATCHES_PER_STAGE * profile.num_stages,
        blocking_power_w=_table_power_w("a100"),
        profile=profile,
    )


def given_models(folder: Path) -> tuple[Model, ...]:
    """One model for each stage profile (`*.csv`) in a folder, by name.

    The file's name says the GPU, for the blocking power: `gpt3-175b+a40_bf16.csv`.

    Raises:
        CommandError: there is none, one cannot be read, or its GPU's blocking power is unknown.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".csv")
    except OSError as error:
        raise CommandError(f"--profiles {folder}: {error.strerror}") from None
    if not files:
        raise CommandError(f"--profiles {folder}: no stage profile (*.csv) is in this folder")
    return tuple(_given_model(path) for path in files)


def _given_model(path: Path) -> Model:
    try:
        profile = read_stage_profile(path)
    except ProfileError as error:
        raise CommandError(error.located(str(path))) from None
    gpu = _gpu_of(path)
    return Model(
        # The shipped example may be given too, by its own name.
        name=f"{path.stem} (given)" if path.stem == EXAMPLE_PROFILE_NAME else path.stem,
        gpu=gpu,
        origin=GIVEN,
        microbatch_size=None,
        num_microbatches=_MICROBATCHES_PER_STAGE * profile.num_stages,
        blocking_power_w=_table_power_w(gpu),
        profile=profile,
    )


def _gpu_of(path: Path) -> str:
    """The GPU that a file's name contains; the longest name wins: a6000 before a60."""
    known = [name for name in gpu_names() if load_gpu_window(name).blocking_power_w is not None]
    named = [name for name in known if name in path.stem.lower()]
    if not named:
        raise CommandError(
            f"{path}: the file's name must say the GPU, for its blocking power: one of"
            f" {', '.join(known)}"
        )
    return max(named, key=len)


def _table_power_w(gpu: str) -> float:
    power_w = load_gpu_window(gpu).blocking_power_w
    if power_w is None:
        raise LookupError(f"the GPU table has no blocking power for {gpu}")
    return power_w
