from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.false_nvml.library import FalseNvml
from tests.false_zeusd.answers import Discovery
from tests.false_zeusd.server import FalseZeusd

from flyball_client.gpu._base import GpuError, GpuNotFoundError, GpuPermissionError
from flyball_client.gpu.zeusd.device import ZeusdGpu

pytestmark = pytest.mark.slow

NO_PERMISSION = 4
NOT_SUPPORTED = 3
NOBODY = 65534
TOKEN = "eyJhbGciOiJIUzI1NiJ9.e30.c2lnbmVk"  # noqa: S105 - nobody's

LOCK_1410 = (
    "POST /gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=1410&max_clock_mhz=1410&block=true"
)
RESET = "POST /gpu/reset_gpu_locked_clocks?gpu_ids=0&block=true"

Start = Callable[..., FalseZeusd]
Open = Callable[..., ZeusdGpu]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "zeusd.sock"


@pytest.fixture
def start(loaded_nvml: FalseNvml, place: Path) -> Iterator[Start]:
    """Starts a false zeusd on its socket, or elsewhere; stops all."""
    with ExitStack() as started:

        def start_one(**options: object) -> FalseZeusd:
            settings: dict[str, object] = {"nvml": loaded_nvml, "place": place} | options
            return started.enter_context(FalseZeusd(**settings))  # type: ignore[arg-type]

        yield start_one


@pytest.fixture
def zeusd(start: Start) -> FalseZeusd:
    return start()


@pytest.fixture
def open_gpu(loaded_nvml: FalseNvml, start: Start) -> Iterator[Open]:
    """Opens the first GPU through a zeusd; closes all before that stops."""
    with ExitStack() as opened:

        def open_one(zeusd: FalseZeusd, **options: object) -> ZeusdGpu:
            settings: dict[str, object] = {"uuid": loaded_nvml.uuid(0)} | options
            gpu = ZeusdGpu.connect(endpoint=zeusd.endpoint, **settings)  # type: ignore[arg-type]
            opened.callback(gpu.close)
            return gpu

        yield open_one


# ------------------------------------------------------------------ setting clocks


@pytest.mark.parametrize("closes", [False, True], ids=["kept", "closed"])
def test_who_may_not_set_clocks_sets_them_through_zeusd(
    zeusd: FalseZeusd, open_gpu: Open, loaded_nvml: FalseNvml, closes: bool
) -> None:
    """Over one connection, or where zeusd closes it, over one for each request."""
    zeusd.closes = closes
    loaded_nvml.fail("nvmlDeviceSetGpuLockedClocks", NO_PERMISSION)
    gpu = open_gpu(zeusd)
    num_before = zeusd.num_connections
    gpu.lock_sm_clock_mhz(1410)
    assert gpu.sm_clock_mhz() == 1410
    gpu.reset_sm_clock()
    assert loaded_nvml.range_mhz() == (0, 0)
    assert zeusd.orders == [LOCK_1410, RESET]
    assert loaded_nvml.calls("nvmlDeviceSetGpuLockedClocks") == []
    assert loaded_nvml.calls("nvmlDeviceResetGpuLockedClocks") == []
    assert zeusd.num_connections == (num_before + 2 if closes else 1)


