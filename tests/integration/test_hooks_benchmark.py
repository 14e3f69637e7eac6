"""What the benchmark of the hooks says where kernels cannot be launched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--kernels",), "hooks.py: --kernels: torch sees no GPU here\n"),
        (
            ("--kernels", "--parts", "memory"),
            "hooks.py: --kernels belongs to the part hooks, which --parts leaves out\n",
        ),
    ],
    ids=["no GPU", "no hooks"],
)
def test_kernels_without_a_gpu_or_without_hooks(arguments: tuple[str, ...], line: str) -> None:
    run = subprocess.run(
        [sys.executable, "benchmarks/hooks.py", *arguments],
        cwd=ROOT,
        # Also where there is a GPU: none is for this process, and so none for the load.
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (2, "", line)
