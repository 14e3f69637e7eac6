from __future__ import annotations

import os

import pytest

from flyball_client.governor import shared_state as words_of
from flyball_client.governor.shared_state import ClockBoard

RANK_WORDS = (
    words_of.REQUEST,
    words_of.HOOK_NS,
    words_of.REQUESTED_NS,
)
GOVERNOR_WORDS = (
    words_of.STATE,
    words_of.IN_FORCE_MHZ,
    words_of.MAY_BE_LOCKED,
    words_of.SERVED,
    words_of.DELIVERED_NS,
    words_of.ACTIVE_PID,
    words_of.STANDBY_PID,
    words_of.NUM_SWITCHES,
    words_of.NUM_FAILURES,
    words_of.NUM_READS,
    words_of.NUM_MISSES,
    words_of.NUM_POWER_CAPPED,
    words_of.NUM_THERMALLY_CAPPED,
    words_of.SM_CLOCK_MHZ,
    words_of.NUM_TAKEOVERS,
    words_of.SAMPLES,
)


def other_end(board: ClockBoard) -> ClockBoard:
    """The same memory, mapped as another process maps it."""
    return ClockBoard(os.dup(board.fd))


def test_a_new_board_says_nothing_and_starts() -> None:
    board = ClockBoard.create()
    assert set(board.words) == {0}
    assert board.words[words_of.STATE] == words_of.STARTING
    assert board.text == ""
    board.close()


def test_no_two_words_are_the_same() -> None:
    words = RANK_WORDS + GOVERNOR_WORDS
    assert len(set(words)) == len(words)


def test_what_one_end_writes_the_other_reads() -> None:
    rank, governor = (board := ClockBoard.create()), other_end(board)
    for number, word in enumerate(RANK_WORDS + GOVERNOR_WORDS, start=1):
        rank.words[word] = number
    rank.write_text("given back")
    seen = [governor.words[word] for word in RANK_WORDS + GOVERNOR_WORDS]
    assert seen == list(range(1, len(seen) + 1))
    assert governor.text == "given back"
    rank.close()
    governor.close()


def test_a_word_holds_64_bits_and_no_more() -> None:
    board = ClockBoard.create()
    board.words[words_of.REQUEST] = 2**64 - 1
    assert board.words[words_of.REQUEST] == 2**64 - 1
    with pytest.raises(ValueError, match="format"):
        board.words[words_of.REQUEST] = 2**64
    board.close()


def test_a_request_has_room_for_its_number_beside_every_clock() -> None:
    request = words_of.MHZ_MASK << 32 | words_of.QUIT
    assert request.bit_length() == 64
    assert request & words_of.MHZ_MASK == words_of.QUIT
    assert words_of.GIVE_BACK & words_of.MHZ_MASK == words_of.GIVE_BACK


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("one line", "one line"),
        ("two\n  lines\t", "two lines"),
        ("", ""),
        ("5 µs", "5 µs"),
    ],
)
def test_a_text_is_read_as_one_line(written: str, read: str) -> None:
    board = ClockBoard.create()
    board.write_text(written)
    assert board.text == read
    board.close()


def test_a_shorter_text_takes_a_longer_ones_place() -> None:
    board = ClockBoard.create()
    board.write_text("a text of some length")
    board.write_text("short")
    assert board.text == "short"
    board.close()


@pytest.mark.parametrize("letter", ["x", "µ"])
def test_a_text_that_does_not_fit_is_cut_off_and_harms_no_word(letter: str) -> None:
    board = ClockBoard.create()
    for word in RANK_WORDS + GOVERNOR_WORDS:
        board.words[word] = 2**64 - 1
    board.write_text(letter * 10_000)
    assert 900 < len(board.text) < 10_000
    assert board.text.startswith(letter * 900)
    assert {board.words[word] for word in RANK_WORDS + GOVERNOR_WORDS} == {2**64 - 1}
    board.close()


def test_a_closed_board_leaves_the_other_end_its_memory() -> None:
    rank, governor = (board := ClockBoard.create()), other_end(board)
    rank.words[words_of.HOOK_NS] = 7
    rank.close()
    assert governor.words[words_of.HOOK_NS] == 7
    governor.close()


def test_a_board_does_not_reach_programs_that_nobody_gave_it_to() -> None:
    board = ClockBoard.create()
    assert not os.get_inheritable(board.fd)
    board.close()


def test_samples_are_counted_and_added_up_in_one_word() -> None:
    samples = 0
    for sm_clock_mhz in (1410, 1200, 210):
        samples = words_of.with_sample(samples, sm_clock_mhz)
    assert words_of.samples_of(samples) == (3, 2820)


def test_a_word_that_is_full_of_samples_begins_again_and_stays_a_word() -> None:
    board = ClockBoard.create()
    board.words[words_of.SAMPLES] = words_of.with_sample(2**64 - 1, 1410)
    # Both parts were full: the count's carry goes into the sum.
    assert words_of.samples_of(board.words[words_of.SAMPLES]) == (0, 1410)
    board.close()
