"""The limit on the size of the tuning store: what goes when it is reached, and what stays."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import jitdnn
from jitdnn import __version__
from jitdnn.planner.store import Measurement, Store


class TestLimit:
    LIMIT = 96 << 10

    @staticmethod
    def rows(first: int, count: int) -> list[Measurement]:
        """Three algorithms for each problem."""
        return [
            Measurement(
                f"problem {number}",
                "",
                "device " + 60 * "x",
                __version__,
                name,
                1,
                1e-3,
                0,
                float(number),
            )
            for number in range(first, first + count)
            for name in ("one", "two", "three")
        ]

    def test_holds_on_the_disk(self, tmp_path: Path) -> None:
        path = tmp_path / "tuning.sqlite"
        store = Store(path, self.LIMIT)
        for number in range(0, 2000, 50):
            store.add(self.rows(number, 50))
            assert path.stat().st_size <= self.LIMIT + (64 << 10), "what a write adds before the oldest go"
        stored = {row.problem for row in store.rows()}
        assert 100 < len(stored) < 1000
        assert stored == {f"problem {number}" for number in range(2000 - len(stored), 2000)}, "the last ones"
        assert len(store.look_up("problem 1999", "", "device " + 60 * "x")) == 3

    def test_what_is_looked_up_stays(self, tmp_path: Path) -> None:
        store, device = Store(tmp_path / "tuning.sqlite", self.LIMIT), "device " + 60 * "x"
        store.add(self.rows(0, 50))
        assert len(store.look_up("problem 7", "", device)) == 3
        for number in range(50, 1000, 50):
            store.add(self.rows(number, 50))
        stored = {row.problem for row in store.rows()}
        assert "problem 7" in stored
        assert "problem 8" not in stored

    def test_a_use_is_noted_once_a_day_and_for_old_times_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, device = tmp_path / "tuning.sqlite", "device " + 60 * "x"
        store = Store(path, self.LIMIT)
        store.add(self.rows(0, 2))
        store.record("new", "", device, [("one", 1, 1e-3, 0)])

        def uses() -> list[Any]:
            with closing(sqlite3.connect(path)) as connection:
                return connection.execute("SELECT problem, day FROM last_use").fetchall()

        for _ in range(3):
            store.look_up("problem 1", "", device)
            store.look_up("new", "", device)
        today = int(time.time() / 86400)
        assert uses() == [("problem 1", today)]
        later = time.time() + 2 * 86400
        monkeypatch.setattr("jitdnn.planner.store.time.time", lambda: later)
        store.look_up("problem 1", "", device)
        assert uses() == [("problem 1", today + 2)]

    def test_a_smaller_limit_shrinks_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "tuning.sqlite"
        Store(path).add(self.rows(0, 3000))
        assert path.stat().st_size > 4 * self.LIMIT
        Store(path, self.LIMIT).add(self.rows(3000, 1))
        assert path.stat().st_size <= self.LIMIT + self.LIMIT // 4
        assert len(Store(path).look_up("problem 3000", "", "device " + 60 * "x")) == 3

    def test_a_limit_that_nothing_fits_into_keeps_the_last(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "tuning.sqlite", 1)
        for number in range(5):
            store.add(self.rows(number, 1))
            assert {row.problem for row in store.rows()} == {f"problem {number}"}

    def test_in_memory(self) -> None:
        store = Store(None, 1 << 15)
        for number in range(200):
            store.add(self.rows(number, 1))
            store.look_up("problem 0", "", "device " + 60 * "x")
        stored = {row.problem for row in store.rows()}
        assert len(store.rows()) <= 32
        assert {"problem 0", "problem 199"} <= stored

    def test_of_the_settings(self, tmp_path: Path) -> None:
        with jitdnn.settings(cache=True, cache_dir=tmp_path, store_limit="1 MiB"):
            assert Store.default().limit == 1 << 20
            assert Store.default().stats().limit == 1 << 20
