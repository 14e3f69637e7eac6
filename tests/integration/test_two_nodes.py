"""A pipeline of two stages over two nodes, with one planner: DeepSpeed on gloo, really run.

The nodes are two torchrun groups in network namespaces of their own where that is possible,
else on loopback; the first test says which.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.two_nodes import Node, TwoNodes, two_nodes

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from flyball_lab.demo.options import child_environment, missing_prerequisites
from flyball_lab.demo.processes import ChildProcess, Interruption
from flyball_lab.demo.run_folder import read_witnessed_clocks

_TRAINING = Path(__file__).with_name("two_node_training.py")
_TIMEOUT_S = 500
_NUM_RANKS = 2
_MAX_ERROR = 0.1

Findings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Results of the run."""

    nodes: TwoNodes
    ranks: list[Findings]
    clocks: list[tuple[tuple[tuple[str, int], ...], ...]]

    @property
    def plan(self) -> dict[str, Any]:
        """The only plan that the planner made."""
        (version,) = self.ranks[0]["plans"]
        plan: dict[str, Any] = version["plan"]
        return plan


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    missing = missing_prerequisites()
    if missing:
        pytest.skip(f"DeepSpeed cannot run here; missing: {missing}")
    folder = tmp_path_factory.mktemp("two-nodes")
    with Interruption() as interruption, two_nodes() as nodes:
        _train(nodes, folder, interruption)
    return Run(
        nodes=nodes,
        ranks=[
            json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(_NUM_RANKS)
        ],
        clocks=[
            read_witnessed_clocks(folder / f"clocks-{rank}.json") for rank in range(_NUM_RANKS)
        ],
    )


