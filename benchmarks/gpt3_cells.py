"""The eight published cells: GPT-3 175B on two GPUs, at four numbers of microbatches.

Stage profiles and published savings: Chung et al., "Reducing Energy Bloat in Large Model
Training", SOSP 2024, and the stage profiles of its artifact, which are not part of Flyball.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from measured_process import BenchmarkError

CHECKOUT = Path(__file__).resolve().parent.parent
DEFAULT_PROFILES = CHECKOUT.parent / "shared" / "data" / "perseus-sosp24" / "stage_profiles"
SCHEDULE = "1f1b"
NUM_MICROBATCHES = (12, 24, 48, 96)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of the publication.

    Attributes:
        name: for people.
        file_name: of its stage profile.
        blocking_power_w: while it waits in communication, W.
        table_name: of its entry in the GPU table.
        perseus_saving_percent: published at no slowdown, per number of microbatches, %.
        envpipe_saving_percent: of the EnvPipe plans in the artifact, at the iteration time and
            against the baseline that this project's simulator gives them, likewise, %.
    """

    name: str
    file_name: str
    table_name: str
    blocking_power_w: float
    perseus_saving_percent: tuple[float, ...]
    envpipe_saving_percent: tuple[float, ...]

    def profile(self, folder: Path) -> Path:
        """Its stage profile in `folder`.

        Raises:
            BenchmarkError: it is not there.
        """
        path = folder / self.file_name
        if not path.is_file():
            raise BenchmarkError(
                f"{self.file_name} is not in {folder}; name the folder of the SOSP'24"
                f" artifact's stage profiles with --profiles DIR"
            )
        return path

    def pipeline_arguments(self, folder: Path, num_microbatches: int) -> list[str]:
        """Return what `flyball plan` and `flyball frontier` are told of a cell."""
        return [
            str(self.profile(folder)),
            *("--microbatches", str(num_microbatches)),
            *("--schedule", SCHEDULE),
            *("--gpu", self.table_name, "--blocking-power", str(self.blocking_power_w)),
            "--no-transitions",
        ]


A100 = Gpu(
    name="A100 SXM",
    file_name="gpt3-175b+a100_sxm_bf16.csv",
    table_name="a100",
    blocking_power_w=83.64,
    perseus_saving_percent=(15.20, 14.19, 13.62, 13.32),
    envpipe_saving_percent=(14.22, 13.54, 13.17, 12.98),
)
A40 = Gpu(
    name="A40",
    file_name="gpt3-175b+a40_bf16.csv",
    table_name="a40",
    blocking_power_w=70.38,
    perseus_saving_percent=(11.81, 10.22, 9.34, 8.88),
    envpipe_saving_percent=(11.13, 9.88, 9.19, 8.82),
)


def add_profiles_argument(parser: argparse.ArgumentParser) -> None:
    """`--profiles DIR`."""
    parser.add_argument(
        "--profiles",
        metavar="DIR",
        type=Path,
        default=DEFAULT_PROFILES,
        help="folder of the SOSP'24 artifact's stage profiles (default: beside the checkout,"
        " shared/data/perseus-sosp24/stage_profiles)",
    )
