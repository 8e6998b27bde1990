"""Facts of GPUs: on paper by architecture, from the driver, and stated in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

import jitdnn as jd
from jitdnn.devices import device_file, gpu_facts
from jitdnn.devices.gpu_facts import GpuFacts, architecture, as_stated, mma_rate, on_paper

LAYER = "conv_fwd n64 c64 h56 w56 k64 r3 s3 pad1 bf16 nhwc"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    device_file._read.cache_clear()
    yield
    device_file._read.cache_clear()


def stated(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "device.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# ---- on paper


def test_an_h100_on_paper_is_what_its_driver_says() -> None:
    # read from an H100 SXM, driver 580.159, on 2026-11-23
    assert on_paper(90) == GpuFacts(
        "NVIDIA H100 80GB HBM3", 90, 132, 1e3 * 1980000, 2e3 * 2619000 * 5120 / 8, 85017493504, 52428800, 232448,
        1024, 65536, 2048, 32, 256, 128, 2560,
    )  # fmt: skip


@pytest.mark.parametrize("capability", [80, 86, 87, 89, 90, 100, 103, 110, 120, 121])
def test_each_architecture_has_facts_of_its_own(capability: int) -> None:
    found = on_paper(capability)
    assert found.capability == capability
    for name, value in architecture(capability).items():
        assert name == "mma_rate" or getattr(found, name) == value
    for name, value in asdict(found).items():
        if name in gpu_facts._RANGES:
            assert gpu_facts._RANGES[name].takes(value), name
    assert 1e11 < found.bandwidth < 1e13
    # what is known of these GPUs
    peaks = {80: (19.5, 312.0), 86: (35.6, 71.0), 89: (82.6, 165.2), 90: (67.0, 669.0), 120: (104.8, 209.5)}
    if capability in peaks:
        single, halves = peaks[capability]
        assert found.peak_flops("f32") == pytest.approx(1e12 * single, rel=0.02)
        assert found.mma_rate * found.multiprocessors * found.clock == pytest.approx(1e12 * halves, rel=0.02)


def test_an_unknown_architecture_is_the_nearest_older_one() -> None:
    assert replace(on_paper(95), capability=90) == on_paper(90)
    assert replace(on_paper(999), capability=121) == on_paper(121)
    assert on_paper(75).multiprocessors == on_paper(80).multiprocessors
    assert on_paper(103).model == on_paper(100).model
    assert on_paper(103).f64_rate < on_paper(100).f64_rate


def test_geforce_adds_in_f32_at_half_the_rate() -> None:
    assert mma_rate("NVIDIA GeForce RTX 4090", 89) == 512
    assert mma_rate("NVIDIA L40S", 89) == 1024
    assert on_paper(89).mma_cycles == 8.0


def test_thread_blocks_that_there_is_room_for() -> None:
    gpu = on_paper(89)
    assert gpu.resident(99 << 10) == 1
    assert gpu.resident((99 << 10) + 1) == 0
    assert gpu.resident(49 << 10) == 2
    assert gpu.resident((49 << 10) + 1) == 1
    assert gpu.resident(0) == gpu.resident_blocks == 24


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"])
def test_a_device_on_paper_has_its_architecture_s_facts(arch: str) -> None:
    cuda = pytest.importorskip("jitdnn.devices.cuda")
    device = cuda.offline(arch)
    assert device.facts == on_paper(int(arch[3:].rstrip("a")))
    assert device.name == f"{device.facts.model} {arch} on paper"
    assert (device.multiprocessors, device.shared_bytes) == (
        device.facts.multiprocessors,
        device.facts.shared_bytes,
    )
    assert device != cuda.offline("sm_87")


# ---- stated


def test_a_file_states_facts(tmp_path: Path) -> None:
    path = stated(tmp_path, {"cuda": {"shared_bytes": 99 << 10, "clock": 1500000000, "multiprocessors": 7}})
    with jd.settings(device_file=path):
        found, efficiency = as_stated(on_paper(90))
    assert found == replace(on_paper(90), shared_bytes=99 << 10, clock=1.5e9, multiprocessors=7)
    assert efficiency == ()


def test_a_file_states_all_facts(tmp_path: Path) -> None:
    content = {name: value for name, value in asdict(on_paper(80)).items() if name in gpu_facts._RANGES}
    with jd.settings(device_file=stated(tmp_path, {"cuda": content})):
        found, _ = as_stated(on_paper(120))
    assert found == replace(on_paper(80), model=on_paper(120).model, capability=120)
    assert {*content} == {field.name for field in fields(GpuFacts)} - {"model", "capability"}


def test_a_device_follows_the_file(tmp_path: Path) -> None:
    cuda = pytest.importorskip("jitdnn.devices.cuda")
    whole = cuda.offline("sm_90a")
    with jd.settings(device_file=stated(tmp_path, {"cpu": {}, "cuda": {"shared_bytes": 99 << 10}})):
        smaller = cuda.offline("sm_90a")
    assert smaller.shared_bytes == 99 << 10
    assert smaller != whole
    assert cuda.offline("sm_90a") == whole


def test_a_file_states_efficiencies_of_algorithms(tmp_path: Path) -> None:
    cuda = pytest.importorskip("jitdnn.devices.cuda")
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")

    def seconds(path: Path | None) -> float:
        with jd.settings(device_file=path, cache_dir=tmp_path), jd.Handle(cuda.offline("sm_90a")) as handle:
            found = {one.name: one for one in handle.plan(jd.parse(LAYER)).candidates}
        taken = found["implicit_gemm"].seconds
        assert taken is not None
        return taken

    content = {"cuda": {"efficiency": {"implicit_gemm conv_fwd": 0.5}}}
    assert seconds(stated(tmp_path, content)) == pytest.approx(2 * seconds(None))


BAD = {
    '{"cuda": 3}': "must hold an object",
    '{"gpu": {}}': "a section 'gpu', which is none of cpu, cuda",
    '{"cuda": {"l2": 3}}': "cuda.'l2', which is none of multiprocessors, clock",
    '{"cuda": {"model": "H100"}}': "cuda.'model', which is none of",
    '{"cuda": {"capability": 80}}': "which is none of",
    '{"cuda": {"shared_bytes": 1000}}': "cuda.shared_bytes as 1000: it must be an integer of 49152 to",
    '{"cuda": {"shared_bytes": 1e5}}': "must be an integer",
    '{"cuda": {"registers": true}}': "must be an integer",
    '{"cuda": {"multiprocessors": 0}}': "an integer of 1 to 4096",
    '{"cuda": {"clock": "2 GHz"}}': r"must be a number of 1e\+06 to 1e\+11",
    '{"cuda": {"clock": 2}}': "must be a number",
    '{"cuda": {"bytes_per_second": NaN}}': "must be a number",
    '{"cuda": {"mma_rate": 0}}': "an integer of 1 to",
    '{"cuda": {"efficiency": {"direct conv_fwd": 0}}}': "it must be estimated over measured",
}


@pytest.mark.parametrize("text", BAD)
def test_nonsense_is_refused(text: str, tmp_path: Path) -> None:
    with (
        jd.settings(device_file=stated(tmp_path, text)),
        pytest.raises(jd.InvalidArgument, match=BAD[text]) as caught,
    ):
        as_stated(on_paper(90))
    assert "device.json" in str(caught.value)