def test_what_zeusd_or_the_gpu_does_not_offer_is_not_requested(
    start: Start, open_gpu: Open, loaded_nvml: FalseNvml
) -> None:
    loaded_nvml.fail("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    zeusd = start()
    open_gpu(zeusd)
    assert zeusd.requests == ["GET /discover"]
    with pytest.raises(GpuPermissionError, match="API group gpu-control"):
        open_gpu(start(place=None, api_groups=["gpu-read"]))


# ------------------------------------------------------------------ a connection that ends


def test_a_request_without_an_answer_is_not_sent_for_ever(
    zeusd: FalseZeusd, open_gpu: Open, loaded_nvml: FalseNvml
) -> None:
    gpu = open_gpu(zeusd)
    zeusd.num_hang_ups = 2
    with pytest.raises(GpuError, match="closed the connection without an answer") as raised:
        gpu.lock_sm_clock_mhz(1410)
    assert type(raised.value) is GpuError
    assert zeusd.orders == [LOCK_1410, LOCK_1410]
    assert loaded_nvml.locked_mhz() == 1410  # nobody could know
    gpu.close()
    assert loaded_nvml.range_mhz() == (0, 0)


def test_a_zeusd_that_is_too_slow_is_not_waited_for(
    zeusd: FalseZeusd, open_gpu: Open, loaded_nvml: FalseNvml
) -> None:
    gpu = open_gpu(zeusd)
    is_over = threading.Event()

    def wait() -> None:
        is_over.wait(60)

    zeusd.before_answer = wait
    with pytest.raises(GpuError, match="did not answer within 1 s") as raised:
        gpu.lock_sm_clock_mhz(1410)
    assert type(raised.value) is GpuError
    zeusd.before_answer = is_over.set
    zeusd.answers_with = (500, b"later")
    with pytest.raises(GpuError, match="answered 500: later"):  # not the first one's answer
        gpu.lock_sm_clock_mhz(1200)
    zeusd.answers_with = None
    assert loaded_nvml.locked_mhz() == 1410
    gpu.close()
    assert loaded_nvml.range_mhz() == (0, 0)


def test_a_signals_handler_may_restore_the_clock_while_it_is_being_locked_or_break_off(
    zeusd: FalseZeusd, open_gpu: Open, loaded_nvml: FalseNvml
) -> None:
    gpu = open_gpu(zeusd)
    waiting, has_run = threading.get_ident(), threading.Event()

    def break_off() -> None:
        raise KeyboardInterrupt

    def lock_while_handling(handler: Callable[[], None]) -> None:
        """Have the handler run while this thread waits for zeusd's first answer."""

        def on_signal(number: int, frame: object) -> None:
            has_run.set()
            handler()

        has_run.clear()
        signal.signal(signal.SIGUSR1, on_signal)
        gpu.lock_sm_clock_mhz(1410)

    def interrupt() -> None:
        if not has_run.is_set():
            signal.pthread_kill(waiting, signal.SIGUSR1)
            has_run.wait(60)

    zeusd.before_answer = interrupt
    previous = signal.getsignal(signal.SIGUSR1)
    try:
        lock_while_handling(gpu.reset_sm_clock)
        assert zeusd.orders == [LOCK_1410, RESET]
        assert loaded_nvml.range_mhz() == (0, 0)
        gpu.lock_sm_clock_mhz(1410)
        assert loaded_nvml.locked_mhz() == 1410
        assert zeusd.num_connections == 2
        gpu.reset_sm_clock()
        with pytest.raises(KeyboardInterrupt):
            lock_while_handling(break_off)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert loaded_nvml.locked_mhz() == 1410
    gpu.close()
    assert loaded_nvml.range_mhz() == (0, 0)


# ------------------------------------------------------------------ not reached, not allowed


def test_a_zeusd_that_has_gone_is_not_found(zeusd: FalseZeusd, open_gpu: Open) -> None:
    gpu = open_gpu(zeusd)
    zeusd.close()
    with pytest.raises(GpuNotFoundError, match="is zeusd running, and do ZEUSD_SOCK_PATH"):
        gpu.lock_sm_clock_mhz(1410)
    with pytest.raises(GpuNotFoundError):  # it cannot be told that nothing is locked
        gpu.close()
    gpu.close()


@pytest.mark.parametrize("endpoint", ["/nowhere/zeusd.sock", "/" + 200 * "x", "127.0.0.1:1"])
def test_where_no_zeusd_is_none_is_found(loaded_nvml: FalseNvml, endpoint: str) -> None:
    with pytest.raises(GpuNotFoundError, match="cannot be reached: ") as raised:
        ZeusdGpu.connect(uuid=loaded_nvml.uuid(0), endpoint=endpoint)
    assert endpoint in str(raised.value)
    # Whoever failed to open has ended NVML again.
    assert len(loaded_nvml.calls("nvmlInitWithFlags")) == len(loaded_nvml.calls("nvmlShutdown"))


def test_a_socket_that_may_not_be_opened_is_a_matter_of_permission(
    zeusd: FalseZeusd, open_gpu: Open, place: Path
) -> None:
    zeusd.closes = True  # so that the next request has to connect
    gpu = open_gpu(zeusd)
    place.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(GpuPermissionError, match="--socket-permissions 666"):
            gpu.lock_sm_clock_mhz(1410)
    finally:
        if is_root:
            os.seteuid(0)
    assert zeusd.orders == []


def test_without_the_token_that_zeusd_wants_nothing_is_opened_and_no_text_shows_it(
    start: Start, open_gpu: Open
) -> None:
    zeusd = start(token=TOKEN)
    with pytest.raises(GpuPermissionError, match="requires a token; set ZEUSD_TOKEN"):
        open_gpu(zeusd)
    with pytest.raises(GpuPermissionError, match="answered 401: Invalid token") as raised:
        open_gpu(zeusd, token="another-token")  # noqa: S106
    assert "another-token" not in str(raised.value)
    gpu = open_gpu(zeusd, token=TOKEN)
    gpu.lock_sm_clock_mhz(1410)
    assert zeusd.orders == [LOCK_1410]
    assert TOKEN not in repr(gpu) + repr(gpu.address) + str(vars(gpu))
    zeusd.answers_with = (500, f"cannot use {TOKEN} here".encode())
    with pytest.raises(GpuError, match=r"cannot use \.\.\. here"):
        gpu.lock_sm_clock_mhz(1200)
    zeusd.answers_with = None


def test_a_refused_clock_was_not_locked_and_is_not_given_back(
    zeusd: FalseZeusd, open_gpu: Open
) -> None:
    gpu = open_gpu(zeusd)
    zeusd.answers_with = (403, b'{"errors": {"0": "NVML error: Insufficient Permissions."}}')
    with pytest.raises(GpuPermissionError, match="403: NVML error: Insufficient Permissions;"):
        gpu.lock_sm_clock_mhz(1410)
    gpu.close()
    assert zeusd.orders == [LOCK_1410]


# ------------------------------------------------------------------ errors and nonsense


def test_an_error_is_told_in_one_line(zeusd: FalseZeusd, open_gpu: Open) -> None:
    gpu = open_gpu(zeusd)
    answers = (
        (400, b"GPU index 9 does not exist.", "answered 400: GPU index 9 does not exist; see"),
        (404, b'{"error": "Not enabled."}', "answered 404: Not enabled; zeusd 0.4 or later"),
        (500, b'{"errors": {"0": "Unknown", "1": "Lost"}}', "answered 500: Unknown; Lost; see"),
        (500, b"", "answered 500: Internal Server Error; see zeusd's log"),
        (503, b"<html>\n\n <b>busy</b>\r\n</html>", "503: <html> <b>busy</b> </html>; see"),
        (500, b"\xff\x00\x1b[31m", "answered 500: \ufffd??[31m; see"),
        (500, b"x" * (3 << 20), "answered 500: xxx"),
    )
    for status, body, told in answers:
        zeusd.answers_with = (status, body)
        with pytest.raises(GpuError) as raised:
            gpu.lock_sm_clock_mhz(1410)
        assert type(raised.value) is GpuError
        assert told in str(raised.value)
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 500
    zeusd.answers_with = None
    gpu.lock_sm_clock_mhz(1410)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x" * 70000,
        "",
        "[" * 100000,
        '{"gpus": 3}',
        '{"gpus": [{"id": 0, "pci_address": "there"}]}',
        '{"gpu_ids": 3}',
        '{"gpu_ids": [0, 1], "enabled_api_groups": 3}',
    ],
)
def test_what_is_not_zeusd_is_not_taken_for_it(
    zeusd: FalseZeusd, open_gpu: Open, said: bytes | str
) -> None:
    if isinstance(said, str):
        said = f"HTTP/1.1 200 OK\r\ncontent-length: {len(said)}\r\n\r\n{said}".encode()
    zeusd.says = said
    with pytest.raises(GpuError, match=r"is not zeusd 0\.4 or later") as raised:
        open_gpu(zeusd)
    assert type(raised.value) is GpuError
    assert str(raised.value).isprintable()
    assert zeusd.orders == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        *(
            ({"endpoint": endpoint}, "path of a socket or HOST:PORT")
            for endpoint in ("", ":4938", "node:", "node:0", "node:65536", "a b:1", "/a\nb", "::1")
        ),
        *(
            ({"token": token}, "must be printable ASCII")
            for token in ("", " ", "secret\n", "secret\r\nX-Y: z", "s\u00e4cret")
        ),
        ({"timeout_s": 0}, "timeout_s must be positive, not 0"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_without_showing_a_token(
    loaded_nvml: FalseNvml, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        ZeusdGpu.connect(**({"uuid": loaded_nvml.uuid(0), "endpoint": "/nowhere"} | arguments))
    assert str(raised.value).isprintable()
    assert "cret" not in str(raised.value)


# ------------------------------------------------------------------ which GPU is which


@pytest.mark.parametrize(
    ("discovery", "gpus"), [("addresses", [1, 0]), ("names", [0, 1]), ("numbers", [0, 1])]
)
def test_a_gpu_is_found_by_its_pci_address_and_without_addresses_by_the_order(
    start: Start,
    open_gpu: Open,
    loaded_nvml: FalseNvml,
    discovery: Discovery,
    gpus: list[int],
) -> None:
    gpu = open_gpu(start(discovery=discovery, gpus=gpus), uuid=loaded_nvml.uuid(1))
    gpu.lock_sm_clock_mhz(1410)
    assert (loaded_nvml.locked_mhz(0), loaded_nvml.locked_mhz(1)) == (0, 1410)


@pytest.mark.parametrize(
    ("discovery", "gpus", "text"),
    [
        ("numbers", [0], "has 1 GPUs, this process has 2"),
        ("addresses", [1], "does not have GPU-0-of-the-false-nvml"),
    ],
)
def test_a_gpu_that_cannot_be_identified_is_not_found(
    start: Start, open_gpu: Open, discovery: Discovery, gpus: list[int], text: str
) -> None:
    with pytest.raises(GpuNotFoundError, match=text):
        open_gpu(start(discovery=discovery, gpus=gpus))


@pytest.mark.parametrize("discovery", ["addresses", "numbers"])
def test_the_same_address_on_another_machine_is_another_gpu(
    start: Start, open_gpu: Open, loaded_nvml: FalseNvml, tmp_path: Path, discovery: Discovery
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = FalseNvml(loaded_nvml.library, elsewhere)
    other.use_energy_j(1000)
    with pytest.raises(GpuNotFoundError, match="it must run on this machine"):
        open_gpu(start(nvml=other, place=None, discovery=discovery))
    other.close()
