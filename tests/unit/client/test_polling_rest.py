"""A governor without a free core goes back to being woken."""

from __future__ import annotations

from flyball_client.governor.idle_cores import PERIOD_NS, IdleCores
from flyball_client.governor.polling_rest import (
    FIRST_REST_NS,
    HELD_UP_NS,
    LONGEST_REST_NS,
    NUM_HELD_UP,
    NUM_WINDOWS,
    PollingRest,
)

ENOUGH = IdleCores(least=0)


def held_up_until_it_rests(rest: PollingRest, from_ns: int) -> int:
    """Hold it up in as many windows as it takes; when the rest began, ns."""
    now_ns = from_ns
    for number in range(1, NUM_HELD_UP + 1):
        assert not rest.lasts(now_ns)
        rest.begin_window()
        assert rest.note(now_ns, HELD_UP_NS + 1) is (number == NUM_HELD_UP)
        now_ns += 1
    return now_ns - 1


def test_pauses_that_are_a_little_late_are_no_reason_to_rest() -> None:
    rest = PollingRest(ENOUGH)
    for now_ns in range(1000):
        rest.begin_window()
        assert not rest.note(now_ns, HELD_UP_NS)
    assert not rest.lasts(1000)


def test_to_be_held_up_now_and_then_is_chance() -> None:
    rest = PollingRest(ENOUGH)
    for now_ns in range(NUM_WINDOWS * 100):
        rest.begin_window()
        is_held_up = now_ns % NUM_WINDOWS < NUM_HELD_UP - 1
        assert not rest.note(now_ns, HELD_UP_NS + 1 if is_held_up else 0)
        assert not rest.lasts(now_ns)


def test_a_window_that_is_held_up_often_counts_once() -> None:
    rest = PollingRest(ENOUGH)
    rest.begin_window()
    for now_ns in range(2 * NUM_HELD_UP):
        assert not rest.note(now_ns, HELD_UP_NS + 1)


def test_to_be_held_up_in_a_quarter_of_the_windows_begins_a_rest_that_ends() -> None:
    rest = PollingRest(ENOUGH)
    began_ns = held_up_until_it_rests(rest, 0)
    assert rest.lasts(began_ns)
    assert rest.lasts(began_ns + FIRST_REST_NS - 1)
    assert not rest.lasts(began_ns + FIRST_REST_NS)


def test_rests_grow_while_trials_fail_and_are_short_again_after_one_that_went_well() -> None:
    rest = PollingRest(ENOUGH)
    now_ns, lengths_ns = 0, []
    for _ in range(7):
        began_ns = held_up_until_it_rests(rest, now_ns)
        length_ns = FIRST_REST_NS
        while rest.lasts(began_ns + length_ns):
            length_ns *= 2
        lengths_ns.append(length_ns)
        now_ns = began_ns + length_ns
    assert lengths_ns[:5] == [FIRST_REST_NS * 2**turn for turn in range(5)]
    assert lengths_ns[-1] == LONGEST_REST_NS
    for _ in range(NUM_WINDOWS):
        rest.begin_window()
    began_ns = held_up_until_it_rests(rest, now_ns)
    assert not rest.lasts(began_ns + FIRST_REST_NS)


def test_it_rests_while_no_core_is_idle() -> None:
    # Of two cores in the first second both, in the second one none.
    looks = iter([(100.0, 50.0), (101.0, 52.0), (102.0, 52.0), (103.0, 53.0)])
    rest = PollingRest(IdleCores(least=0.75, read=lambda: next(looks)))
    lasts = [rest.lasts(second * PERIOD_NS) for second in range(4)]
    assert lasts == [False, False, True, False]
