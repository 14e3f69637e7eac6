"""Settings of a training rank from its environment; arguments in the script take precedence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, cast, get_args

from flyball_client.api.planner_client import PlannerClient
from flyball_client.governor.process_governor import DEFAULT_LEASE_S
from flyball_client.gpu._base import GPU_VARIABLE, GpuDevice, GpuError
from flyball_client.gpu.registry import open_rank_gpu
from flyball_wire.options import Option, OptionError

_logger = logging.getLogger(__name__)

T = TypeVar("T")
WithoutPlanner = Literal["last-plan", "default-clocks"]
Timing = Literal["synchronize", "stream"]
DEFAULT_TIMING: Timing = "stream"
LEASE = Option(name="lease_s", kind=float, is_above=True)
WITHOUT_PLANNER = Option(name="without_planner", choices=get_args(WithoutPlanner))
STRICT = Option(name="strict", kind=bool)
TIMING = Option(name="timing", choices=get_args(Timing))


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """Addresses of a rank's planner and GPU, and its behaviour without a planner.

    Attributes:
        planner_url: Address of the planner (`FLYBALL_PLANNER_URL`); None: no planner.
        token: Token for the planner (`FLYBALL_TOKEN`).
        lease_s: Time in s without a hook after which the clock is restored (`FLYBALL_LEASE_S`).
        without_planner: Clocks while the planner cannot be reached, `last-plan` or
            `default-clocks` (`FLYBALL_WITHOUT_PLANNER`).
        local_rank: CUDA device number of this process's GPU (`LOCAL_RANK`), else as srun or an MPI
            numbers the ranks of a node; it counts where the framework names no GPU and several are
            visible; None: no number is known.
        strict: True: a GPU, right or resource that the machine lacks is an error; False: it is
            logged, and the rank trains without it (`FLYBALL_STRICT`).
        timing: Time of the hooks on a GPU: as it reaches an instruction, `stream`, or after a wait
            for it, `synchronize` (`FLYBALL_TIMING`).
    """

    planner_url: str | None
    token: str | None
    lease_s: float
    without_planner: WithoutPlanner
    local_rank: int | None
    strict: bool = False
    timing: Timing = DEFAULT_TIMING

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str],
        *,
        planner_url: str | None = None,
        token: str | None = None,
        lease_s: float | None = None,
        without_planner: WithoutPlanner | None = None,
        strict: bool | None = None,
        timing: Timing | None = None,
    ) -> RankSettings:
        """Read the settings; arguments take precedence, and an empty variable counts as not set.

        Raises:
            ValueError: A variable cannot be used; the text names it.
        """
        return cls(
            planner_url=planner_url or environ.get("FLYBALL_PLANNER_URL") or None,
            token=token or environ.get("FLYBALL_TOKEN") or None,
            lease_s=value_of(LEASE, environ, lease_s, DEFAULT_LEASE_S),
            without_planner=value_of(WITHOUT_PLANNER, environ, without_planner, "last-plan"),
            local_rank=_local_rank(environ),
            strict=value_of(STRICT, environ, strict, False),
            timing=value_of(TIMING, environ, timing, DEFAULT_TIMING),
        )

    def open_planner(self) -> PlannerClient | None:
        """Open a client of the planner; None: no planner is set.

        None, too, and a log line, if the machine lacks a resource such as free descriptors.

        Raises:
            ValueError: The address or token is invalid.
            OSError: With `strict`, the machine lacks something.
        """
        if self.planner_url is None:
            return None
        try:
            return PlannerClient(self.planner_url, token=self.token)
        except OSError as error:
            if self.strict:
                raise
            _logger.warning("no planner is used, training continues: %s", error)
            return None

    def open_gpu(
        self,
        environ: Mapping[str, str],
        *,
        uuid: str | None = None,
        local_rank: int | None = None,
        stage: int | None = None,
        dp_rank: int = 0,
        num_chunks: int = 1,
        blocking_power_w: float | None = None,
    ) -> GpuDevice | None:
        """Open the GPU of this rank; None: it cannot be used, which is logged.

        With `FLYBALL_GPU=emulated:PROFILE.csv` it is emulated.

        Args:
            environ: Environment variables.
            uuid: UUID of the GPU, of the framework's device; None: it is found by `local_rank`.
            local_rank: CUDA device number of the GPU; None: that of the settings.
            stage: Stage of the rank; an emulated GPU needs it.
            dp_rank: Data-parallel rank of the rank; of an emulated GPU.
            num_chunks: Number of model chunks of the stage; of an emulated GPU.
            blocking_power_w: Power in W of an emulated GPU that waits; None: not known.

        Raises:
            ValueError: A variable cannot be used; the text names it.
            GpuError, OSError: With `strict`, the GPU cannot be found or opened.
        """
        number = self.local_rank if local_rank is None else local_rank
        try:
            return open_rank_gpu(
                environ,
                uuid=uuid,
                local_rank=number,
                stage=stage,
                dp_rank=dp_rank,
                num_chunks=num_chunks,
                blocking_power_w=blocking_power_w,
            )
        except (GpuError, OSError) as error:
            if self.strict or environ.get(GPU_VARIABLE):
                raise
            text = "%s: no clock is set and no energy measured, training continues: %s"
            name = uuid or ("no local rank" if number is None else f"local rank {number}")
            _logger.warning(text, name, error)
            return None


def value_of(option: Option, environ: Mapping[str, str], given: object, default: T) -> T:
    """Return an argument's value, else that of the option's variable, else the default.

    Raises:
        ValueError: The value is none that the option has.
    """
    if given is not None:
        return cast("T", option.read(given))
    variable = f"FLYBALL_{option.name.upper()}"
    if not environ.get(variable):
        return default
    try:
        return cast("T", option.read_text(environ[variable]))
    except OptionError as error:
        raise ValueError(f"{variable} {error.message}") from None


# Of torchrun, srun, Open MPI, MVAPICH2, and Intel MPI; the first that is set counts.
_LOCAL_RANKS = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)


def _local_rank(environ: Mapping[str, str]) -> int | None:
    name = next((name for name in _LOCAL_RANKS if environ.get(name)), None)
    if name is None:
        return None
    text = environ[name]
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be a whole number, not {text!r}")
    return int(text)
