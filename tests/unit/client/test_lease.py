"""A governor whose process is played by the test, through the memory that they share."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.governed_rank.governed_rank import board_of
from tests.unit.client.tiny_profile import HandClock

from flyball_client.governor import process_governor
from flyball_client.governor import shared_state as word
from flyball_client.governor.process_governor import ProcessGovernor
from flyball_client.gpu._base import GpuAddress


def test_hooks_renew_the_lease_and_request_a_restored_clock_once_more(tmp_path: Path) -> None:
    address = GpuAddress(control="nvml", uuid="GPU-0")
    governor = ProcessGovernor(address, "rank 0", state_dir=tmp_path)
    with closing(governor), closing(board_of(os.getpid())) as shared_state:
        words = shared_state.words
        governor.set_mhz(900)
        request = words[word.REQUEST]
        words[word.SERVED], words[word.IN_FORCE_MHZ] = request, 900
        for upcoming_mhz in (None, 900):
            words[word.HOOK_NS] = 1
            governor.on_instruction_end(upcoming_mhz)
            assert words[word.HOOK_NS] > words[word.REQUESTED_NS]
            assert words[word.REQUEST] == request
        for hook in (governor.on_instruction_end, partial(governor.set_mhz, 900)):
            words[word.IN_FORCE_MHZ] = 0  # restored after the lease
            request += 1 << 32
            for _ in range(2):  # the second one finds the request unserved
                hook()
                assert words[word.REQUEST] == request
            words[word.SERVED] = request


def test_a_restored_clock_is_requested_again_ahead_of_the_timed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    now = SimpleNamespace(monotonic=clock.now_s, monotonic_ns=lambda: int(clock.now_s() * 1e9))
    monkeypatch.setattr(process_governor, "time", now)
    address = GpuAddress(control="nvml", uuid="GPU-0")
    governor = ProcessGovernor(address, "rank 0", state_dir=tmp_path)
    with closing(governor), closing(board_of(os.getpid())) as shared_state:
        words = shared_state.words
        governor.set_mhz(900)
        words[word.SERVED], words[word.IN_FORCE_MHZ] = words[word.REQUEST], 900
        governor.set_mhz_later(1200, 0.2)
        timed, due_ns = words[word.TIMED_REQUEST], words[word.NOT_BEFORE_NS]
        clock.move(0.1)
        governor.on_instruction_end()
        assert words[word.HOOK_NS] == int(clock.now_s() * 1e9)
        assert (words[word.TIMED_REQUEST], words[word.NOT_BEFORE_NS]) == (timed, due_ns)
        words[word.IN_FORCE_MHZ] = 0  # restored after the lease
        for _ in range(2):
            governor.on_instruction_end()
            request, timed = words[word.REQUEST], words[word.TIMED_REQUEST]
            assert (request, timed) == (3 << 32 | 900, 4 << 32 | 1200)
            assert due_ns <= words[word.NOT_BEFORE_NS] < due_ns + 256
        # Its time has come while no hook was called, and the governor has not made it.
        words[word.SERVED] = request
        clock.move(0.2)
        governor.on_instruction_end()
        assert words[word.REQUEST] == 5 << 32 | 1200
        assert words[word.TIMED_REQUEST] == 0
