"""Environments of peers from PyPI, each below `.bench/` of the checkout, made at the first use."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from measured_process import BenchmarkError, run_process

ZEUS_VERSION = "0.16.0"
INSTALL_GIVE_UP_S = 900.0
_BENCH = Path(__file__).resolve().parent.parent / ".bench"


def peer_python(name: str, *requirements: str, check: str, sees_torch: bool = False) -> str:
    """Return the interpreter of a peer's environment.

    Args:
        name: of its folder.
        requirements: what pip installs.
        check: code that runs at the end; it compiles what the measured runs import.
        sees_torch: it uses the torch of this environment, behind its own packages.

    Raises:
        BenchmarkError: pip or the check failed.
    """
    environment = _BENCH / name
    python, installed = environment / "bin" / "python", environment / "installed"
    if installed.is_file():
        return str(python)
    print(f"installing {' '.join(requirements)} into {environment}", file=sys.stderr)
    try:
        _run(sys.executable, "-m", "venv", "--clear", str(environment))
        _run(str(python), "-m", "pip", "install", "--quiet", *requirements)
        if sees_torch:
            places = {"base": str(environment), "platbase": str(environment)}
            packages = Path(sysconfig.get_path("purelib", scheme="venv", vars=places))
            ours = sysconfig.get_path("purelib")
            (packages / "torch-of-ours.pth").write_text(f"{ours}\n", encoding="utf-8")
        _run(str(python), "-W", "ignore", "-c", check)
    except BenchmarkError as error:
        raise BenchmarkError(f"{name} cannot be installed from PyPI: {error}") from None
    installed.touch()
    return str(python)


def zeus_python() -> str:
    """Return the interpreter of Zeus's client, which imports aiofiles without asking for it."""
    return peer_python(
        f"zeus-{ZEUS_VERSION}",
        f"zeus[pfo]=={ZEUS_VERSION}",
        "aiofiles",
        check="import torch; from zeus.optimizer.pipeline_frequency import"
        " PipelineFrequencyOptimizer",
        sees_torch=True,
    )


def _run(*command: str) -> None:
    run_process(command, give_up_s=INSTALL_GIVE_UP_S)
