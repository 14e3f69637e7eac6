from __future__ import annotations

import pytest

from flyball_client.governor import shared_state as word
from flyball_client.governor.shared_state import SharedState

WORDS = range(word.REQUEST, word.SAMPLES + 1)


@pytest.mark.parametrize("number", [0, 1, 255, 256, 2**32 - 1])
@pytest.mark.parametrize("moment_ns", [0, 1, 255, 256, 10**18 + 77])
def test_a_tagged_moment_is_at_most_256_ns_late(moment_ns: int, number: int) -> None:
    tagged_ns = word.tagged_ns(moment_ns, number << 32 | 1410)
    assert moment_ns <= tagged_ns < moment_ns + 256
    assert tagged_ns % 256 == number % 256


@pytest.mark.parametrize(
    ("number", "other", "is_newer"),
    [(1, 0, True), (0, 1, False), (7, 7, False), (0, 2**32 - 1, True), (2**32 - 1, 0, False)],
)
def test_numbers_of_requests_start_again(number: int, other: int, is_newer: bool) -> None:
    assert word.is_newer(number << 32 | 210, other << 32 | 1980) == is_newer


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
    shared_state = SharedState.create()
    shared_state.write_text("a longer text before it")
    shared_state.write_text(written)
    assert shared_state.text == read
    shared_state.close()


@pytest.mark.parametrize("letter", ["x", "µ"])
def test_a_text_that_does_not_fit_is_cut_off_and_harms_no_word(letter: str) -> None:
    shared_state = SharedState.create()
    for place in WORDS:
        shared_state.words[place] = 2**64 - 1
    shared_state.write_text(letter * 10_000)
    assert 900 < len(shared_state.text) < 10_000
    assert shared_state.text.startswith(letter * 900)
    assert {shared_state.words[place] for place in WORDS} == {2**64 - 1}
    shared_state.close()


def test_samples_are_counted_and_added_up_in_one_word() -> None:
    samples = 0
    for sm_clock_mhz in (1410, 1200, 210):
        samples = word.with_sample(samples, sm_clock_mhz)
    assert word.samples_of(samples) == (3, 2820)
    # Where both parts are full, the count's carry goes into the sum.
    full = word.with_sample(2**64 - 1, 1410)
    assert word.samples_of(full) == (0, 1410)
    assert full < 2**64
