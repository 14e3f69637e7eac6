"""Zeus's own client from PyPI, in an environment of its own, for benchmarks/hooks.py.

torch is the one of this environment, seen through a path file behind Zeus's own packages.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from measured_process import STDERR_LINES_SHOWN, BenchmarkError

VERSION = "0.16.0"
# Zeus's client imports aiofiles, and only its server's extra asks for it.
REQUIREMENTS = (f"zeus[pfo]=={VERSION}", "aiofiles")
ENVIRONMENT = Path(__file__).resolve().parent.parent / ".bench" / f"zeus-{VERSION}"
INSTALL_GIVE_UP_S = 900.0
_CHECK = "import torch; from zeus.optimizer.pipeline_frequency import PipelineFrequencyOptimizer"


def zeus_python() -> str:
    """The interpreter of Zeus's environment, made at the first use.

    Raises:
        BenchmarkError: pip could not.
    """
    python, installed = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed"
    if installed.is_file():
        return str(python)
    print(f"installing {' '.join(REQUIREMENTS)} into {ENVIRONMENT}", file=sys.stderr)
    run_installing([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
    run_installing([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS])
    show_torch(ENVIRONMENT)
    run_installing([str(python), "-W", "ignore", "-c", _CHECK])
    installed.touch()
    return str(python)


def show_torch(environment: Path) -> None:
    """Let this environment see the torch of ours."""
    (_site_packages(environment) / "torch-beside-zeus.pth").write_text(
        sysconfig.get_path("purelib") + "\n", encoding="utf-8"
    )


def _site_packages(environment: Path) -> Path:
    variables = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("purelib", scheme="venv", vars=variables))


def run_installing(command: list[str]) -> None:
    """Run a command of an installation.

    Raises:
        BenchmarkError: it failed.
    """
    try:
        run = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=INSTALL_GIVE_UP_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchmarkError(f"Zeus {VERSION} cannot be installed from PyPI: {error}") from None
    if run.returncode != 0:
        last = " | ".join(run.stderr.strip().splitlines()[-STDERR_LINES_SHOWN:])
        raise BenchmarkError(f"Zeus {VERSION} cannot be installed from PyPI: {last}")
