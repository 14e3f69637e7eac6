"""The contract of GpuVendor, over every entry of the registry and a vendor of the tests' own."""

from __future__ import annotations

import os

import pytest
from tests.false_nvml.library import FalseNvml
from tests.made_up_gpus.vendor import MadeUpVendor

from flyball_client.gpu import registry
from flyball_client.gpu._base import (
    ClockLimit,
    GpuAddress,
    GpuError,
    GpuNotFoundError,
    SmClockRange,
)
from flyball_client.gpu.registry import VENDORS, find_gpu, open_gpu, read_clock_settings, vendor_of
from flyball_client.gpu.vendor import ClockSettings, GpuVendor

# By entry: the fixture with two GPUs of the vendor. A new entry needs one.
TWO_GPUS = {"nvidia": "loaded_nvml", "made-up": "made_up_gpus"}
RANGE = SmClockRange(lowest_mhz=900, highest_mhz=1410)


def test_every_entry_has_gpus_to_be_tested_with() -> None:
    assert set(VENDORS) <= set(TWO_GPUS)


@pytest.fixture(params=TWO_GPUS)
def vendor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GpuVendor:
    """Each vendor, on a machine with two of its GPUs."""
    request.getfixturevalue(TWO_GPUS[request.param])
    made = VENDORS[request.param]()
    monkeypatch.setenv("FLYBALL_CLOCK_CONTROL", made.controls[0])
    return made


def uuids_of(vendor: GpuVendor) -> list[str]:
    uuids = [each for each in vendor.uuids() if isinstance(each, str)]
    assert len(uuids) == 2
    return uuids


class TestGpuVendor:
    def test_its_prefix_controls_and_backend_are_its_own(self, vendor: GpuVendor) -> None:
        others = [each for make in VENDORS.values() if type(each := make()) is not type(vendor)]
        for other in others:
            assert not vendor.uuid_prefix.startswith(other.uuid_prefix)
            assert not set(vendor.controls) & {*other.controls, "auto"}
            assert vendor.torch_backend != other.torch_backend
        assert vendor.controls
        assert vendor.torch_backend
        assert all(uuid.startswith(vendor.uuid_prefix) for uuid in uuids_of(vendor))

    def test_facts_are_read_in_a_session_and_without_one(self, vendor: GpuVendor) -> None:
        alone = (vendor.driver_version(), uuids_of(vendor), vendor.describe(1))
        with vendor.session():
            assert (vendor.driver_version(), uuids_of(vendor), vendor.describe(1)) == alone
        for index, uuid in enumerate(uuids_of(vendor)):
            gpu = vendor.describe(index)
            assert (gpu.index, gpu.uuid) == (index, uuid)
            assert list(gpu.sm_clocks_mhz) == sorted(set(gpu.sm_clocks_mhz), reverse=True)
            assert vendor.computing_processes(uuid) == ()
            for named in (str(index), uuid):
                found, *place = find_gpu(named, os.environ)
                assert (type(found), place) == (type(vendor), [index, uuid])

    def test_a_gpu_that_is_not_there_is_not_found(self, vendor: GpuVendor) -> None:
        for named in ("2", f"{vendor.uuid_prefix}unknown"):
            with pytest.raises(GpuNotFoundError, match=vendor.library if named == "2" else named):
                find_gpu(named, os.environ)
        with pytest.raises(GpuError):
            vendor.open(GpuAddress(control=vendor.controls[0], uuid=f"{vendor.uuid_prefix}no"))

    def test_the_framework_sees_all_gpus_in_their_order(self, vendor: GpuVendor) -> None:
        visible = vendor.visible({})
        assert list(visible.uuids) == uuids_of(vendor)
        assert visible.num_gpus == 2
        assert "VISIBLE" in visible.setting

    def test_an_address_of_each_control_names_it_and_keeps_the_range_to_restore(
        self, vendor: GpuVendor
    ) -> None:
        uuid = uuids_of(vendor)[0]
        for control in vendor.controls:
            (address,) = vendor.addresses(
                uuid, ClockSettings(control=control, return_range=RANGE), {}
            )
            assert (address.control, address.uuid) == (control, uuid)
            assert address.return_range == RANGE
        found = vendor.addresses(uuid, ClockSettings(control="auto", return_range=None), {})
        assert {address.control for address in found} <= set(vendor.controls)

    def test_its_gpus_are_opened_by_the_registry_and_set_their_clocks(
        self, vendor: GpuVendor
    ) -> None:
        uuid = uuids_of(vendor)[1]
        assert type(vendor_of(uuid)) is type(vendor)
        (address,) = vendor.addresses(
            uuid, ClockSettings(control=vendor.controls[0], return_range=None), {}
        )
        registry.check_rights(address)
        gpu = open_gpu(address)
        gpu.lock_sm_clock_mhz(1200)
        assert gpu.address == address
        ranks = registry.open_rank_gpu(os.environ, uuid=None, local_rank=1)
        assert (ranks.uuid, ranks.sm_clock_mhz()) == (uuid, 1200)
        registry.reset_clock(uuid, os.environ)
        assert ranks.sm_clock_mhz() == gpu.supported_sm_clocks_mhz()[0]
        for device in (gpu, ranks):
            device.close()

    def test_its_controls_can_be_chosen_and_are_named_where_another_is(
        self, vendor: GpuVendor
    ) -> None:
        for control in ("auto", *vendor.controls):
            read = read_clock_settings({"FLYBALL_CLOCK_CONTROL": control})
            assert read.control == control
            with pytest.raises(ValueError, match=control):
                read_clock_settings({"FLYBALL_CLOCK_CONTROL": "magic"})

    def test_its_checks_advise_and_find_a_gpu_in_order(self, vendor: GpuVendor) -> None:
        checks = vendor.checks()
        assert checks.no_gpus_advice
        assert checks.numbering_advice
        assert checks.lock_advice
        assert set(checks.limit_advice) == {ClockLimit.POWER, ClockLimit.THERMAL, ClockLimit.OTHER}
        assert checks.check_driver().name == vendor.library
        uuid = uuids_of(vendor)[0]
        gpu = vendor.open(GpuAddress(control=vendor.controls[0], uuid=uuid))
        for part, check in checks.parts().items():
            assert check(gpu, f"GPU 0 {part}").name == f"GPU 0 {part}"
        assert not checks.has_chosen_clocks(uuid)
        gpu.close()


