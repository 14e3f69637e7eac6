"""Places of ranks by torch's device mesh, in a world of one process that stands for each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
import torch.distributed
from tests.planner.live import live_planner
from tests.planner.patience import wait_until
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from flyball_integrations.shared.rank_places import find_place, find_place_without_pipeline
from flyball_integrations.torch.pipelining import attach, detach
from flyball_wire import routes

CPU = torch.device("cpu")
WIDTH = 16
NOT_GIVEN = {"dp_rank": None, "tp_rank": None, "cp_rank": None}
Parallelize = Callable[[nn.Module, Any], None]


@contextmanager
def rank_of(rank: int, num_ranks: int) -> Iterator[None]:
    """Be this rank of a world without the others, whose calls return at once."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def mesh_of(shape: dict[str, int]) -> Any:  # noqa: ANN401 - torch's
    return init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))


def stage_in(mesh: Any, pipeline: str) -> PipelineStage:  # noqa: ANN401 - torch's
    group = mesh.get_group(pipeline)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    return PipelineStage(module, group.rank(), group.size(), CPU, group=group)


# Sizes by name in the mesh's order, and the dimensions of each rank, row by row.
MESHES: tuple[tuple[dict[str, int], str, dict[str, tuple[str, ...]]], ...] = (
    ({"dp": 2, "pp": 2, "tp": 2}, "pp", {"dp_rank": ("dp",), "tp_rank": ("tp",)}),
    (
        {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2},
        "pp",
        {"dp_rank": ("dp_replicate", "dp_shard"), "cp_rank": ("cp",), "tp_rank": ("tp",)},
    ),
    ({"tp": 1, "batch": 3, "stage": 4}, "stage", {"dp_rank": ("batch",)}),
    ({"replica": 2, "ep": 2, "pp": 2}, "pp", {"dp_rank": ("replica", "ep")}),
    ({"pp": 4}, "pp", {}),
)


@pytest.mark.parametrize(("shape", "pipeline", "kinds"), MESHES)
def test_every_rank_has_a_place_of_its_own_by_its_coordinates(
    shape: dict[str, int], pipeline: str, kinds: dict[str, tuple[str, ...]]
) -> None:
    num_ranks, places = prod(shape.values()), set()
    for rank, own in enumerate(product(*map(range, shape.values()))):
        at = dict(zip(shape, own, strict=True))
        with rank_of(rank, num_ranks):
            mesh = mesh_of(shape)
            place = find_place((stage_in(mesh, pipeline),), mesh=mesh, given=NOT_GIVEN)
        expected = {"dp_rank": 0, "tp_rank": 0, "cp_rank": 0}
        for kind, names in kinds.items():
            for name in names:
                expected[kind] = expected[kind] * shape[name] + at[name]
        assert vars(place) == expected
        places.add((at[pipeline], place))
    assert len(places) == num_ranks


def shard_data(module: nn.Module, mesh: Any) -> None:  # noqa: ANN401 - torch's
    fully_shard(module, mesh=mesh["dp"])


def split_tensors(module: nn.Module, mesh: Any) -> None:  # noqa: ANN401 - torch's
    parallelize_module(module, mesh["tp"], {"0": ColwiseParallel()})


def do_both(module: nn.Module, mesh: Any) -> None:  # noqa: ANN401 - torch's
    split_tensors(module, mesh)
    shard_data(module, mesh)


@pytest.mark.parametrize("parallelize", [shard_data, split_tensors, do_both])
def test_the_mesh_is_found_by_the_parameters(parallelize: Parallelize) -> None:
    for rank, dp_rank, tp_rank in ((1, 0, 1), (6, 1, 0)):
        with rank_of(rank, 8):
            mesh = mesh_of({"dp": 2, "pp": 2, "tp": 2})
            stage = stage_in(mesh, "pp")
            parallelize(stage.submod, mesh)
            place = find_place((stage,), mesh=None, given=NOT_GIVEN)
        assert (place.dp_rank, place.tp_rank, place.cp_rank) == (dp_rank, tp_rank, 0)


def test_given_ranks_take_precedence_and_one_pipeline_needs_no_mesh() -> None:
    with rank_of(5, 8):
        mesh = mesh_of({"dp": 2, "pp": 2, "tp": 2})
        stage = stage_in(mesh, "pp")
        do_both(stage.submod, mesh)
        place = find_place((stage,), mesh=None, given={**NOT_GIVEN, "dp_rank": 7})
        assert (place.dp_rank, place.tp_rank, place.cp_rank) == (7, 0, 0)
        with pytest.raises(ValueError, match=r"device_mesh= already has the tp_rank"):
            find_place((stage,), mesh=mesh, given={**NOT_GIVEN, "tp_rank": 1})
        with pytest.raises(ValueError, match=r"tp=2.*is not of all 8 ranks"):
            find_place((stage,), mesh=mesh["tp"], given=NOT_GIVEN)
        # Nothing says which of several pipelines it is in.
        with pytest.raises(ValueError, match=r"8 ranks in pipelines of 2.*give device_mesh="):
            find_place((stage_in(mesh, "pp"),), mesh=None, given=NOT_GIVEN)
    with rank_of(3, 4):
        stage = PipelineStage(nn.Linear(WIDTH, WIDTH), 3, 4, CPU)
        assert set(vars(find_place((stage,), mesh=None, given=NOT_GIVEN)).values()) == {0}


@pytest.mark.usefixtures("agreeing_ranks")
def test_a_rank_registers_at_the_place_of_its_mesh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLYBALL_PLANNER_URL", raising=False)
    with live_planner() as planner, rank_of(5, 8):
        planner.put_job(num_ranks=8).raise_for_status()
        mesh = mesh_of({"dp": 2, "pp": 2, "tp": 2})
        stage = stage_in(mesh, "pp")
        do_both(stage.submod, mesh)
        schedule = Schedule1F1B(stage, 2, loss_fn=nn.functional.mse_loss)
        attach(schedule, job_id="job", planner_url=str(planner.http.base_url))

        def ranks() -> Any:  # noqa: ANN401 - JSON
            path = routes.fill(routes.JOB, job_id="job")
            return planner.http.get(path).raise_for_status().json()["ranks"]

        wait_until(ranks)
        detach(schedule)
        (found,) = ranks()
    assert found["rank"] == 5
    assert (found["stage"], found["dp_rank"], found["tp_rank"]) == (0, 1, 1)


def test_without_a_pipeline_the_whole_mesh_is_of_data_and_tensor_parallelism() -> None:
    with rank_of(5, 8):
        model = nn.Linear(WIDTH, WIDTH)
        place = find_place_without_pipeline(model.parameters(), rank=5, mesh=None, given=NOT_GIVEN)
        assert vars(place) == {"dp_rank": 5, "tp_rank": 0, "cp_rank": 0}
        # Rank 5 of 2 x 2 x 2: second replica, first shard, second in tensor parallelism.
        mesh = mesh_of({"dp_replicate": 2, "dp_shard": 2, "tp": 2})
        place = find_place_without_pipeline(model.parameters(), rank=5, mesh=mesh, given=NOT_GIVEN)
        assert vars(place) == {"dp_rank": 2, "tp_rank": 1, "cp_rank": 0}
        parallelize_module(model, mesh["tp"], ColwiseParallel())
        fully_shard(model, mesh=mesh["dp_replicate", "dp_shard"])
        place = find_place_without_pipeline(model.parameters(), rank=5, mesh=None, given=NOT_GIVEN)
        assert vars(place) == {"dp_rank": 2, "tp_rank": 1, "cp_rank": 0}
