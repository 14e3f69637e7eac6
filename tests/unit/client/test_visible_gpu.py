from __future__ import annotations

import pytest

from flyball_client.gpu._base import GpuError, GpuNotFoundError, GpuNotSupportedError
from flyball_client.gpu.nvml import select_visible

EQUAL = [("H200", "GPU-aaaa-0"), ("H200", "GPU-aabb-1"), ("H200", "GPU-cccc-2")]
MIXED = [("T4", "GPU-aaaa-0"), ("H200", "GPU-aabb-1")]


@pytest.mark.parametrize(
    ("setting", "local_rank", "uuid"),
    [
        (None, 1, "GPU-aabb-1"),
        ("2,0", 1, "GPU-aaaa-0"),
        (" 1 , 2 ", 1, "GPU-cccc-2"),
        ("GPU-cccc-2", 0, "GPU-cccc-2"),
        ("GPU-c,GPU-aaa", 1, "GPU-aaaa-0"),
        ("1,-1,2", 0, "GPU-aabb-1"),
    ],
)
def test_the_number_counts_within_what_is_visible(
    setting: str | None, local_rank: int, uuid: str
) -> None:
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert select_visible(local_rank, environ, EQUAL) == uuid


@pytest.mark.parametrize(
    ("setting", "local_rank", "num_visible"),
    [
        ("", 0, 0),
        (None, 3, 3),
        (None, -1, 3),
        ("0,1", 2, 2),
        ("0,-1,1", 1, 1),
        ("7", 0, 0),
        ("GPU-aa", 0, 0),  # two GPUs begin like this
        ("none", 0, 0),
    ],
)
def test_a_number_beyond_what_is_visible_is_not_found(
    setting: str | None, local_rank: int, num_visible: int
) -> None:
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    with pytest.raises(GpuNotFoundError, match=f"has no GPU: {num_visible} of 3 are visible"):
        select_visible(local_rank, environ, EQUAL)


def test_a_mig_instance_is_refused_and_different_gpus_need_the_order_of_the_bus() -> None:
    with pytest.raises(GpuNotSupportedError, match="names a MIG instance"):
        select_visible(0, {"CUDA_VISIBLE_DEVICES": "MIG-1234"}, EQUAL)
    with pytest.raises(GpuError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        select_visible(0, {}, MIXED)
    ordered = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert select_visible(0, ordered, MIXED) == "GPU-aaaa-0"
    by_uuid = {"CUDA_VISIBLE_DEVICES": "GPU-aabb"}
    assert select_visible(0, by_uuid, MIXED) == "GPU-aabb-1"
