"""What the demo needs on this machine, and the environment its processes run in."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_DEMO_EXTRA = "of the extra 'demo': pip install '.[demo]' in a clone of Flyball"
_PACKAGES = ("torch", "deepspeed", "fastapi", "uvicorn", "sqlalchemy", "numpy", "rich")
# Left over from another launcher these would make DeepSpeed believe in other ranks.
_LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CROSS_RANK",
    "CROSS_SIZE",
)


def missing_prerequisites(environ: Mapping[str, str]) -> list[str]:
    """What is missing, each with where to get it; empty when the demo can run."""
    missing = [f"{name} ({_DEMO_EXTRA})" for name in _PACKAGES if find_spec(name) is None]
    path = _search_path(environ)
    if _cxx_compiler(environ) is None:
        missing.append("g++ (DeepSpeed compiles a helper; apt install g++)")
    if shutil.which("ninja", path=path) is None:
        missing.append(f"ninja ({_DEMO_EXTRA})")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        missing.append("Python's headers (for DeepSpeed's helper; apt install python3-dev)")
    return missing


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the demo's processes: this one, on the CPU and on loopback.

    `FLYBALL_*` settings of the user are left out: the demo has its own planner.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("FLYBALL_") and name not in _LAUNCHER_VARIABLES
    }
    kept |= {
        "PATH": _search_path(environ),
        "PYTHONUNBUFFERED": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(_extensions_folder(environ)),
    }
    compiler = _cxx_compiler(environ)
    if compiler is not None:
        kept["CXX"] = compiler
    if sys.platform == "linux":
        kept["GLOO_SOCKET_IFNAME"] = "lo"
    return kept


def _search_path(environ: Mapping[str, str]) -> str:
    """PATH with this Python's own scripts first: ninja is one of them in a virtualenv."""
    return os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])


def _cxx_compiler(environ: Mapping[str, str]) -> str | None:
    wanted = environ.get("CXX")
    names = (wanted,) if wanted else ("c++", "g++")
    return next((name for name in names if shutil.which(name, path=_search_path(environ))), None)


def _extensions_folder(environ: Mapping[str, str]) -> Path:
    """Where the compiled helper stays from one demo to the next; one folder per environment.

    A build names the headers and the compiler that it was made with. Where two environments
    shared it, each demo would compile what the other has compiled, in all of its ranks at once.
    """
    cache = environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    made_with = f"{sys.prefix}\n{_cxx_compiler(environ)}"
    digest = hashlib.sha256(made_with.encode()).hexdigest()[:12]
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    versions = f"{python}-torch-{version('torch')}-{version('deepspeed')}"
    return Path(cache, "flyball", f"{versions}-{digest}")
