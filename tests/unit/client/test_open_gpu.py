from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.false_zeusd.server import FalseZeusd

from flyball_client.gpu._base import (
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
    SmClockRange,
)
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.gpu.nvml.vendor import NvidiaVendor
from flyball_client.gpu.registry import VENDORS, open_gpu, open_local_gpu
from flyball_client.gpu.zeusd.device import ZeusdGpu

TOKEN = "eyJhbGciOiJIUzI1NiJ9.e30.c2lnbmVk"  # noqa: S105 - nobody's

# As in /proc/self/status: of root, of root in a container.
ROOT = "CapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\n"
CONTAINER_ROOT = "CapPrm:\t00000000a80425fb\nCapEff:\t00000000a80425fb\n"

Open = Callable[..., GpuDevice]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "zeusd.sock"


@pytest.fixture
def zeusd(loaded_nvml: FalseNvml, place: Path) -> Iterator[FalseZeusd]:
    with FalseZeusd(loaded_nvml, place) as running:
        yield running


@pytest.fixture
def open_local(
    loaded_nvml: FalseNvml, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Opens the GPU of local rank 0; closes all."""
    with ExitStack() as opened:

        def open_one(
            environ: dict[str, str],
            *,
            local_rank: int = 0,
            default_socket: Path = place,
            status: str = CONTAINER_ROOT,
        ) -> GpuDevice:
            (tmp_path / "status").write_text(f"Name:\tpython3\n{status}Seccomp:\t2\n")
            monkeypatch.setitem(
                VENDORS,
                "nvidia",
                lambda: NvidiaVendor(default_socket=default_socket, process=tmp_path),
            )
            device = open_local_gpu(local_rank, environ)
            opened.callback(device.close)
            return device

        yield open_one


def endpoint_of(gpu: GpuDevice) -> str | None:
    assert gpu.address is not None
    assert (gpu.address.control == "zeusd") == isinstance(gpu, ZeusdGpu)
    return gpu.address.endpoint


# ------------------------------------------------------------------ who sets the clocks


@pytest.mark.usefixtures("zeusd")
def test_zeusd_at_its_usual_place_serves_those_who_may_not_set_clocks(open_local: Open) -> None:
    for environ in ({}, {"FLYBALL_CLOCK_CONTROL": "auto"}, {"FLYBALL_CLOCK_CONTROL": ""}):
        assert isinstance(open_local(environ), ZeusdGpu)
        assert isinstance(open_local(environ, status=ROOT), NvmlGpu)
    # A place that cannot be read is no zeusd.
    assert isinstance(open_local({}, default_socket=Path("/" + 300 * "x")), NvmlGpu)


@pytest.mark.parametrize(
    "environ",
    [
        {"FLYBALL_CLOCK_CONTROL": "auto"},
        {"FLYBALL_CLOCK_CONTROL": "zeusd"},
        {"ZEUSD_HOST_PORT": "127.0.0.1:1"},
        {"ZEUSD_SOCK_PATH": "zeusd.sock"},
    ],
    ids=str,
)
def test_a_named_socket_serves_everybody_and_goes_before_host_and_port(
    open_local: Open,
    zeusd: FalseZeusd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"ZEUSD_SOCK_PATH": zeusd.endpoint} | environ
    gpu = open_local(environ, status=ROOT, default_socket=tmp_path / "none")
    assert endpoint_of(gpu) == zeusd.endpoint


def test_nvml_asks_nothing_about_zeusd(open_local: Open, zeusd: FalseZeusd) -> None:
    environ = {
        "FLYBALL_CLOCK_CONTROL": "nvml",
        "ZEUSD_SOCK_PATH": zeusd.endpoint,
        "ZEUSD_HOST_PORT": "no/address",
        "ZEUSD_TOKEN": "\n",
    }
    assert isinstance(open_local(environ), NvmlGpu)
    assert zeusd.requests == []


def test_of_its_own_accord_it_falls_back_to_nvml_with_one_warning(
    loaded_nvml: FalseNvml, open_local: Open, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FalseZeusd(loaded_nvml, place, token=TOKEN), caplog.at_level(logging.INFO):
        assert isinstance(open_local({}), NvmlGpu)
    assert [record.getMessage() for record in caplog.records] == [
        f"clocks are set through NVML, not zeusd: zeusd at {place} requires a token;"
        " set ZEUSD_TOKEN"
    ]


def test_a_zeusd_that_was_asked_for_must_be_there_and_a_divided_gpu_falls_back_to_nothing(
    loaded_nvml: FalseNvml, open_local: Open, place: Path
) -> None:
    environ = {"FLYBALL_CLOCK_CONTROL": "zeusd"}
    with pytest.raises(GpuNotFoundError, match="is zeusd running"):
        open_local(environ)
    with (
        FalseZeusd(loaded_nvml, place, token=TOKEN),
        pytest.raises(GpuPermissionError, match="set ZEUSD_TOKEN"),
    ):
        open_local(environ)
    loaded_nvml.set_mig(1)
    with pytest.raises(GpuNotSupportedError, match="divided by MIG"):
        open_local({})


# ------------------------------------------------------------------ which GPU


def test_it_is_the_gpu_that_cuda_calls_by_that_number(
    open_local: Open, zeusd: FalseZeusd, loaded_nvml: FalseNvml
) -> None:
    gpu = open_local({"CUDA_VISIBLE_DEVICES": "1,0"})
    gpu.lock_sm_clock_mhz(1410)
    assert (loaded_nvml.locked_mhz(0), loaded_nvml.locked_mhz(1)) == (0, 1410)
    assert open_local({}, local_rank=1).uuid == gpu.uuid
    with pytest.raises(GpuError, match="there is no cuda:2"):
        open_local({}, local_rank=2)
    gpu.close()


def test_an_address_must_say_where_zeusd_is() -> None:
    with pytest.raises(ValueError, match="address of GPU-1 has no endpoint of zeusd"):
        open_gpu(GpuAddress(control="zeusd", uuid="GPU-1"))


# ------------------------------------------------------------------ what a clock goes back to


@pytest.mark.parametrize("control", ["nvml", "zeusd"])
@pytest.mark.usefixtures("zeusd")
def test_a_range_to_restore_is_read_from_the_environment(open_local: Open, control: str) -> None:
    environ = {"FLYBALL_CLOCK_CONTROL": control, "FLYBALL_RETURN_CLOCKS_MHZ": "210:1410"}
    address = open_local(environ).address
    assert address is not None
    assert address.return_range == SmClockRange(lowest_mhz=210, highest_mhz=1410)


@pytest.mark.parametrize("text", ["209:1410", "210:1981"])
def test_a_range_that_the_gpu_does_not_have_is_refused_at_once(
    open_local: Open, loaded_nvml: FalseNvml, text: str
) -> None:
    with pytest.raises(ValueError, match=f"FLYBALL_RETURN_CLOCKS_MHZ .*210:1980.* not {text}"):
        open_local({"FLYBALL_RETURN_CLOCKS_MHZ": text})
    # Whoever failed to open has ended NVML again.
    assert len(loaded_nvml.calls("nvmlInitWithFlags")) == len(loaded_nvml.calls("nvmlShutdown"))


# ------------------------------------------------------------------ what cannot be used


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FLYBALL_CLOCK_CONTROL", "root"),
        ("FLYBALL_RETURN_CLOCKS_MHZ", "1410"),
        ("FLYBALL_RETURN_CLOCKS_MHZ", "1410:210"),
        ("FLYBALL_RETURN_CLOCKS_MHZ", "0:210"),
        ("FLYBALL_RETURN_CLOCKS_MHZ", "210:1410:1980"),
        ("ZEUSD_SOCK_PATH", "/run/zeusd\n"),
        ("ZEUSD_HOST_PORT", "http://node1:4938"),
        ("ZEUSD_HOST_PORT", "node1:http"),
        ("ZEUSD_TOKEN", "secret\n"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_in_one_line_with_its_variable(
    open_local: Open, variable: str, value: str
) -> None:
    with pytest.raises(ValueError, match=f"^{variable}") as raised:
        open_local({variable: value})
    assert str(raised.value).isprintable()
    assert "secret" not in str(raised.value)
