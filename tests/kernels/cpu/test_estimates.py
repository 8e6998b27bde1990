"""What estimates must not overlook: algorithms that were chosen for it, and took several times as long as others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import parse
from jitdnn.rtcg.processor import Processor
from processors import MACHINES

FAR = Processor(
    line_bytes=64, l1_bytes=48 << 10, l2_bytes=2 << 20, l3_bytes=32 << 20, fma_ports=2, clock=1.8e9, l2_rate=48.0,
    l3_rate=11.0, memory_rate=3.3, l3_sharers=2,
)  # fmt: skip
#: one on which reading memory takes the longest, so that what is left out of an estimate decides
SLOW = {"far memory": replace(MACHINES["Sapphire Rapids"], processor=FAR)}
EACH = MACHINES | SLOW


def seconds(words: str, machine: str) -> dict[str, float]:
    """The estimate of each algorithm that takes a problem, on one thread."""
    problem, device = parse(words), CpuDevice(EACH[machine], 1)
    each = algorithms(problem, "cpu")
    return {one.name: one.estimate(problem, device) for one in each if one.refuse(problem, device) is None}


@pytest.mark.parametrize("machine", EACH)
@pytest.mark.parametrize("words", ["n1 k384 p25088 q1 nhwc", "n8 k96 p56 q56 nhwc", "n8 k96 p56 q56"])
def test_copies_of_the_operands_are_time_of_the_reference(words: str, machine: str) -> None:
    """Sums do one addition for each element; the definition copies it to float64 before, in fresh memory."""
    found = seconds(f"conv_bwd_bias {words}", machine)
    assert found.pop("reference") > 3 * min(found.values())


@pytest.mark.parametrize("machine", [name for name in EACH if EACH[name].lanes("f32") > 4])
@pytest.mark.parametrize("words", ["c96 h112 w112 k96", "c144 h56 w56 k144", "c192 h28 w28 k192"])
def test_vectors_with_one_lane_in_use_take_as_long_to_store_as_others(words: str, machine: str) -> None:
    """A strided depthwise backward data has one channel in vectors of channels, each of which is transposed."""
    channels = words.split()[0][1:]
    found = seconds(f"conv_bwd_data n8 {words} r3 s3 stride2 pad1 g{channels}", machine)
    assert found["implicit_gemm"] > found["depthwise"]
