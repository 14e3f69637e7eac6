"""The models that are evaluated: EnvPipe's, fitted; the shipped example; profiles from a folder."""

from __future__ import annotations

from pathlib import Path

from flyball_lab.evaluation.configurations import FITTED, GIVEN, Model
from flyball_profiles.evaluation_models import load_fitted_model
from flyball_profiles.examples import EXAMPLE_PROFILE_NAME, load_example_profile
from flyball_profiles.gpu_windows import gpu_names, load_gpu_window
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_wire.command import CommandError

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
