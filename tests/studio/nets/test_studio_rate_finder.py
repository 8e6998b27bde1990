"""What a curve of losses over rates suggests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.studio.nets.rate_finder import suggested

RATES = list(np.geomspace(1e-6, 10, 141))


@given(
    middle=st.floats(-4.5, -1),
    width=st.floats(0.15, 0.5),
    low=st.floats(-3, 3),
    height=st.floats(1, 50),
)
@settings(max_examples=50, deadline=None)
def test_where_a_step_falls_fastest(middle: float, width: float, low: float, height: float) -> None:
    """A loss that falls by a logistic step, and rises again behind it: where it falls fastest is suggested, which the
    rise pulls away from the step's middle."""
    places = np.log10(RATES)
    smooth = (
        low + height / (1 + np.exp((places - middle) / width)) + 1e3 * np.exp(5 * (places - 1.0)) * height
    )
    lowest, found = suggested(RATES, list(smooth))
    assert lowest == RATES[int(np.argmin(smooth))]
    assert found is not None
    fastest = places[int(np.argmin(np.gradient(smooth, places)))]
    # two digits of the rate are suggested, and points are 0.05 decades apart
    assert abs(np.log10(found) - fastest) < 0.1 + 0.3 * width
    assert found <= lowest


@pytest.mark.parametrize(
    "smooth", [[1.0] * 141, list(np.linspace(1, 5, 141)), list(1 - np.linspace(0, 0.01, 141))]
)
def test_a_loss_that_does_not_fall_suggests_nothing(smooth: list[float]) -> None:
    assert suggested(RATES, smooth) == (None, None)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_points(count: int) -> None:
    assert suggested(RATES[:count], [3.0, 2.0, 1.0][:count]) == (None, None)
