"""The checker finds what it is there for, in lists written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

from deepspeed.runtime.pipe import schedule
from tests.p2p_checker.checker import Deadlock, PipelineChecker, ScheduleFault, Sends, Window

KINDS = {
    "L": schedule.LoadMicroBatch,
    "F": schedule.ForwardPass,
    "B": schedule.BackwardPass,
    "sa": schedule.SendActivation,
    "ra": schedule.RecvActivation,
    "sg": schedule.SendGrad,
    "rg": schedule.RecvGrad,
}


class Written(schedule.PipeSchedule):  # type: ignore[misc] # DeepSpeed has no types
    """A list such as `L0 F0 sa0`: each with its buffer."""

    def __init__(self, text: str, *, num_buffers: int = 2) -> None:
        super().__init__(2, 0, 0)
        self._text = text
        self._num_buffers = num_buffers

    def num_pipe_buffers(self) -> int:
        return self._num_buffers

    def steps(self) -> Iterator[list[schedule.PipeInstruction]]:
        for word in self._text.split():
            yield [KINDS[word[:-1]](int(word[-1]))]
        yield [schedule.ReduceTiedGrads(), schedule.ReduceGrads(), schedule.OptimizerStep()]


def run(*texts: str, sends: Sends = "waiting", windows: Sequence[Window] | None = None) -> None:
    PipelineChecker([Written(text) for text in texts], sends=sends, windows=windows).run()


# Two stages, two microbatches, each send where the other stage receives.
FIRST = "L0 F0 sa0 L1 F1 rg0 sa1 B0 rg1 B1"
LAST = "ra0 L0 F0 B0 sg0 ra1 L1 F1 B1 sg1"
EARLY = "L0 F0 sa0 L1 F1 sa1 rg0 B0 rg1 B1"


@pytest.mark.parametrize("sends", ["waiting", "posted"])
def test_a_list_that_is_right_passes(sends: Sends) -> None:
    run(FIRST, LAST, sends=sends)


def test_a_send_that_stands_before_the_neighbour_receives_deadlocks_if_it_waits() -> None:
    run(EARLY, LAST, sends="posted")
    with pytest.raises(Deadlock, match=r"stage 0 at SendActivation.*, stage 1 at SendGrad"):
        run(EARLY, LAST)


def test_a_posted_send_waits_where_its_window_is_full() -> None:
    gradients_late = "ra0 L0 F0 B0 ra1 L1 F1 B1 sg0 sg1"
    run(EARLY, LAST, sends="posted", windows=[Window(activations=1), Window()])
    with pytest.raises(Deadlock, match=r"^stage 0 at SendActivation"):
        run(EARLY, LAST, sends="posted", windows=[Window(activations=0), Window()])
    with pytest.raises(Deadlock, match=r"stage 1 at SendGrad"):
        run(EARLY, gradients_late, sends="posted", windows=[Window(), Window(gradients=0)])


@pytest.mark.parametrize(
    ("first", "last", "fault"),
    [
        ("L0 F0 sa0 L0 F0 rg0 sa0 B0 rg0 B0", LAST, "input 1 over one in use"),
        (EARLY, "ra0 L0 F0 ra0 L0 F0 B0 sg0 B0 sg0", "over an input in use"),
        (EARLY, "ra0 L0 F0 ra1 L1 F1 B0 sg0 B1 sg1", "backward 0 from loss 1"),
        (FIRST, "ra0 L0 F0 B0 sg0 ra1 L0 F1 B1 sg1", "forward 1 with label None"),
        ("L0 F0 sa0 L1 F1 rg0 sa1 B1 rg1 B0", LAST, "backward 1 from gradient 0"),
        ("L0 F0 sa0 L1 F1 rg0 sa1 rg1 B0 B1", LAST, "over a gradient"),
        ("L0 F0 sa0 L2 F2 rg0 sa2 B0 rg2 B2", LAST, "no such buffer"),
        ("L0 sa0 F0 L1 F1 rg0 sa1 B0 rg1 B1", LAST, "no output"),
        ("F0 L0 sa0 L1 F1 rg0 sa1 B0 rg1 B1", LAST, "no input"),
        ("L0 F0 sa0 L1 F1 rg0 sa1 B0", LAST, r"stage 0 backwarded \[0\]"),
        (FIRST + " sa0", LAST, "no output"),
    ],
)
def test_a_wrong_list_is_found(first: str, last: str, fault: str) -> None:
    with pytest.raises(ScheduleFault, match=fault):
        run(first, last, sends="posted")


def test_an_activation_between_a_middle_stages_gradient_and_its_backward_is_found() -> None:
    right = "ra0 F0 sa0 rg0 B0 sg0 ra1 F1 sa1 rg1 B1 sg1"
    wrong = "ra0 F0 sa0 rg0 ra1 B0 sg0 F1 sa1 rg1 B1 sg1"
    run(EARLY, right, LAST, sends="posted")
    with pytest.raises(ScheduleFault, match="over a gradient"):
        run(EARLY, wrong, LAST, sends="posted")


@pytest.mark.parametrize("num_stages", [2, 3, 4, 6])
@pytest.mark.parametrize("num_microbatches", [1, 2, 5, 12])
def test_deepspeeds_own_1f1b_passes(num_stages: int, num_microbatches: int) -> None:
    stock = [
        schedule.TrainSchedule(num_microbatches, num_stages, stage) for stage in range(num_stages)
    ]
    checker = PipelineChecker(stock, sends="waiting")
    checker.run()
    assert checker.most_in_flight == [
        min(num_stages - stage, num_microbatches) for stage in range(num_stages)
    ]
