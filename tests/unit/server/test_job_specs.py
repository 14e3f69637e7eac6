"""Specifications of jobs are checked once, where they come in, and not where they are read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.planner.samples import job_record, job_spec
from tests.planner.stores import TemporaryJobStore

from flyball_pipeline.instruction import MAX_NUM_MICROBATCHES
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.registry.spec_checks import check_spec
from flyball_wire.messages import MAX_RANKS, MAX_STAGES
from flyball_wire.orders import OtherOrder

ONE = (("forward", 0), ("backward", 0))
MEMORY = {"activation_bytes": (1, 1), "free_memory_bytes": (0, 0)}
OTHER = OtherOrder(schedule="gpipe", line="x")
V = (("forward", 0), ("forward", 0, 1), ("backward", 0, 1), ("backward", 0))
ONE_OF_V = {"schedule": "explicit", "num_microbatches": 1, "order": (V, V)}
ENVPIPE = {"schedule": "envpipe", "num_microbatches": 4}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_ranks": 1}, "num_ranks"),
        ({"blocking_power_w": None}, "blocking_power_w"),
        ({"blocking_power_w": (1.0, 2.0, 3.0)}, "blocking_power_w"),
        ({"activation_bytes": (1, 1)}, "free_memory_bytes"),
        ({"free_memory_bytes": (1, 1)}, "activation_bytes"),
        ({**MEMORY, "activation_bytes": (1, 1, 1)}, "activation_bytes"),
        ({"schedule": "nonsense"}, "schedule: unknown 'nonsense'; known: "),
        ({"schedule": "auto", "other_orders": (OTHER,)}, "schedule"),
        ({"schedule": "auto:envpipe", "other_orders": (OTHER,)}, "schedule"),
        ({"schedule": "1f1b", "checkpoint": "always"}, "checkpoint: is for schedule torchgpipe"),
        ({"gpu": "abacus"}, "gpu: unknown GPU 'abacus'; known: "),
        ({"gpus_at_once": 2, "gpu": "a40"}, "gpus_at_once: has no effect: it needs the time of a"),
        ({"gpus_in_node": 2, "transition_ms": 5.0}, "gpus_in_node: has no effect"),
        ({"schedule": "explicit"}, "order: must be given with schedule explicit"),
        ({**ONE_OF_V, "virtual_stages": ((3, 0), (1, 2))}, "order: the order deadlocks"),
        (
            {**ONE_OF_V, "order": (ONE, (("sideways", 0),))},
            "order[1][0]: unknown instruction 'sideways'",
        ),
        ({"schedule": "explicit", "order": ()}, "order"),
        ({"schedule": "explicit", "order": (ONE,) * 3}, "order"),
        (ENVPIPE, "extra_forwards"),
        ({"extra_forwards": (1, 0)}, "extra_forwards"),
        ({**ENVPIPE, "extra_forwards": (1,)}, "extra_forwards"),
        ({**ENVPIPE, "extra_forwards": (1, -1)}, "extra_forwards"),
        ({**ENVPIPE, "extra_forwards": (0, 2)}, "extra_forwards"),
        ({"virtual_stages": ((0,), (1,))}, "virtual_stages"),
        ({"other_orders": (OTHER,) * 17}, "other_orders"),
        ({"other_orders": (OtherOrder(schedule="1f1b", line="a\nb"),)}, "other_orders"),
        ({"adaptation": "reconfigure"}, "adaptation"),
        ({"adaptation": "frontier", "policy": "envelope"}, "adaptation"),
    ],
)
def test_a_job_that_cannot_be_planned_names_its_field(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        check_spec(job_spec(**changes), load_gpu_window)
    field, _, problem = said.partition(": ")
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: {problem}")
    assert "\n" not in str(caught.value)


def test_the_bounds_themselves_are_allowed() -> None:
    for changes in (
        {"num_stages": 1, "num_ranks": 1, "num_microbatches": 1, "blocking_power_w": (0.0,)},
        {
            "num_stages": MAX_STAGES,
            "num_ranks": MAX_RANKS,
            "num_microbatches": MAX_NUM_MICROBATCHES,
        },
        {"blocking_power_w": (1.0, 2.0), **MEMORY},
        {"policy": "envelope"},
    ):
        check_spec(job_spec(**changes), load_gpu_window)


def test_what_was_stored_is_read_without_a_check() -> None:
    """As an earlier planner took it, whose bounds were wider."""
    spec = job_spec(reserve=0.9, blocking_power_w=(1.0, 2.0, 3.0), gpu="a b")
    job = job_record(registered=spec, spec=spec)
    store = TemporaryJobStore()
    store.open()
    with store.writing("job") as writer:
        writer.save_job(job)
    with store.reading() as reader:
        assert reader.find_job("job") == job
    store.close()
