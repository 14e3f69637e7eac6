"""A governor whose process is played by the test, through the memory that they share."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path

from tests.governed_rank.governed_rank import board_of

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
        governor.set_mhz_later(1200, 1000.0)
        assert words[word.TIMED_REQUEST] == (request >> 32) + 1 << 32 | 1200
        governor.set_mhz(1400)
        assert words[word.TIMED_REQUEST] == 0
