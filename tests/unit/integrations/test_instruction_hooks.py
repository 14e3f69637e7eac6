from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flyball_integrations.shared.instruction_hooks import BufferMicrobatches


def test_forwards_count_microbatches_and_backwards_find_them_by_buffer() -> None:
    microbatches = BufferMicrobatches()

    assert [microbatches.of_forward(buffer) for buffer in (0, 1)] == [0, 1]
    assert microbatches.of_backward(0) == 0
    assert microbatches.of_forward(0) == 2
    assert microbatches.of_backward(1) == 1
    assert microbatches.of_backward(0) == 2


def test_a_new_step_counts_from_0_and_forgets_what_buffers_held() -> None:
    microbatches = BufferMicrobatches()
    microbatches.of_forward(0)
    microbatches.clear()

    assert microbatches.of_backward(0) is None
    assert microbatches.of_forward(1) == 0


@given(num_microbatches=st.integers(1, 20), num_buffers=st.integers(1, 8), data=st.data())
def test_every_microbatch_gets_its_own_backward_in_any_order_of_buffers(
    num_microbatches: int, num_buffers: int, data: st.DataObject
) -> None:
    microbatches = BufferMicrobatches()
    held: dict[int, int] = {}
    done: list[int] = []
    num_forwards = 0
    while len(done) < num_microbatches:
        free = [buffer for buffer in range(num_buffers) if buffer not in held]
        may_run_forward = bool(free) and num_forwards < num_microbatches
        if may_run_forward and (not held or data.draw(st.booleans())):
            buffer = data.draw(st.sampled_from(free))
            held[buffer] = microbatches.of_forward(buffer)
            assert held[buffer] == num_forwards
            num_forwards += 1
        else:
            buffer = data.draw(st.sampled_from(sorted(held)))
            assert microbatches.of_backward(buffer) == held[buffer]
            done.append(held.pop(buffer))
    assert sorted(done) == list(range(num_microbatches))
