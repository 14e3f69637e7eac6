"""Waits of a thread for what others tell it."""

from __future__ import annotations

import threading

import pytest

from flyball_client.steps.news import News, Stopped


def test_much_that_was_told_is_one_look_and_what_is_polled_is_returned() -> None:
    news, looks = News(), list[int]()
    for _ in range(1000):
        news.tell()
    # The first look, one for the news, and the last one as its time is over.
    assert news.until(lambda: looks.append(1), timeout_s=0.5) is None
    assert len(looks) == 3
    assert news.until(lambda: "found", timeout_s=0.0) == "found"
    assert news.until(lambda: None, is_over=lambda: True) is None


def test_news_and_the_end_come_to_a_thread_that_has_no_pauses() -> None:
    news, told, seen = News(), list[int](), threading.Event()

    def wait() -> None:
        news.until(lambda: told or None)
        seen.set()
        with pytest.raises(Stopped):
            news.until(lambda: None)

    thread = threading.Thread(target=wait)
    thread.start()
    told.append(1)
    news.tell()
    assert seen.wait(20.0)
    news.stop()
    thread.join(20.0)
    assert not thread.is_alive()


def test_a_pause_doubles_up_to_the_longest() -> None:
    news, looks = News(), list[int]()
    assert news.until(lambda: looks.append(1), pauses_s=(0.001, 0.02), timeout_s=0.1) is None
    # At 0, 1, 3, 7, 15, 31, 51, 71, 91 and 100 ms; fewer on a busy machine.
    assert 2 <= len(looks) <= 10