def test_a_machine_has_the_vendor_whose_driver_is_there_and_the_first_where_none_is(
    made_up_gpus: MadeUpVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_no_driver(_: object) -> None:
        raise GpuNotFoundError("no driver")

    first = type(VENDORS["nvidia"]())
    monkeypatch.setattr(first, "session", has_no_driver)
    assert isinstance(registry.local_vendor({}), MadeUpVendor)
    assert isinstance(registry.local_vendor({"FLYBALL_CLOCK_CONTROL": "nvml"}), first)
    monkeypatch.delenv("MADE_UP_GPUS")
    assert isinstance(registry.local_vendor({}), first)


def test_a_control_of_another_vendor_opens_no_gpu(
    made_up_gpus: MadeUpVendor, loaded_nvml: FalseNvml
) -> None:
    environ = {"FLYBALL_CLOCK_CONTROL": "nvml"}
    with pytest.raises(ValueError, match="nvml does not set clocks of MADE-UP-0"):
        registry.open_gpu_by_uuid("MADE-UP-0", environ)
    with pytest.raises(ValueError, match="no vendor sets clocks through 'magic'"):
        open_gpu(GpuAddress(control="magic", uuid=loaded_nvml.uuid(0)))


def test_torch_names_a_gpu_without_the_prefix(made_up_gpus: MadeUpVendor) -> None:
    assert registry.uuid_of_framework("1", "made-up") == "MADE-UP-1"
    assert registry.uuid_of_framework("1", "cuda") == "GPU-1"
    VENDORS.pop("made-up")
    assert registry.uuid_of_framework("1", "made-up") is None