def _train(nodes: TwoNodes, folder: Path, interruption: Interruption) -> None:
    environment = child_environment(os.environ) | {
        "FLYBALL_TOKEN": "a-token",
        "FLYBALL_PLANNING_PROCESSES": "0",
    }
    path = (str(Path(__file__).parents[2]), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(path)
    first = nodes.nodes[0]
    url = f"http://{first.address}:{nodes.planner_port}"
    where = ("--host", first.address, "--port", str(nodes.planner_port))
    database = ("--database", f"sqlite:///{folder / 'planner.sqlite'}")
    serve = ("-m", "flyball_client", "serve", *where, *database)
    with ExitStack() as started:
        started.enter_context(
            ChildProcess(
                first.arguments(sys.executable, *serve),
                environment=environment,
                log=folder / "planner.log",
                grace_s=3.0,
            )
        )
        groups = [
            started.enter_context(
                ChildProcess(
                    _torchrun(nodes, number, folder, url),
                    environment=environment
                    | {"GLOO_SOCKET_IFNAME": node.interface, "IMPORTED_BEFORE": "deepspeed"},
                    log=folder / f"torchrun-{number}.log",
                )
            )
            for number, node in enumerate(nodes.nodes)
        ]
        for group in groups:
            status = group.wait(interruption, timeout_s=_TIMEOUT_S)
            logs = [(folder / f"torchrun-{number}.log").read_text() for number in range(2)]
            assert status == 0, "\n\n".join(log[-4000:] for log in logs)


def _torchrun(nodes: TwoNodes, number: int, folder: Path, planner_url: str) -> list[str]:
    node: Node = nodes.nodes[number]
    return node.arguments(
        sys.executable,
        *("-m", "tests.integration.forking_torchrun", "--nnodes", "2", "--node-rank", str(number)),
        *("--nproc-per-node", "1", "--master-addr", nodes.nodes[0].address),
        *("--master-port", str(nodes.rendezvous_port), "--local-addr", node.address),
        *("--log-dir", str(folder / f"torchrun-{number}")),
        *(str(_TRAINING), str(folder), planner_url),
    )


def test_all_ranks_of_both_nodes_are_registered_with_their_place(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\ntwo nodes: {run.nodes.described}")
    job = run.ranks[0]["job"]
    assert (job["registration"]["num_ranks"], job["registration"]["num_stages"]) == (2, 2)
    places = [
        (rank["rank"], rank["stage"], rank["dp_rank"], rank["tp_rank"], rank["cp_rank"])
        for rank in job["ranks"]
    ]
    assert places == [(0, 0, 0, 0, 0), (1, 1, 0, 0, 0)]
    assert [found["stage"] for found in run.ranks] == [0, 1]
    hosts = [rank["host"] for rank in job["ranks"]]
    assert hosts == [found["host"] for found in run.ranks]
    if run.nodes.nodes[0].namespace is not None:
        assert hosts == ["node-0", "node-1"]


def test_one_plan_takes_effect_on_both_nodes_in_the_same_step(run: Run) -> None:
    first_step = run.ranks[0]["plans"][0]["first_step"]
    for found, clocks in zip(run.ranks, run.clocks, strict=True):
        versions = [step["plan_version"] for step in found["steps"]]
        assert versions == [None] * first_step + [1] * (len(versions) - first_step)
        assert all(step["num_unplanned"] == 0 for step in found["steps"])
        of_stage = run.plan["stages"][found["stage"]]
        planned = tuple((kind, clock_mhz) for kind, _, clock_mhz in of_stage)
        assert len(versions) - first_step >= 4
        assert set(clocks[first_step:]) == {planned}
    # Not all at one clock, or following the plan would mean nothing.
    assert len({clock for _, clock in run.clocks[0][-1]}) > 1


def test_the_energies_of_both_nodes_are_summed_and_the_time_is_the_slowest_ranks(run: Run) -> None:
    steps = run.ranks[0]["steps of the job"]
    assert len(steps) == len(run.ranks[0]["steps"])
    for of_job, *of_ranks in zip(steps, *(found["steps"] for found in run.ranks), strict=True):
        assert of_job["num_ranks"] == _NUM_RANKS
        assert {step["step"] for step in of_ranks} == {of_job["step"]}
        assert of_job["energy_j"] == pytest.approx(sum(step["energy_j"] for step in of_ranks))
        assert of_job["time_s"] == max(step["time_s"] for step in of_ranks)
    assert [found["num_dropped"] for found in run.ranks] == [0] * _NUM_RANKS
    # They are those of the plan; its first step is a warm-up.
    plan, steps = run.plan, [step for step in steps if step["plan_versions"] == [1]][1:]
    assert len(steps) >= 3
    # In real time: the least of them, in which the computer was busy elsewhere the least.
    time_s = min(step["time_s"] for step in steps)
    energy_j = min(step["energy_j"] for step in steps)
    assert time_s == pytest.approx(plan["iteration_time_s"], rel=_MAX_ERROR)
    assert energy_j == pytest.approx(plan["energy_j"], rel=_MAX_ERROR)
    assert plan["energy_j"] < plan["baseline"]["energy_j"]


def test_receives_show_how_long_a_stage_waits_for_its_neighbour_on_the_other_node(
    run: Run,
) -> None:
    orders = {0: "F0 F1 B0 F2 B1 F3 B2 B3", 1: "F0 B0 F1 B1 F2 B2 F3 B3"}
    for found in run.ranks:
        timings = found["last_step_timings"]
        names = [f"{timing['kind'][0].upper()}{timing['microbatch']}" for timing in timings]
        assert " ".join(names) == orders[found["stage"]]
        receives = {name: row["receive_time_s"] for name, row in zip(names, timings, strict=True)}
        began_s = {name: row["began_s"] for name, row in zip(names, timings, strict=True)}
        if found["stage"] == 0:
            assert receives["F0"] == 0.0
            # The second stage computes forward and backward of microbatch 0 meanwhile, less
            # this stage's forward of microbatch 1: at least 0.1 + 0.2 - 0.11 s.
            assert receives["B0"] > 0.18
        else:
            # The first stage's forward takes 0.1 s at least.
            assert receives["F0"] > 0.09
            assert began_s["F0"] >= receives["F0"]
        assert all(timing["compute_time_s"] > 0.09 for timing in timings)
