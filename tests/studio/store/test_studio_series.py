"""Curves against plain NumPy over all points: any part, any zoom, overwritten points, numbers that are none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.studio.store import Store, series


def running_mean(values: list[float], weight: float) -> list[float]:
    """The definition, over all values: the sum of weighted values by the sum of weights."""
    total = norm = 0.0
    found = []
    for value in values:
        total, norm = weight * total + (1 - weight) * value, weight * norm + (1 - weight)
        found.append(total / norm)
    return found


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, int, np.ndarray]]:
    """A run of 100,001 iterations with one spike, written in parts of odd sizes."""
    store = Store(tmp_path_factory.mktemp("long"))
    run = store.insert("run", name="long")
    random = np.random.default_rng(0)
    values = np.exp(-np.arange(100_001) / 30_000) + 0.1 * random.standard_normal(100_001)
    values[70_003] = 99.0
    start = 0
    while start < len(values):
        end = start + 7_919
        store.add_points(run, [("loss", k + 1, float(v)) for k, v in enumerate(values[start:end], start)])
        start = end
    yield store, run, values
    store.close()


def test_points_stream_in_the_order_of_their_writing(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run, other = store.insert("run", name="a"), store.insert("run", name="b")
        store.add_points(run, [("loss", 224, 1.0), ("loss", 225, 2.0)])
        store.add_points(other, [("loss", 1, 9.0)])
        first = store.since(run)
        assert first.points == {"loss": [[224, 225], [1.0, 2.0]]}
        store.add_points(run, [("val accuracy", 225, 0.5)])  # of an iteration that was told of already
        second = store.since(run, first.seq)
        assert second.points == {"val accuracy": [[225], [0.5]]}
        store.add_points(run, [("loss", 225, 3.0)])  # after going back to a snapshot
        assert store.since(run, second.seq).points == {"loss": [[225], [3.0]]}
        assert store.since(run, store.since(run).seq) == (store.since(run).seq, {})
        assert store.series(run, "loss") == [[224, 225], [1.0, 3.0]]
        assert store.series_names(run) == ["loss", "val accuracy"]
        assert store.series(run, "nothing") == [[], []]
        assert store.spark(run) == [1.0, 3.0]


def test_a_stream_can_be_read_in_parts(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = store.insert("run", name="a")
        store.add_points(run, [(name, k, float(k)) for k in range(50) for name in ("loss", "lr")])
        seq, found = 0, []
        while (part := store.since(run, seq, most=7)).points:
            seq = part.seq
            found += [(name, at) for name, (xs, _) in part.points.items() for at in xs]
        assert sorted(found) == sorted((name, k) for k in range(50) for name in ("loss", "lr"))


def test_no_spike_is_lost_at_any_zoom(long: tuple[Store, int, np.ndarray]) -> None:
    store, run, values = long
    for low, high in ((0, None), (0, 100_001), (60_000, 90_001), (70_000, 70_010), (69_000, 71_500)):
        xs, ys = store.series(run, "loss", low, high, most=400)
        assert len(xs) <= 402
        assert xs == sorted(set(xs))
        assert low <= xs[0] <= xs[-1] <= (high or 100_001)
        assert ys[xs.index(70_004)] == 99.0
        np.testing.assert_allclose(ys, values[np.array(xs) - 1], atol=1e-7)
    assert store.series(run, "loss", 200_000, 300_000) == [[], []]
    assert store.series(run, "loss", 500, 400) == [[], []]


@pytest.mark.parametrize("weight", [0.5, 0.9, 0.999])
def test_zooming_never_changes_a_smoothed_curve(long: tuple[Store, int, np.ndarray], weight: float) -> None:
    store, run, values = long
    wanted = np.array(running_mean(values.tolist(), weight))
    for low, high in ((0, None), (30_000, 97_000), (64, 20_000), (70_001, 70_900), (32_768, 32_768 + 700)):
        xs, ys = store.series(run, "loss", low, high, smooth=weight)
        assert len(xs) > 100
        np.testing.assert_allclose(ys, wanted[np.array(xs) - 1], rtol=1e-6, atol=2e-7)


def test_few_rows_are_read_whatever_the_zoom(long: tuple[Store, int, np.ndarray]) -> None:
    """By the steps of SQLite's machine, which do not depend on the load of this one."""
    store, run, _ = long
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    store.db.set_progress_handler(count, 1000)
    try:
        store.series(run, "loss", 0, None, smooth=0.9)
        whole = steps[0]
        store.spark(run)
        small = steps[0] - whole
        store.db.execute("SELECT sum(value) FROM point WHERE run = ?", (run,)).fetchone()
        everything = steps[0] - small - whole
    finally:
        store.db.set_progress_handler(None, 0)
    assert whole < everything / 10
    assert small < everything / 10


@settings(max_examples=25)
@given(st.data())
def test_any_points_in_any_order(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Written in parts, some again with another value: the curve is that of the last values."""
    value = st.one_of(st.floats(-1e3, 1e3, width=32), st.just(math.nan), st.just(math.inf))
    points = data.draw(st.lists(st.tuples(st.integers(0, 5_000), value), min_size=1, max_size=60))
    weight = data.draw(st.sampled_from(series.WEIGHTS))
    low = data.draw(st.integers(0, 5_000))
    with Store(tmp_path_factory.mktemp("any")) as store:
        run = store.insert("run", name="a")
        known: dict[int, float] = {}
        while points:
            part, points = points[:7], points[7:]
            store.add_points(run, [("loss", at, value) for at, value in part])
            known |= dict(part)
        xs = sorted(known)
        told = [known[x] if math.isfinite(known[x]) else None for x in xs]
        found = store.series(run, "loss")
        assert found[0] == xs
        assert found[1] == pytest.approx(told, abs=1e-6)
        finite = [x for x in xs if math.isfinite(known[x])]
        smooth = dict(zip(finite, running_mean([known[x] for x in finite], weight), strict=True))
        shown = store.series(run, "loss", low, smooth=weight)
        assert shown[0] == [x for x in xs if x >= low]
        assert shown[1] == pytest.approx([smooth.get(x) for x in shown[0]], abs=1e-4)
        _check_pyramid(store, run, known)


def _check_pyramid(store: Store, run: int, known: dict[int, float]) -> None:
    for level in series.LEVELS:
        rows = {row["bucket"]: row for row in store.rows("SELECT * FROM level WHERE level = ?", level)}
        assert rows.keys() == {x // level for x in known}
        for bucket, row in rows.items():
            inside = [v for x, v in known.items() if x // level == bucket and math.isfinite(v)]
            assert row["count"] == len(inside)
            if inside:
                assert (row["low"], row["high"]) == (min(inside), max(inside))
                assert row["mean"] == pytest.approx(np.mean(inside), abs=1e-6)
                assert known[row["low_at"]] == row["low"]
