"""One run of the evaluation: a model, a schedule, a policy, microbatches and pipelines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flyball_profiles.evaluation_models import load_fitted_model
from flyball_profiles.examples import EXAMPLE_PROFILE_NAME, load_example_profile
from flyball_profiles.gpu_windows import gpu_names, load_gpu_window
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_wire.command import CommandError
from flyball_wire.plan_options import Policy, Reconfigure

FITTED = "fitted, not measured"
GIVEN = "given"


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A pipeline to emulate.

    Attributes:
        gpu: Name in the GPU table.
        origin: Origin of the profile: FITTED, or GIVEN by the user.
        microbatch_size: Number of samples of a microbatch; None: unknown.
        num_microbatches: Microbatches of an iteration in the figures that do not vary them.
        blocking_power_w: Power in W of a waiting GPU.
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
        """Number of pipeline stages."""
        return self.profile.num_stages


@dataclass(frozen=True)
class Manner:
    """Choice of clocks and order.

    Attributes:
        label: Label in tables and plots.
        policy, schedule, reconfigure: The planner's names.
    """

    label: str
    policy: Policy
    schedule: str
    reconfigure: Reconfigure


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One run.

    Attributes:
        num_pipelines: Number of data-parallel pipelines, all equal.
    """

    model: Model
    manner: Manner
    num_microbatches: int
    num_pipelines: int = 1

    @property
    def num_ranks(self) -> int:
        """Number of GPUs of the run."""
        return self.num_pipelines * self.model.num_stages

    @property
    def title(self) -> str:
        """Name of the run in progress lines and messages."""
        name, num_stages = self.model.name, self.model.num_stages
        shape = f", {self.num_pipelines} x {num_stages}" if self.num_pipelines > 1 else ""
        return f"{name}, {self.num_microbatches} microbatches{shape}: {self.manner.label}"


BASELINE = Manner("baseline", Policy.BASELINE, "1f1b", Reconfigure.DEFAULT)
UNIFORM = Manner("uniform", Policy.UNIFORM, "1f1b", Reconfigure.DEFAULT)
ENVELOPE_1F1B = Manner("envelope, 1F1B, balanced", Policy.ENVELOPE, "1f1b", Reconfigure.BALANCED)
ENVELOPE_DEFAULT, ENVELOPE_GREEDY, ENVPIPE = (
    Manner(f"envelope, EnvPipe's order, {reconfigure}", Policy.ENVELOPE, "envpipe", reconfigure)
    for reconfigure in (Reconfigure.DEFAULT, Reconfigure.GREEDY, Reconfigure.BALANCED)
)
FRONTIER_1F1B, FRONTIER_ENVPIPE = (
    Manner(f"frontier, {order}", Policy.FRONTIER, schedule, Reconfigure.BALANCED)
    for order, schedule in (("1F1B", "1f1b"), ("EnvPipe's order", "envpipe"))
)


def merged_profile(profile: StageProfile, num_pipelines: int) -> StageProfile:
    """Return the profile of equal pipelines merged: energies and ranks of a stage add up."""
    return profile if num_pipelines == 1 else _changed(profile, num_pipelines=num_pipelines)


def with_heavier_last_stage(profile: StageProfile, factor: float) -> StageProfile:
    """Return the profile with the last stage's times and energies multiplied by `factor`."""
    return _changed(profile, last_stage_factor=factor)


def _changed(
    profile: StageProfile, *, num_pipelines: int = 1, last_stage_factor: float = 1.0
) -> StageProfile:
    factors = [1.0] * (profile.num_stages - 1) + [last_stage_factor]
    return StageProfile(
        points={
            (stage, kind): tuple(
                replace(
                    point,
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


def fitted_model(name: str, *, num_pipelines: int = 1) -> Model:
    """Return a model of EnvPipe's; its samples are divided among the pipelines."""
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


def _blocking_powers_w() -> dict[str, float]:
    """Return the blocking powers, W, of the GPUs whose table has one."""
    powers_w = {name: load_gpu_window(name).blocking_power_w for name in gpu_names()}
    return {name: power_w for name, power_w in powers_w.items() if power_w is not None}


def _own_model(name: str, gpu: str, origin: str, profile: StageProfile) -> Model:
    """Return a model without an experiment of EnvPipe's, with EnvPipe's 4 microbatches a stage."""
    return Model(
        name=name,
        gpu=gpu,
        origin=origin,
        microbatch_size=None,
        num_microbatches=4 * profile.num_stages,
        blocking_power_w=_blocking_powers_w()[gpu],
        profile=profile,
    )


def example_model() -> Model:
    """Return the shipped GPT-3 175B pipeline on A100."""
    return _own_model(EXAMPLE_PROFILE_NAME, "a100", FITTED, load_example_profile())


def given_models(folder: Path) -> tuple[Model, ...]:
    """Return one model for each stage profile (`*.csv`) in a folder, by name.

    The file's name contains the GPU, for the blocking power: `gpt3-175b+a40_bf16.csv`.

    Raises:
        CommandError: there is none, one cannot be read, or its GPU's blocking power is unknown.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".csv")
    except OSError as error:
        raise CommandError(f"--profiles {folder}: {error.strerror}") from None
    if not files:
        raise CommandError(f"--profiles {folder}: no stage profile (*.csv) is in this folder")
    known = _blocking_powers_w()
    models: list[Model] = []
    for path in files:
        try:
            profile = read_stage_profile(path)
        except ProfileError as error:
            raise CommandError(error.located(str(path))) from None
        named = [gpu for gpu in known if gpu in path.stem.lower()]
        if not named:
            raise CommandError(
                f"{path}: the file's name must contain the GPU, for its blocking power: one of"
                f" {', '.join(known)}"
            )
        # The shipped example may be given too, by its own name.
        name = f"{path.stem} (given)" if path.stem == EXAMPLE_PROFILE_NAME else path.stem
        # The longest name wins: a6000 before a60.
        models.append(_own_model(name, max(named, key=len), GIVEN, profile))
    return tuple(models)
