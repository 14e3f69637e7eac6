"""Zeus's own client, unmodified, on Flyball's planner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.false_nvml.library import HIGHEST_MHZ, FalseNvml
from tests.integration import zeus_rank
from tests.planner.live import live_planner
from tests.planner.patience import PATIENCE_S, wait_until

pytest.importorskip("torch", reason="needs the extra 'torch'")

# The Makefile puts it there, beside the environment: its wheel has packages `tests` and `examples`.
ZEUS = Path(sys.prefix) / "zeus-0.16.0"
NUM_RANKS, NUM_STAGES = 4, 2
NAME = "gpt+3"
METADATA = f"{NAME}+num_microbatches=3+blocking_power_w=70,75"
# Stage 1 is the longer one, and the GPUs have 1500 and 1515 MHz, not 1501.
PROFILE = "stage,instruction,frequency,time,energy\n" + "".join(
    f"{stage},{kind},{mhz},{time_s * factor * (1 + stage / 2):.4f},{energy_j}\n"
    for stage in range(NUM_STAGES)
    for kind, time_s in (("forward", 0.1), ("backward", 0.2))
    for mhz, factor, energy_j in ((1980, 1.0, 60), (1501, 1.2, 45))
)


@pytest.mark.slow
@pytest.mark.skipif(not ZEUS.is_dir(), reason=f"needs the package zeus in {ZEUS}: make test")
def test_zeuss_own_client_trains_on_the_plan_that_the_page_shows(
    false_nvml_library: Path, tmp_path: Path
) -> None:
    nvml = FalseNvml(false_nvml_library, tmp_path, num_gpus=NUM_RANKS)
    variables = {name: value for name, value in nvml.environment.items() if "proxy" not in name}
    with live_planner(zeus_clients=True) as planner:

        def job() -> Any:  # noqa: ANN401 - JSON
            return planner.http.get(f"/api/v1/jobs/{NAME}").json()

        address = str(planner.http.base_url).rstrip("/")
        arguments = (ZEUS, address, METADATA, NUM_RANKS, NUM_STAGES, tmp_path)
        words = (sys.executable, zeus_rank.__file__, *arguments)
        ranks = subprocess.Popen(tuple(map(str, words)), env=variables, start_new_session=True)
        try:
            wait_until(lambda: len(job().get("ranks", ())) == NUM_RANKS)
            assert job()["state"] == "awaiting-profile"
            planner.put_profile(PROFILE, NAME).raise_for_status()
            assert ranks.wait(PATIENCE_S) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
        plan = planner.http.get(f"/api/v1/jobs/{NAME}/plans/1").json()
        ended = job()
    assert plan["first_step"] == 0
    assert [rank["acknowledged_version"] for rank in ended["ranks"]] == [1] * NUM_RANKS
    assert ended["registration"]["blocking_power_w"] == [70, 75]
    stages = [[(kind, mhz) for kind, _, mhz in stage] for stage in plan["plan"]["stages"]]
    assert {mhz for stage in stages for _, mhz in stage} == {1501, 1980}
    for number in range(NUM_RANKS):
        planned = [
            (kind, 1515 if mhz == 1501 else mhz) for kind, mhz in stages[number % NUM_STAGES]
        ]
        job_id, given = json.loads((tmp_path / f"rank-{number}.json").read_text())
        assert job_id == NAME
        assert [tuple(item) for item in given] == planned
        # Zeus's controller begins at the highest clock and sets only what changes.
        clocks = [HIGHEST_MHZ, *[mhz for _, mhz in planned] * zeus_rank.NUM_STEPS]
        set_mhz = [mhz for gpu, mhz in nvml.calls("nvmlDeviceSetGpuLockedClocks") if gpu == number]
        assert set_mhz == [mhz for mhz, _ in groupby(clocks)]
    nvml.close()
