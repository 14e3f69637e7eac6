"""Steps from traces, as torch's profiler writes them on GPUs and as others do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.steps.traced_steps import (
    RankTrace,
    TraceNames,
    read_trace,
    steps_of_traces,
)

Event = dict[str, Any]
Timed = list[tuple[str, int, int, float]]


def span(name: str, begin_us: float, time_us: float, **more: object) -> Event:
    event = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "name": name}
    return event | {"ts": begin_us, "dur": time_us} | more


def kernel(
    name: str,
    correlation: int,
    *,
    launched_us: float,
    begin_us: float,
    us: float,
    cat: str = "cuda_runtime",
) -> Sequence[Event]:
    """Return a launch and what it launches, on the thread of autograd."""
    args = {"correlation": correlation}
    launch = span("cudaLaunchKernel", launched_us, 3, cat=cat, tid=2, args=args)
    return launch, span(name, begin_us, us, cat="kernel", pid=0, tid=7, args=args)


def read(
    *events: Event | Sequence[Event], names: Mapping[str, str] | None = None, **about: object
) -> RankTrace:
    flat = [one for each in events for one in ([each] if isinstance(each, dict) else each)]
    return read_trace({"traceEvents": flat, "distributedInfo": about}, TraceNames(names))


def timed(traces: Sequence[RankTrace]) -> list[list[Timed]]:
    """Return, per step and pipeline of one stage, kind, microbatch, chunk and ms."""
    return [
        [
            [
                (kind.value, microbatch, chunk, round(1e3 * time_s, 6))
                for (kind, microbatch, chunk), time_s in pipeline.stages[0]
            ]
            for pipeline in recorded.pipelines
        ]
        for recorded in steps_of_traces(traces)
    ]


def test_an_instruction_on_a_gpu_takes_its_kernels_time_wherever_they_were_launched() -> None:
    trace = read(
        span("ProfilerStep#5", 0, 1000),
        span("Forward 0", 10, 40),
        span("Forward 0", 400, 9000, cat="gpu_user_annotation", pid=0),
        kernel("ncclDevKernel_SendRecv", 1, launched_us=12, begin_us=100, us=300),
        kernel("gemm", 2, launched_us=20, begin_us=400, us=1000),
        kernel("gelu", 3, launched_us=30, begin_us=1500, us=500, cat="cuda_driver"),
        span("Backward 0", 100, 40),
        kernel("gemm", 4, launched_us=120, begin_us=2500, us=4000),
        kernel("adam", 5, launched_us=300, begin_us=7000, us=9000),
    )
    assert timed([trace]) == [[[("forward", 0, 0, 1.6), ("backward", 0, 0, 4.0)]]]


def test_a_range_without_computation_takes_its_own_time_and_steps_begin_anew_where_unmarked() -> (
    None
):
    events = [
        {"ph": phase, "name": name, "pid": 1, "tid": 1, "ts": ts_us}
        for number in range(2)
        for name, begin_us in (("Forward 0", 1000.0), ("Backward 0", 3000.0))
        for phase, ts_us in (
            ("B", 10_000 * number + begin_us),
            ("E", 10_000 * number + begin_us + 500 * (1 + number)),
        )
    ]
    trace = read_trace(events, TraceNames())
    assert timed([trace]) == [
        [[("forward", 0, 0, 0.5), ("backward", 0, 0, 0.5)]],
        [[("forward", 0, 0, 1.0), ("backward", 0, 0, 1.0)]],
    ]


def test_names_of_ones_own_count_microbatches_where_they_have_none() -> None:
    trace = read(
        span("iteration 7", 0, 1000),
        *(
            span(name, 100 * number, 50 + number)
            for number, name in enumerate(["fwd", "bwd", "fwd", "bwd"], 1)
        ),
        names={"step": r"iteration (?P<step>\d+)", "forward": "fwd", "backward": "bwd"},
    )
    assert timed([trace]) == [
        [
            [
                *(("forward", 0, 0, 0.051), ("backward", 0, 0, 0.052)),
                *(("forward", 1, 0, 0.053), ("backward", 1, 0, 0.054)),
            ]
        ]
    ]


def test_calls_of_torch_are_instructions_where_no_range_has_a_name() -> None:
    calls = "/site-packages/torch/distributed/pipelining/stage.py(857): {}_one_chunk"
    events = [span("ProfilerStep#1", 0, 1000)] + [
        span(calls.format(kind), 100 * number, 50 + number, cat="python_function")
        for number, kind in enumerate(["forward", "forward", "backward", "backward"], 1)
    ]
    assert timed([read(*events)]) == [
        [
            [
                *(("forward", 0, 0, 0.051), ("forward", 1, 0, 0.052)),
                *(("backward", 0, 0, 0.053), ("backward", 1, 0, 0.054)),
            ]
        ]
    ]
    # GPipe's names enclose them, and names that are given are what is meant.
    named = span("Forward 0", 90, 80), span("Backward 0", 290, 80)
    assert timed([read(*events, *named)]) == [[[("forward", 0, 0, 0.08), ("backward", 0, 0, 0.08)]]]
    with pytest.raises(RecordingError, match="no range is called as an instruction"):
        read(*events, names={"forward": "fwd"})


def test_events_come_in_any_order_and_ranges_outside_of_steps_do_not_count() -> None:
    trace = read(
        span("Forward 1", 300, 60),
        span("Forward 0", 100, 50),
        span("Forward 0", 1100, 70),
        span("ProfilerStep#3", 0, 1000),
    )
    assert timed([trace]) == [[[("forward", 0, 0, 0.05), ("forward", 1, 0, 0.06)]]]
    with pytest.raises(RecordingError, match=r"'Forward 0' at 0[.]100 ms takes no time"):
        steps_of_traces([read(span("Forward 0", 100, 0))])


def ranks_of(places: Sequence[tuple[int, Sequence[int]]]) -> list[RankTrace]:
    """Return traces of one forward, of ranks and the ranks of their pipelines."""
    return [
        read(
            span("ProfilerStep#1", 0, 1000),
            span("Forward 0", 10, 100 + rank),
            rank=rank,
            pg_config=[
                {"pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
                {"pg_desc": "mesh_apply", "ranks": [3, 2, 1, 0]},
                {"pg_desc": "mesh_pp", "ranks": list(pipeline)},
            ],
        )
        for rank, pipeline in places
    ]


def test_places_are_those_of_the_pipelines_process_groups() -> None:
    traces = ranks_of([(3, (1, 3)), (0, (0, 2)), (2, (0, 2)), (1, (1, 3))])
    (recorded,) = steps_of_traces(traces)
    times_us = [
        [round(1e6 * stage[0].time_s) for stage in pipeline.stages]
        for pipeline in recorded.pipelines
    ]
    assert times_us == [[100, 102], [101, 103]]


def test_places_may_be_given() -> None:
    traces = [read(span("Forward 0", 0, 100 + number)) for number in range(2)]
    with pytest.raises(RecordingError, match=r"trace 1 has no stage .*--trace-places"):
        steps_of_traces(traces)
    (recorded,) = steps_of_traces(traces, [(1, 0), (0, 0)])
    assert [each.stages[0][0].time_s for each in recorded.pipelines] == [
        pytest.approx(101e-6),
        pytest.approx(100e-6),
    ]
    with pytest.raises(RecordingError, match="several traces are of dp_rank 0, stage 0"):
        steps_of_traces(traces, [(0, 0), (0, 0)])
    with pytest.raises(RecordingError, match="3 places for 2 traces"):
        steps_of_traces(traces, [(0, 0), (0, 1), (0, 2)])


def test_only_steps_that_all_ranks_have_are_taken() -> None:
    first, second = (
        read(
            *(span(f"ProfilerStep#{step}", 1000 * step, 900) for step in steps),
            *(span("Forward 0", 1000 * step, 100) for step in steps),
        )
        for steps in ((1, 2), (2, 3))
    )
    assert [each.step for each in steps_of_traces([first, second], [(0, 0), (1, 0)])] == [2]
    third = read(span("ProfilerStep#9", 0, 900), span("Forward 0", 10, 100))
    with pytest.raises(RecordingError, match="no step is in all traces"):
        steps_of_traces([first, third], [(0, 0), (1, 0)])


def test_parts_that_go_down_the_ranks_and_up_again_are_a_v() -> None:
    # Clocks of ranks may differ: names say it, not the begins.
    traces = [
        read(*(span(f"PP:{part}F0", 100 * (place + rank), 50) for place, part in enumerate(parts)))
        for rank, parts in enumerate(((0, 3), (1, 2)))
    ]
    (recorded,) = steps_of_traces(traces)
    assert recorded.pipelines[0].virtual_stages == ((0, 3), (1, 2))


def test_parts_that_are_placed_otherwise_are_refused() -> None:
    traces = [
        read(*(span(f"PP:{part}F0", 100 * place, 50) for place, part in enumerate(parts)))
        for parts in ((0, 1), (2, 3))
    ]
    with pytest.raises(RecordingError, match="part 1 of the model runs on stage 0 of 3"):
        steps_of_traces(traces)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({}, "no trace: a list traceEvents is missing"),
        (
            [],
            r"no range is called as an instruction; .* with_stack=True.* --trace-names KIND=REGEX",
        ),
        ([1, {"ph": "X", "name": 3}], "no range is called as an instruction"),
        ([span("Forward 0", 0, 1) | {"ts": "now"}], "traceEvents.0..ts must be a number of us"),
        ([span("Forward 0", 0, float("inf"))], "traceEvents.0..dur must be a number of us"),
        ([span("Forward 0", 10**400, 1)], "traceEvents.0..ts must be a number of us"),
        (
            [span("Forward 0", 0, 10), span("Backward 0", 5, 10)],
            "'Backward 0' at 0.005 ms begins before 'Forward 0' at 0.000 ms has ended",
        ),
        ([span("ProfilerStep#1", 90, 9), span("Forward 0", 0, 1)], "no instruction is within"),
        ([span("Forward 9999999999", 0, 1)], "'Forward 9999999999': microbatch is no whole number"),
    ],
)
def test_what_is_no_trace_of_steps_is_refused(document: object, fault: str) -> None:
    with pytest.raises(RecordingError, match=fault):
        read_trace(document, TraceNames())


def test_names_without_microbatches_need_marked_steps() -> None:
    with pytest.raises(RecordingError, match="give --trace-names step=REGEX"):
        read(span("fwd", 0, 1), names={"forward": "fwd"})


@pytest.mark.parametrize(
    ("key", "text", "fault"),
    [
        ("sideways", "x", "unknown name 'sideways'; known: step, forward"),
        ("forward", "(", r"forward=\(: "),
        ("forward", "(?P<rank>x)", "groups may be called microbatch, stage"),
        ("step", "(?P<stage>x)", "groups may be called step"),
    ],
)
def test_names_that_cannot_be_used_are_refused(key: str, text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        TraceNames({key: text})
