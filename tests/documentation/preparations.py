"""Preconditions of a page's commands: jobs, ranks that train, files of its reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from tests.planner.emulated_ranks import (
    BackgroundTraining,
    emulated_training,
    one_forward_one_backward,
)

from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.messages import JobRegistration
from flyball_wire.plan_options import Effort

NUM_STAGES, NUM_MICROBATCHES = 8, 12
NOISE = 0.02
# Between two steps, which take no time but the machine's, as long as nobody waits for them.
_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Preconditions of a page.

    Attributes:
        jobs: known to the page's planner, with the shipped profile, but nobody trains.
        num_stages: of these jobs: so many of the profile's first ones.
        training: the job whose eight emulated GPUs train on a plan of the shipped profile.
        files: NAME -> what it holds, in the folder of the page.
        certificate: whether the folder has a certificate and its key.
        is_installed: Flyball is installed already: the page's way to do that is another page's.
    """

    jobs: tuple[str, ...] = ()
    num_stages: int = NUM_STAGES
    training: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    certificate: bool = False
    is_installed: bool = False


def put_files(preparation: Preparation, folder: Path) -> None:
    """The files that the page names without making them."""
    for name, text in preparation.files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    if preparation.certificate:
        issued = trustme.CA().issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(folder / "planner.key")
        for pem in issued.cert_chain_pems:
            pem.write_to_path(folder / "planner.pem", append=True)


@contextmanager
def prepared_jobs(
    url: str, preparation: Preparation, *, token: str | None = None, rank_token: str | None = None
) -> Iterator[None]:
    """The page's jobs at its planner; one of them trains until the block ends.

    Args:
        url: the planner's address.
        preparation: what the page takes for granted.
        token: an operator's; None: the planner asks for none.
        rank_token: token of the ranks that train.
    """
    with ExitStack() as opened:
        put_jobs(url, preparation.jobs, num_stages=preparation.num_stages, token=token)
        if preparation.training is not None:
            opened.enter_context(
                training(url, preparation.training, token=token, rank_token=rank_token)
            )
        yield


def put_jobs(
    url: str, jobs: Sequence[str], *, num_stages: int = NUM_STAGES, token: str | None = None
) -> None:
    """Make jobs known to a planner, as their rank 0 would, and give them their profile."""
    profile = load_example_profile().select_stages(tuple(range(num_stages)))
    registration = JobRegistration(
        num_stages=num_stages,
        num_microbatches=NUM_MICROBATCHES,
        gpu="a100",
        transition_ms=0.0,  # as its emulated GPUs change their clocks
        effort=Effort.LOW,
        emulated=True,
    )
    with PlannerClient(url, token=token) as planner:
        for job in jobs:
            planner.put_job(job, registration)
            planner.put_profile_csv(job, write_stage_profile(profile))


@contextmanager
def training(
    url: str, job: str, *, token: str | None = None, rank_token: str | None = None
) -> Iterator[None]:
    """Eight emulated GPUs that train step after step on the plan until the block ends."""
    profile = load_example_profile()
    orders = one_forward_one_backward(NUM_STAGES, NUM_MICROBATCHES)
    power_w = load_gpu_window("a100").blocking_power_w
    assert power_w is not None
    put_jobs(url, (job,), token=token)
    with emulated_training(
        url,
        job,
        profile,
        orders,
        blocking_power_w=power_w,
        noise=NOISE,
        token=token,
        rank_token=rank_token,
    ) as ranks:
        ranks.train_until_in_force(1, max_steps=400)

        def pause_s() -> float:
            known = ranks.planner.get_job(job)
            is_on_its_way = known.active_version != known.newest_version
            is_compared = ranks.planner.get_comparison(job).state == "running"
            return 0.0 if is_on_its_way or is_compared else _PAUSE_S

        with BackgroundTraining(ranks, pause_s):
            yield
