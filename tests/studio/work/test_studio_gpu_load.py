"""The load of a GPU, from stand-ins of the driver's libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitdnn.caffe import load_solver
from jitdnn.studio.store import Store
from jitdnn.studio.web.charts import charts
from jitdnn.studio.work import gpu_load
from jitdnn.studio.work.gpu_load import GpuLoad
from jitdnn.studio.work.reporter import Reporter
from jitdnn.studio.work.run_access import StoreRunAccess
from studio_runs import begin, curves_of, make_run, row_of


class Driver:
    """libcuda and libnvidia-ml with two GPUs, of which CUDA numbers the second first; `refused` fail."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if name in self.refused:
                return 3
            getattr(Driver, f"do_{name}", lambda *given: None)(*arguments)
            return 0

        return call

    def do_cuDeviceGet(ordinal: Any, number: int) -> None:  # noqa: N802, N805
        ordinal._obj.value = number

    def do_cuDeviceGetPCIBusId(bus: Any, size: int, ordinal: Any) -> None:  # noqa: N802, N805
        bus.value = b"0000:%02d:00.0" % (9 - ordinal.value)
        assert len(bus.value) < size

    def do_nvmlDeviceGetHandleByPciBusId_v2(bus: bytes, handle: Any) -> None:  # noqa: N802, N805
        handle._obj.value = int(bus[5:7])

    def do_nvmlDeviceGetUtilizationRates(handle: Any, found: Any) -> None:  # noqa: N802, N805
        found._obj.gpu, found._obj.memory = handle.value * 10, 1

    def do_nvmlDeviceGetMemoryInfo(handle: Any, found: Any) -> None:  # noqa: N802, N805
        found._obj.total, found._obj.free, found._obj.used = 80 << 30, 60 << 30, 20 << 30

    def do_nvmlDeviceGetTemperature(handle: Any, sensor: int, found: Any) -> None:  # noqa: N802, N805
        assert sensor == 0
        found._obj.value = 40 + handle.value


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as made:
        yield made


def test_a_gpu_is_found_by_its_place_on_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_load, "_library", lambda name: Driver())
    for device, number in (("cuda", 9), ("cuda:0", 9), ("cuda:1", 8)):
        load = GpuLoad.of(device)
        assert load is not None
        assert load.read() == {"gpu/busy": number / 10, "gpu/memory": 0.25, "gpu/degrees": 40 + number}


@pytest.mark.parametrize(
    "refused",
    ["cuInit", "cuDeviceGet", "cuDeviceGetPCIBusId", "nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2"],
)
def test_where_the_driver_does_not_tell_there_is_none(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_load, "_library", lambda name: Driver(refused))
    assert GpuLoad.of("cuda:0") is None


def test_other_devices_and_machines_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(gpu_load, "_library", missing)
    for device in ("cpu", "", "opencl:0", "cuda", "cuda:x"):
        assert GpuLoad.of(device) is None


def test_what_is_not_told_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_load, "_library", lambda name: Driver("nvmlDeviceGetUtilizationRates"))
    load = GpuLoad.of("cuda:1")
    assert load is not None
    assert load.read() == {"gpu/memory": 0.25, "gpu/degrees": 48.0}


def test_it_is_a_curve_of_the_run_and_a_chart(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_load, "_library", lambda name: Driver())
    run = make_run(store, 120, snapshot=0, test=0)
    reporter = Reporter(
        StoreRunAccess(store, run, begin(store, run)), row_of(store, run), GpuLoad.of("cuda:1")
    )
    reporter.solver = load_solver(
        store.folder(run) / "solver.prototxt", listener=reporter, snapshot_prefix=str(store.folder(run) / "x")
    )
    reporter.solver.solve()
    curves = curves_of(store, run)
    assert curves["gpu/busy"] == [[50, 100], [0.8, 0.8]]
    shown = {chart.key: chart for chart in charts(list(curves), None)}
    assert shown["gpu"].names == ["gpu/busy", "gpu/memory"]
    assert shown["gpu"].is_share
    assert shown["degrees"].names == ["gpu/degrees"]
