"""Operands and scratch memory of measurements on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.planner.measure_gpu import _fill, _scratch


class HostGpu:
    """Memory of a GPU that is a NumPy array; pointers are indices of bytes."""

    def __init__(self, size: int) -> None:
        self.memory = np.zeros(size, np.uint8)

    def write(self, pointer: int, data: np.ndarray, stream: Any = None) -> None:
        self.memory[pointer : pointer + data.nbytes] = data.view(np.uint8)

    def copy(self, target: int, source: int, size: int, stream: Any = None) -> None:
        assert source + size <= target, "they overlap"
        self.memory[target : target + size] = self.memory[source : source + size]


@given(length=st.integers(1, 40), times=st.integers(1, 700), start=st.integers(0, 9))
def test_memory_is_filled_with_the_pattern_and_no_further(length: int, times: int, start: int) -> None:
    size = max(length, times)
    gpu = HostGpu(start + size + 5)
    pattern = np.arange(1, length + 1, dtype=np.uint8)
    _fill(gpu, start, size, pattern, None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(gpu.memory[start : start + size], np.resize(pattern, size))
    assert not gpu.memory[:start].any()
    assert not gpu.memory[start + size :].any()


def test_who_needs_more_than_there_is_fails_alone() -> None:
    failed: dict[int, str] = {}

    def place(size: int) -> int:
        if size > 100:
            raise MemoryError(f"no memory for {size} bytes")
        return 4096

    assert _scratch(place, [10, 500, 90, 101], failed) == 4096
    assert failed == {1: "no memory for 500 bytes", 3: "no memory for 101 bytes"}
    with pytest.raises(MemoryError, match="500"):
        _scratch(place, [700, 500], {})
