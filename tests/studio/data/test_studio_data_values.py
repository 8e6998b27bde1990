"""Mean, deviation and histogram of a data set's numbers, against NumPy's of all of them at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from jitdnn.studio.data import Dataset, values


@given(
    count=st.integers(1, 40), shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 7)),
    is_real=st.booleans(), seed=st.integers(0, 1 << 30), shift=st.sampled_from([0.0, 1e6]),
)  # fmt: skip
@settings(max_examples=examples(40), deadline=None)
def test_numbers(
    tmp_path_factory: pytest.TempPathFactory, count: int, shape: tuple[int, int, int], is_real: bool, seed: int,
    shift: float,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("data")
    images = random.integers(0, 256, (count, *shape), np.uint8)
    if is_real:
        images = (shift + random.standard_normal((count, *shape))).astype(np.float32)
    np.save(folder / "train_data.npy", images)
    found = values.values_of(Dataset(folder, "classification", []))
    exact = images.astype(np.float64)
    # of sums in whatever order, where numbers of both signs may cancel (Higham, section 4.2)
    assert (np.abs(found.mean - exact.mean(0)) <= count * 2.0**-52 * np.abs(exact).mean(0)).all()
    np.testing.assert_allclose(found.std, exact.std(0), rtol=1e-6, atol=1e-9)
    assert found.looked == count
    assert found.histogram.sum() == images.size
    assert found.low <= exact.min()
    assert exact.max() <= found.high


def test_numbers_that_are_not_finite_are_counted_and_left_out(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.float32).reshape(4, 1, 2, 3)
    images[1, 0, 0, 0], images[2, 0, 1, 1] = np.nan, np.inf
    np.save(tmp_path / "train_data.npy", images)
    found = values.values_of(Dataset(tmp_path, "regression", []))
    assert found.not_finite == 2
    np.testing.assert_allclose(found.mean, np.nanmean(np.where(np.isfinite(images), images, np.nan), 0))
    assert found.histogram.sum() == 22
    same = np.full((3, 1, 1, 2), 7, np.float32)
    (tmp_path / "same").mkdir()
    np.save(tmp_path / "same" / "train_data.npy", same)
    alike = values.values_of(Dataset(tmp_path / "same", "regression", []))
    assert alike.std.max() == 0
    assert alike.low < 7 < alike.high


def test_large_sets_are_looked_at_in_part(tmp_path: Path) -> None:
    np.save(tmp_path / "train_data.npy", np.arange(1000, dtype=np.uint8).reshape(1000, 1, 1, 1))
    found = values.values_of(Dataset(tmp_path, "classification", []), 10)
    assert found.looked == 10
    assert found.histogram.sum() == 10
