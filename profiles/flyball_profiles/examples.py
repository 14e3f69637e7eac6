"""Stage profile shipped as an example: a GPT-3 175B pipeline on A100, from fitted curves."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile

EXAMPLE_PROFILE_NAME = "gpt3-175b-a100-sxm-fitted"


def example_profile_path() -> Path:
    """Return the path of the example's CSV in the installed package."""
    return Path(str(resources.files("flyball_profiles") / "stages" / f"{EXAMPLE_PROFILE_NAME}.csv"))


def load_example_profile() -> StageProfile:
    """Return the example: 8 stages of one rank, forward and backward, 1410 down to 855 MHz."""
    return parse_stage_profile(example_profile_path().read_text(encoding="utf-8"))
