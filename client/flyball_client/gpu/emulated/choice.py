"""`FLYBALL_GPU=emulated:PROFILE.csv`: the environment chooses an emulated GPU for each rank.

Options follow the file, separated by commas: `emulated:PROFILE.csv,time_scale=0.2`.
"""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flyball_client.gpu._base import GPU_VARIABLE
from flyball_client.gpu.emulated.device import EmulatedGpu
from flyball_client.gpu.emulated.execution import EmulatedGpuSettings, EmulatedNode
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_wire.options import Option, OptionError

_logger = logging.getLogger(__name__)

_PREFIX = "emulated:"
_FORM = (
    "emulated:PROFILE.csv, optionally followed by ,time_scale=S ,blocking_power_w=W"
    " ,power_limit_w=W and ,work_scatter=SHARE"
)
_OPTION = re.compile(r",(time_scale|blocking_power_w|power_limit_w|work_scatter)=([^,]*)$")
_MAY_BE_ZERO = {"blocking_power_w", "work_scatter"}
# Of the profile that is shipped; it decides no plan.
_DEFAULT_POWER_OF = "a100"


@dataclass(frozen=True, kw_only=True)
class EmulatedChoice:
    """Value of the variable.

    Attributes:
        profile: Stage profile of the whole pipeline, CSV.
        time_scale: Wall seconds per emulated second.
        blocking_power_w: Power of a waiting GPU in W; None: not given.
        power_limit_w: Power limit in W; None: no limit.
        work_scatter: Scatter of the microbatches' work, as in `drawn_work`; 0: all have the
            profile's.
    """

    profile: Path
    time_scale: float = 1.0
    blocking_power_w: float | None = None
    power_limit_w: float | None = None
    work_scatter: float = 0.0

    @classmethod
    def parse(cls, text: str) -> EmulatedChoice:
        """Return the choice in the text of the variable.

        Raises:
            ValueError: It cannot be used; the message names the variable.
        """
        if not text.startswith(_PREFIX):
            raise ValueError(f"{GPU_VARIABLE} must be {_FORM}, not {text!r}")
        rest, options = text.removeprefix(_PREFIX), dict[str, float]()
        while (found := _OPTION.search(rest)) is not None:
            name, value = found.groups()
            options.setdefault(name, _number(name, value))
            rest = rest[: found.start()]
        if not rest:
            raise ValueError(f"{GPU_VARIABLE} names no profile; it must be {_FORM}")
        return cls(profile=Path(rest), **options)

    def open(
        self,
        *,
        stage: int | None,
        seed: int,
        dp_rank: int = 0,
        num_chunks: int = 1,
        blocking_power_w: float | None = None,
    ) -> EmulatedGpu:
        """Return the emulated GPU of a rank, and log one line about it.

        Arguments are those of `RankSettings.open_gpu`; the seed of the draws must differ from rank
        to rank. The variable's blocking power takes precedence; without one it is an A100's.

        Raises:
            ValueError: The stage is not known, the profile cannot be read, or it has no such
                stage; the text names the variable.
        """
        if stage is None:
            raise ValueError(
                f"{GPU_VARIABLE}: an emulated GPU needs the stage of its rank:"
                " open_gpu(..., stage=STAGE)"
            )
        given_w = blocking_power_w if self.blocking_power_w is None else self.blocking_power_w
        power_w = _default_power_w() if given_w is None else given_w
        profile = self.read_profile()
        try:
            gpu = EmulatedGpu(
                profile,
                stage,
                num_chunks=num_chunks,
                blocking_power_w=power_w,
                settings=EmulatedGpuSettings(seed=seed, power_limit_w=self.power_limit_w),
                node=EmulatedNode.of_machine(),
                time_scale=self.time_scale,
                work=drawn_work(self.work_scatter, dp_rank) if self.work_scatter else None,
            )
        except ValueError as error:
            raise ValueError(f"{GPU_VARIABLE}: {self.profile}: {error}") from None
        _logger.warning(
            "the GPU of this rank is emulated (%s): stage %d of %s, %g W while it waits; no real"
            " clock is set",
            GPU_VARIABLE,
            stage,
            self.profile,
            power_w,
        )
        return gpu

    def read_profile(self) -> StageProfile:
        """Read the profile.

        Raises:
            ValueError: It cannot be read; the text names the variable and the file.
        """
        try:
            return read_stage_profile(self.profile)
        except ProfileError as error:
            raise ValueError(f"{GPU_VARIABLE}: {error.located(str(self.profile))}") from None


def drawn_work(scatter: float, pipeline: int) -> Callable[[int, int], float]:
    """Return the work of a pipeline's steps and microbatches: log-normal, with a mean of 1.

    All ranks of a pipeline, and all runs, draw the same.

    Args:
        scatter: Standard deviation of the logarithm.
        pipeline: Data-parallel rank.
    """

    def factor(step: int, microbatch: int) -> float:
        drawn = random.Random(f"{pipeline}/{step}/{microbatch}").gauss(0, scatter)
        return math.exp(drawn - scatter * scatter / 2)

    return factor


def _number(name: str, text: str) -> float:
    option = Option(name=name, kind=float, is_above=name not in _MAY_BE_ZERO)
    try:
        number: float = option.read_text(text)
    except OptionError as error:
        raise ValueError(f"{GPU_VARIABLE}: {name} {error.message}") from None
    return number


def _default_power_w() -> float:
    return load_gpu_window(_DEFAULT_POWER_OF).blocking_power_w or 0.0
