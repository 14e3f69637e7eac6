"""Pages that need something their reader has already."""

from __future__ import annotations

from tests.documentation.preparations import Preparation

from flyball_profiles.examples import example_profile_path

_PROFILE = example_profile_path().read_text(encoding="utf-8")
_PART = "stage,instruction,frequency,time,energy,tp_rank\n" + "".join(
    f"0,{kind},{mhz},{time_s},{energy_j},{{rank}}\n"
    for kind in ("forward", "backward")
    for mhz, time_s, energy_j in ((1410, 0.05, 24.0), (1200, 0.06, 20.0))
)

PREPARATIONS: dict[str, Preparation] = {
    # Installed as docs/quickstart.md does it, from nothing.
    "README.md": Preparation(training="my-job", is_installed=True),
    "examples/README.md": Preparation(jobs=("llama",), num_stages=2),
    "docs/deepspeed.md": Preparation(jobs=("my-job", "gpt"), files=(("profile.csv", _PROFILE),)),
    "docs/deploy.md": Preparation(certificate=True),
    "docs/failures.md": Preparation(training="gpt3"),
    "docs/from-zeus.md": Preparation(jobs=("my-job",), files=(("profile.csv", _PROFILE),)),
    "docs/profiling.md": Preparation(
        files=(
            ("s0-t0.csv", _PART.format(rank=0)),
            ("s0-t1.csv", _PART.format(rank=1)),
            ("old.csv", _PROFILE),
        )
    ),
    "docs/runbook.md": Preparation(training="gpt3"),
    "docs/savings.md": Preparation(jobs=("llama",), training="gpt3"),
}
