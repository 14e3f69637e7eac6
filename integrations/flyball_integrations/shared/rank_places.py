"""Place of a rank in data, tensor and context parallelism, from torch's device mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh

# torchtitan's names, and longer ones; dimensions with other names are data parallelism.
_TENSOR = ("tp", "tensor")
_CONTEXT = ("cp", "context", "sp", "sequence")


@dataclass(frozen=True, kw_only=True)
class ParallelPlace:
    """Ranks in data, tensor and context parallelism, from 0."""

    dp_rank: int = 0
    tp_rank: int = 0
    cp_rank: int = 0


def find_place(
    stages: Sequence[Any], *, mesh: DeviceMesh | None, given: Mapping[str, int | None]
) -> ParallelPlace:
    """Return the place of this rank.

    Given ranks take precedence over the mesh, and that over the mesh of the stages' parameters. In
    a single pipeline without a mesh, all three are 0.

    Args:
        stages: stages of this rank, of torch.distributed.pipelining.
        mesh: mesh of all ranks; None: that of the parameters.
        given: fields of the place; None: not given.

    Raises:
        ValueError: the mesh is not of all ranks, or there is none and several pipelines.
    """
    num_ranks = torch.distributed.get_world_size()
    pipeline = torch.distributed.get_process_group_ranks(
        stages[0].group or torch.distributed.group.WORLD
    )
    parameters = (parameter for stage in stages for parameter in stage.submod.parameters())
    place = _place(pipeline, parameters, mesh=mesh, given=given)
    if place is None and len(pipeline) < num_ranks:
        raise ValueError(
            f"{num_ranks} ranks in pipelines of {len(pipeline)}, and no parameter has a device mesh"
            " of all of them: give device_mesh=, or dp_rank=, tp_rank= and cp_rank=, or the ranks"
            " of a stage cannot be told apart"
        )
    return place or ParallelPlace()


def find_place_without_pipeline(
    parameters: Iterable[torch.Tensor],
    *,
    rank: int,
    mesh: DeviceMesh | None,
    given: Mapping[str, int | None],
) -> ParallelPlace:
    """Return the place of a rank that is in no pipeline; without a mesh it is all data parallelism.

    Raises:
        ValueError: the mesh is not of all ranks.
    """
    place = _place([rank], parameters, mesh=mesh, given=given)
    return ParallelPlace(dp_rank=rank) if place is None else place


def _place(
    pipeline: Sequence[int],
    parameters: Iterable[torch.Tensor],
    *,
    mesh: DeviceMesh | None,
    given: Mapping[str, int | None],
) -> ParallelPlace | None:
    """Return the place by given ranks or by a mesh; None: there is neither."""
    ranks = {name: number for name, number in given.items() if number is not None}
    if ranks and mesh is not None:
        raise ValueError(f"device_mesh= already has the {next(iter(ranks))}; give one of the two")
    if ranks:
        return ParallelPlace(**ranks)
    for found in (mesh,) if mesh is not None else _meshes_of(parameters):
        num_ranks = torch.distributed.get_world_size()
        dimensions = [
            dimension
            for dimension in _dimensions_of(found)
            if len(dimension.ranks) > 1 and dimension.ranks != list(pipeline)
        ]
        if len(pipeline) * prod(len(dimension.ranks) for dimension in dimensions) == num_ranks:
            return _place_in(dimensions)
    if mesh is not None:
        raise ValueError(
            f"{mesh} is not of all {torch.distributed.get_world_size()} ranks in pipelines of"
            f" {len(pipeline)}; give the one that init_device_mesh returned"
        )
    return None


@dataclass(frozen=True, kw_only=True)
class _Dimension:
    """Dimension of a mesh: its name, its ranks with this rank, and this rank's position."""

    name: str
    ranks: list[int]
    position: int


def _meshes_of(parameters: Iterable[torch.Tensor]) -> Iterator[DeviceMesh]:
    """Yield the meshes of the parameters, each after the mesh that it is a part of."""
    # Of those that are DTensors.
    meshes = (getattr(parameter, "device_mesh", None) for parameter in parameters)
    for mesh in dict.fromkeys(mesh for mesh in meshes if isinstance(mesh, DeviceMesh)):
        yield _root_of(mesh)
        yield mesh


def _root_of(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh that this mesh is a part of; itself where torch does not say."""
    found = getattr(mesh, "_get_root_mesh", None)
    return mesh if found is None else cast("DeviceMesh", found())


def _dimensions_of(mesh: DeviceMesh) -> list[_Dimension]:
    """Return the dimensions of a mesh; none where this rank is not in it."""
    found = (mesh.mesh == torch.distributed.get_rank()).nonzero().tolist()
    if not found:
        return []
    (own,) = found
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    return [
        _Dimension(
            name=name.lower(),
            ranks=mesh.mesh[(*own[:axis], slice(None), *own[axis + 1 :])].tolist(),
            position=own[axis],
        )
        for axis, name in enumerate(names)
    ]


def _place_in(dimensions: Sequence[_Dimension]) -> ParallelPlace:
    """Return the place; several dimensions of one kind are counted row by row."""
    counted = {"dp_rank": 0, "tp_rank": 0, "cp_rank": 0}
    for dimension in dimensions:
        kind = "dp_rank"
        if dimension.name.startswith(_TENSOR):
            kind = "tp_rank"
        elif dimension.name.startswith(_CONTEXT):
            kind = "cp_rank"
        counted[kind] = counted[kind] * len(dimension.ranks) + dimension.position
    return ParallelPlace(**counted)
