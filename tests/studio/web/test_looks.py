"""The comparison of pictures notices what a mean over the whole page would not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL")

from studio_looks import TOLERANCE, worst_tile

#: a page of 1280 x 900 at a quarter of its size
SHAPE = (225, 320, 3)


@pytest.mark.parametrize(("x", "y"), [(0, 0), (7, 7), (150, 100), (296, 215), (8, 15)])
def test_a_button_that_is_gone_is_seen_wherever_it_was(x: int, y: int) -> None:
    before = np.full(SHAPE, 246.0)
    before[y : y + 9, x : x + 23] = (47, 91, 211)  # 92 x 36 pixels in the accent
    at, most = worst_tile(before, np.full(SHAPE, 246.0))
    assert most > TOLERANCE
    assert abs(at[0] - x) <= 23
    assert abs(at[1] - y) <= 15
    assert np.abs(before - 246).mean() < 1  # of the whole picture it is nothing


def test_what_a_browser_rounds_is_no_difference() -> None:
    before = np.random.default_rng(0).integers(0, 250, SHAPE).astype(float)
    now = before + np.random.default_rng(1).integers(-6, 6, SHAPE)
    assert worst_tile(before, now)[1] < TOLERANCE / 4


def test_pictures_of_other_sizes_are_refused() -> None:
    with pytest.raises(AssertionError):
        worst_tile(np.zeros(SHAPE), np.zeros((224, 320, 3)))
