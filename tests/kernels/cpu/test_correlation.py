"""Which results of a correlation read anything but padding."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.kernels.cpu.correlation import Axis, Taps


@settings(max_examples=300, deadline=None)
@given(
    results=st.integers(0, 12),
    positions=st.integers(0, 9),
    step=st.integers(1, 4),
    count=st.integers(1, 5),
    offset=st.integers(-20, 20),
    shift=st.integers(-4, 4),
)
def test_the_results_that_read_inside(
    results: int, positions: int, step: int, count: int, offset: int, shift: int
) -> None:
    axis = Axis(results, positions, step, Taps(count, offset=offset, shift=shift))
    inside = [
        p for p in range(results) if any(0 <= p * step + offset + i * shift < positions for i in range(count))
    ]
    assert axis.reached() == ((inside[0], inside[-1]) if inside else (0, -1))
