"""Facts of the processor: what the system tells, what is measured and kept, and what a file states instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitdnn as jd
from jitdnn.devices import device_file, processor_facts
from jitdnn.devices.cpu import host
from jitdnn.devices.processor_facts import processor_of, read_sizes
from jitdnn.devices.processor_speed import measure
from jitdnn.rtcg.isa import isa
from jitdnn.rtcg.processor import REFERENCE, Processor


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return tmp_path / "cpu"


def cache(system: Path, number: int, **content: str) -> None:
    folder = system / "cpu0" / "cache" / f"index{number}"
    folder.mkdir(parents=True)
    for name, text in content.items():
        (folder / name).write_text(text + "\n")


def siblings(system: Path, text: str) -> None:
    (system / "cpu0" / "topology").mkdir(parents=True)
    (system / "cpu0" / "topology" / "thread_siblings_list").write_text(text)


def test_shared_caches_are_divided(system: Path) -> None:
    line = "64"
    cache(system, 0, level="1", type="Data", size="32K", shared_cpu_list="0,8", coherency_line_size=line)
    cache(
        system, 1, level="1", type="Instruction", size="64K", shared_cpu_list="0,8", coherency_line_size=line
    )
    cache(system, 2, level="2", type="Unified", size="512K", shared_cpu_list="0,8", coherency_line_size=line)
    cache(
        system, 3, level="3", type="Unified", size="16M", shared_cpu_list="0-3,8-11", coherency_line_size=line
    )
    siblings(system, "0,8")
    # two threads of a core count as one of ours, which has the core's own caches to itself
    assert read_sizes(system) == {
        "line_bytes": 64, "l1_bytes": 32 << 10, "l2_bytes": 512 << 10, "l3_bytes": 4 << 20,
        "l3_sharers": 4,
    }  # fmt: skip


def test_a_cache_of_several_cores_is_divided_among_the_cores(system: Path) -> None:
    cache(system, 0, level="1", type="Data", size="64K", shared_cpu_list="0", coherency_line_size="128")
    cache(
        system, 1, level="2", type="Unified", size="4096K", shared_cpu_list="0-3", coherency_line_size="128"
    )
    siblings(system, "0")
    assert read_sizes(system) == {"line_bytes": 128, "l1_bytes": 64 << 10, "l2_bytes": 1 << 20}


@pytest.mark.parametrize("damage", [{"size": "big"}, {"size": ""}, {"level": "9"}])
def test_what_the_system_tells_badly_is_left_out(system: Path, damage: dict[str, str]) -> None:
    good = {"type": "Data", "shared_cpu_list": "0", "coherency_line_size": "64"}
    cache(system, 0, **good, level="1", size="48K")
    cache(system, 1, **{**good, "level": "2", "size": "1M", **damage})
    assert read_sizes(system) == {"line_bytes": 64, "l1_bytes": 48 << 10}


def test_without_a_third_level_the_second_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_facts, "read_sizes", lambda: {"l1_bytes": 64 << 10, "l2_bytes": 1 << 20})
    sizes = processor_facts._sizes()
    assert (sizes.l3_bytes, sizes.last_cache(1.0)) == (0, 1 << 20)
    assert measure(isa(), sizes).l3_bytes == 0
    monkeypatch.setattr(processor_facts, "read_sizes", dict)
    assert processor_facts._sizes() == REFERENCE


def test_a_system_that_tells_nothing_is_asked_otherwise(system: Path) -> None:
    assert all(size > 0 for size in read_sizes(system).values())


def test_this_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Processor] = []

    def measured(of: Any, sizes: Processor) -> Processor:
        calls.append(sizes)
        return replace(sizes, clock=1.25e9)

    monkeypatch.setattr(processor_facts, "measure", measured)
    with jd.settings(cache_dir=tmp_path, device_file=None):
        for _ in range(2):
            processor_facts._found.cache_clear()
            assert host(1).isa.processor.clock == 1.25e9
    assert len(calls) == 1
    with jd.settings(cache_dir=tmp_path / "other", device_file=None):
        processor_facts._found.cache_clear()
        assert host(2).isa.processor.clock == 1.25e9
    assert len(calls) == 2
    processor_facts._found.cache_clear()


@pytest.mark.parametrize("lie", [{"clock": "fast"}, {"l1_bytes": -1}, {"line_bytes": 1e9}, {"clock": 0.0}])
def test_facts_that_cannot_be_are_measured_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lie: dict[str, Any]
) -> None:
    """A file of compiled code may have brought them."""
    monkeypatch.setattr(processor_facts, "measure", lambda of, sizes: replace(sizes, **lie))
    with jd.settings(cache_dir=tmp_path, device_file=None):
        processor_facts._found.cache_clear()
        processor_facts._found(isa())
        monkeypatch.setattr(processor_facts, "measure", lambda of, sizes: replace(sizes, clock=1.25e9))
        processor_facts._found.cache_clear()
        assert processor_facts._found(isa()).clock == 1.25e9
    processor_facts._found.cache_clear()


def test_what_is_measured_is_possible() -> None:
    found = measure(isa(), REFERENCE)
    assert 2e8 < found.clock < 1e10
    assert 1 <= found.fma_ports <= 8
    assert 0.05 < found.memory_rate < 512
    assert 0.05 < found.l2_rate < 1024
    assert (found.l1_bytes, found.l2_bytes) == (REFERENCE.l1_bytes, REFERENCE.l2_bytes)
    assert 0 < found.l3_bytes <= REFERENCE.l3_bytes
    assert measure.__doc__


def stated(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "device.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    device_file._read.cache_clear()
    yield
    device_file._read.cache_clear()


def test_tests_plan_for_the_reference() -> None:
    assert host(1).isa.processor == REFERENCE


def test_a_file_states_all_facts(tmp_path: Path) -> None:
    facts = replace(REFERENCE, l2_bytes=512 << 10, clock=2.5e9)
    with jd.settings(device_file=stated(tmp_path, {"cpu": asdict(facts)})):
        assert processor_of(isa()) == facts
        assert host(3, "plain").isa.processor == facts
        assert host(3, "neon").isa.processor == facts


def test_a_file_states_some_facts(tmp_path: Path) -> None:
    with jd.settings(
        device_file=stated(tmp_path, {"cpu": {"l2_bytes": 12345, "memory_rate": 3}, "cuda": {}})
    ):
        found = processor_of(isa("plain"))
    assert (found.l2_bytes, found.memory_rate) == (12345, 3.0)
    assert found.line_bytes > 0


BAD = {
    "no json": "cannot be read",
    "[1, 2]": "must hold an object",
    '{"cpu": 3}': "must hold an object",
    '{"cpu": {"l4_bytes": 3}}': "which is none of line_bytes, l1_bytes",
    '{"cpu": {"l2_bytes": "1M"}}': "must be an integer of 1 to",
    '{"cpu": {"l2_bytes": 1.5}}': "must be an integer",
    '{"cpu": {"l2_bytes": 0}}': "of 1 to",
    '{"cpu": {"l2_bytes": true}}': "must be an integer",
    '{"cpu": {"clock": -1}}': "must be a number of 0.001",
    '{"cpu": {"clock": NaN}}': "must be a number",
    '{"cpu": {"l1_bytes": 1e400}}': "must be an integer",
    '{"cpus": {}}': "a section 'cpus', which is none of cpu, cuda",
    '{"cpu": {"efficiency": 2}}': "no object",
    '{"cpu": {"efficiency": {"direct conv_fwd": 0}}}': "'direct conv_fwd' as 0: it must be estimated over measured",
    '{"cpu": {"efficiency": {"direct conv_fwd": true}}}': "as True: it must be",
    '{"cpu": {"efficiency": {"direct conv_fwd": 1000}}}': "a number of 0.01 to 100",
}


@pytest.mark.parametrize("text", BAD)
def test_nonsense_is_refused(text: str, tmp_path: Path) -> None:
    with (
        jd.settings(device_file=stated(tmp_path, text)),
        pytest.raises(jd.InvalidArgument, match=BAD[text]) as caught,
    ):
        processor_of(isa())
    assert "device.json" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with (
        jd.settings(device_file=tmp_path / "none.json"),
        pytest.raises(jd.InvalidArgument, match="cannot be read"),
    ):
        host(1)


@given(st.sampled_from(["l1", "l2", "l3"]), st.floats(0.001, 4.0))
def test_shares_are_whole_lines(level: str, share: float) -> None:
    size = getattr(REFERENCE, level)(share)
    assert size > 0
    assert size % REFERENCE.line_bytes == 0
    assert abs(size - share * getattr(REFERENCE, f"{level}_bytes")) <= REFERENCE.line_bytes


def test_without_a_third_cache_its_shares_are_of_the_second() -> None:
    assert replace(REFERENCE, l3_bytes=0).l3(0.5) == REFERENCE.l2_bytes // 2
    assert replace(REFERENCE, l3_bytes=0).last_cache(0.5) == REFERENCE.l2_bytes // 2


def test_the_whole_last_cache_is_that_of_all_cores() -> None:
    server = replace(REFERENCE, l3_bytes=1920 << 10, l3_sharers=64)
    assert server.last_cache(1.5) == 180 << 20
    assert REFERENCE.last_cache(1.5) == 48 << 20


def test_facts_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from jitdnn.cli.info import gather

    with jd.settings(device_file=stated(tmp_path, {"cpu": asdict(REFERENCE)})):
        assert gather()["processor"] == asdict(REFERENCE)
    assert {field.name for field in fields(Processor)} == set(asdict(REFERENCE))
