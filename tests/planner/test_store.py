"""The tuning store: rows survive processes, damage, full and read-only disks; nothing raises."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import jitdnn
from disks import environment, run_without_write_permission
from jitdnn import log
from jitdnn.errors import StoreError
from jitdnn.planner.store import Measurement, Store

ROW = Measurement("conv_fwd n1", "", "machine", "0.1.0", "direct", 1, 0.5, 64, 1000.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "deep" / "tuning.sqlite")


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Collection[str]:
    messages: dict[object, str] = {}
    monkeypatch.setattr(log, "fallback_once", messages.setdefault)
    return messages.values()


def only(warnings: Collection[str]) -> str:
    (message,) = warnings
    return message


class TestRows:
    @pytest.mark.parametrize("in_memory", [False, True])
    def test_record_and_look_up(self, tmp_path: Path, in_memory: bool) -> None:
        store = Store(None if in_memory else tmp_path / "tuning.sqlite")
        assert store.look_up("p", "e", "d") == {}
        store.record(
            "p", "e", "d", [("direct", 1, 0.25, 64), ("direct", 2, 0.5, 0), ("winograd", 1, 0.125, 1 << 40)]
        )
        found = store.look_up("p", "e", "d")
        assert {key: (row.seconds, row.workspace) for key, row in found.items()} == {
            ("direct", 1): (0.25, 64),
            ("direct", 2): (0.5, 0),
            ("winograd", 1): (0.125, 1 << 40),
        }
        assert all(row.library == jitdnn.__version__ for row in found.values())

    def test_other_keys_find_nothing(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        store.record("p", "e", "d", [("direct", 1, 0.25, 64)])
        assert store.look_up("q", "e", "d") == {}
        assert store.look_up("p", "", "d") == {}
        assert store.look_up("p", "e", "another") == {}
        monkeypatch.setattr(jitdnn, "__version__", "99.0")
        assert store.look_up("p", "e", "d") == {}

    def test_another_object_and_thread_find_it(self, store: Store) -> None:
        store.record("p", "", "d", [("direct", 1, 0.25, 64)])
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(len(store.look_up("p", "", "d"))))
        thread.start()
        thread.join()
        assert found == [1]
        assert len(Store(store.path).rows()) == 1

    def test_later_measurement_stays_in_any_order(self, store: Store) -> None:
        later = replace(ROW, seconds=0.75, measured_at=2000.0)
        store.add([later])
        store.add([ROW])
        assert store.rows() == [later]
        memory = Store(None)
        memory.add([ROW, later, ROW])
        assert memory.rows() == [later]

    def test_journal_is_write_ahead(self, store: Store) -> None:
        store.add([ROW])
        with sqlite3.connect(str(store.path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()

    def test_stats_and_clear(self, store: Store) -> None:
        assert store.stats().measurements == 0
        store.add([ROW, replace(ROW, algorithm="other")])
        stats = store.stats()
        assert (stats.path, stats.measurements) == (store.path, 2)
        assert stats.bytes > 0
        store.clear()
        assert store.stats().measurements == 0
        assert store.rows() == []

    @pytest.mark.parametrize("in_memory", [False, True])
    def test_plans_depend_on_times_of_problems_alone(self, tmp_path: Path, in_memory: bool) -> None:
        """Choices between calls of ours and PyTorch's are stored all the time while a model makes its first step."""
        store = Store(None if in_memory else tmp_path / "tuning.sqlite")
        states = [store.state()]
        choice = replace(ROW, problem="torch forward conv_fwd n1")
        for rows in (
            [choice],
            [ROW],
            [choice, replace(choice, seconds=0.25, measured_at=2e9)],
            [ROW, choice],
        ):
            store.add(rows)
            states.append(store.state())
        assert states[0] == states[1] != states[2] == states[3]
        assert in_memory or states[3] != states[4], "it was written, if not another one"
        assert in_memory or Store(store.path).state() == states[4]
        store.clear()
        assert store.state() == states[0]

    def test_default_follows_the_settings(self, tmp_path: Path) -> None:
        with jitdnn.settings(cache_dir=tmp_path, cache=True):
            assert Store.default() is Store.default()
            assert Store.default().path is not None
            assert Store.default().path.parent == tmp_path
        with jitdnn.settings(cache=False):
            assert Store.default().path is None

    def test_sqlite_is_imported_only_when_there_is_something_to_read(self, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from jitdnn.planner.store import Store\n"
            f"Store(Path({str(tmp_path / 'none')!r})).look_up('p', '', 'd')\n"
            "assert 'sqlite3' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", script], check=True, env=environment())

    @hypothesis_settings(max_examples=25, deadline=None)
    @given(
        st.lists(
            st.builds(
                Measurement,
                *[st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)] * 5,
                st.integers(0, 9),
                st.floats(1e-9, 1e3),
                st.integers(0, 2**50),
                st.floats(0, 1e10),
            ),
            max_size=5,
            unique_by=lambda row: row.key,
        )
    )
    def test_any_text_comes_back(self, rows: list[Measurement]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "tuning.sqlite")
            store.add(rows)
            assert store.rows() == sorted(rows, key=lambda row: row.key)
            exported = Path(folder) / "rows.jsonl"
            store.export(exported)
            other = Store(None)
            assert other.merge(exported) == len(rows)
            assert other.rows() == store.rows()


class TestExport:
    def test_merge_is_idempotent_and_keeps_the_later(self, store: Store, tmp_path: Path) -> None:
        mine = replace(ROW, seconds=0.1, measured_at=5000.0)
        store.add([mine])
        other = Store(None)
        other.add([ROW, replace(ROW, algorithm="winograd")])
        path = tmp_path / "rows.jsonl"
        assert other.export(path) == 2
        for _ in range(2):
            assert store.merge(path) == 2
            assert store.rows() == [mine, replace(ROW, algorithm="winograd")]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("not json", "line 2"),
            ("[1, 2]", "line 2"),
            ('{"problem": "p"}', "line 2"),
            (
                json.dumps({**{f: getattr(ROW, f) for f in Measurement.__slots__}, "seconds": -1.0}),
                "no measurement",
            ),
            (
                json.dumps({**{f: getattr(ROW, f) for f in Measurement.__slots__}, "problem": 7}),
                "no measurement",
            ),
            (json.dumps({**{f: getattr(ROW, f) for f in Measurement.__slots__}, "more": 7}), "line 2"),
        ],
    )
    def test_a_bad_line_is_named_and_nothing_is_added(
        self, store: Store, tmp_path: Path, line: str, reason: str
    ) -> None:
        path = tmp_path / "rows.jsonl"
        other = Store(None)
        other.add([ROW])
        other.export(path)
        path.write_text(path.read_text() + line + "\n")
        with pytest.raises(StoreError, match=reason):
            store.merge(path)
        assert store.rows() == []

    def test_unreadable_and_unwritable_files(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="cannot be read"):
            store.merge(tmp_path / "absent")
        (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(StoreError, match="cannot be read"):
            store.merge(tmp_path / "binary")
        with pytest.raises(StoreError, match="cannot be written"):
            store.export(tmp_path / "absent" / "rows")


class TestDamage:
    def filled(self, store: Store) -> Path:
        store.add([replace(ROW, problem=f"problem {number}") for number in range(300)])
        assert store.path is not None
        return store.path

    def test_garbage_is_moved_aside_and_begun_anew(self, store: Store, warnings: Collection[str]) -> None:
        path = self.filled(store)
        path.write_bytes(b"this is no database" * 1000)
        assert store.rows() == []
        assert "damaged" in only(warnings)
        (aside,) = path.parent.glob("*.damaged-*")
        assert aside.read_bytes().startswith(b"this is no database")
        store.add([ROW])
        assert Store(path).rows() == [ROW]
        assert len(warnings) == 1

    def test_writing_first_notices_too(self, store: Store, warnings: Collection[str]) -> None:
        path = self.filled(store)
        path.write_bytes(b"this is no database" * 1000)
        store.add([ROW])
        assert Store(path).rows() == [ROW]
        assert "damaged" in only(warnings)

    @pytest.mark.parametrize("tenths", range(10))
    def test_truncated(self, store: Store, warnings: Collection[str], tenths: int) -> None:
        path = self.filled(store)
        os.truncate(path, path.stat().st_size * tenths // 10)
        truth = {replace(ROW, problem=f"problem {number}") for number in range(300)} | {ROW}
        assert set(store.rows()) <= truth
        store.add([ROW])
        again = set(Store(path).rows())
        assert ROW in again
        assert again <= truth

    @pytest.mark.parametrize("seed", range(8))
    def test_flipped_bytes_never_raise_nor_invent_times(
        self, store: Store, warnings: Collection[str], seed: int
    ) -> None:
        path = self.filled(store)
        chance = random.Random(seed)
        content = bytearray(path.read_bytes())
        for _ in range(400):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        for row in store.rows():
            assert row.is_sane()
        store.look_up("problem 7", "", "machine")
        store.add([ROW])
        assert ROW in store.rows()

    def test_a_database_of_somebody_else_is_left_alone(self, store: Store, warnings: Collection[str]) -> None:
        assert store.path is not None
        store.path.parent.mkdir()
        connection = sqlite3.connect(store.path)
        connection.execute("CREATE TABLE measurement (other TEXT)")
        connection.execute("INSERT INTO measurement VALUES ('precious')")
        connection.commit()
        connection.close()
        assert store.rows() == []
        store.add([ROW])
        assert store.rows() == [ROW], "kept in memory"
        assert "cannot be written" in only(warnings)
        connection = sqlite3.connect(store.path)
        assert connection.execute("SELECT * FROM measurement").fetchall() == [("precious",)]
        connection.close()

    def test_numbers_that_are_no_measurement_are_not_believed(self, store: Store) -> None:
        path = self.filled(store)
        connection = sqlite3.connect(path)
        connection.execute("UPDATE measurement SET seconds = -1.0 WHERE problem = 'problem 1'")
        connection.execute("UPDATE measurement SET seconds = 9e999 WHERE problem = 'problem 2'")
        connection.execute("UPDATE measurement SET seconds = 'fast' WHERE problem = 'problem 3'")
        connection.commit()
        connection.close()
        assert len(store.rows()) == 297
        assert store.look_up("problem 1", "", "machine") == {}

    def test_text_that_is_none_costs_its_row_only(self, store: Store, warnings: Collection[str]) -> None:
        store.add([ROW, replace(ROW, algorithm="other")])
        connection = sqlite3.connect(str(store.path))
        connection.execute(
            "UPDATE measurement SET epilogue = CAST(x'ff41' AS TEXT) WHERE algorithm = 'other'"
        )
        connection.commit()
        connection.close()
        assert store.rows() == [ROW]
        assert not warnings

    @pytest.mark.parametrize("bad", [{"workspace": 2**63}, {"problem": "\ud800"}])
    def test_rows_that_cannot_be_written_are_no_export(
        self, store: Store, tmp_path: Path, bad: dict[str, Any]
    ) -> None:
        row = {name: getattr(ROW, name) for name in ROW.__slots__}
        (tmp_path / "export").write_text(json.dumps(row) + "\n" + json.dumps(row | bad))
        with pytest.raises(StoreError, match="line 2"):
            store.merge(tmp_path / "export")
        assert store.rows() == []

    def test_an_export_that_fails_leaves_the_earlier_one(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.add([ROW])
        store.export(tmp_path / "export")
        before = (tmp_path / "export").read_bytes()

        def full(*arguments: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        store.add([replace(ROW, algorithm="other")])
        with pytest.raises(StoreError, match="No space left"):
            store.export(tmp_path / "export")
        assert (tmp_path / "export").read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "export"]


class TestUnwritable:
    def works_in_memory(self, store: Store) -> None:
        store.record("p", "", "d", [("direct", 1, 0.25, 64)])
        store.record("q", "", "d", [("direct", 1, 0.5, 64)])
        assert store.look_up("p", "", "d")["direct", 1].seconds == 0.25
        assert store.look_up("q", "", "d")["direct", 1].seconds == 0.5
        assert len(store.rows()) == 2

    def test_folder_that_cannot_be_made(self, tmp_path: Path, warnings: Collection[str]) -> None:
        (tmp_path / "file").write_text("a regular file")
        self.works_in_memory(Store(tmp_path / "file" / "tuning.sqlite"))
        assert "JITDNN_CACHE_DIR" in only(warnings)

    def test_full_disk(
        self, store: Store, warnings: Collection[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.add([ROW])

        def full(rows: object) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error

        monkeypatch.setattr(store, "_insert", full)
        store.record("p", "", "d", [("direct", 1, 0.25, 64)])
        assert store.look_up("p", "", "d")["direct", 1].seconds == 0.25
        assert ROW in store.rows()
        assert "disk is full" in only(warnings)

    @pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are another matter there")
    def test_read_only_disk_is_still_read(self, tmp_path: Path) -> None:
        folder = tmp_path / "shipped"
        path = folder / "tuning.sqlite"
        Store(path).record("p", "", "d", [("direct", 1, 0.25, 64)])
        before = path.read_bytes()
        imports = "from pathlib import Path\nfrom jitdnn.planner.store import Store\n"
        script = (
            f"store = Store(Path({str(path)!r}))\n"
            "assert store.look_up('p', '', 'd')['direct', 1].seconds == 0.25\n"
            "store.record('q', '', 'd', [('direct', 1, 0.5, 64)])\n"
            "store.record('r', '', 'd', [('direct', 1, 0.5, 64)])\n"
            "assert store.look_up('q', '', 'd')['direct', 1].seconds == 0.5\n"
            "assert len(store.rows()) == 3\n"
        )
        assert run_without_write_permission(folder, imports, script).count("cannot be written") == 1
        assert path.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner there")
class TestOwners:
    def test_nobody_else_may_read_or_write_it(self, store: Store) -> None:
        mask = os.umask(0o002)  # as systems with a group for every user have it
        try:
            store.add([ROW])
        finally:
            os.umask(mask)
        assert store.path is not None
        assert store.path.stat().st_mode & 0o077 == 0
        assert store.rows() == [ROW]

    def test_a_link_is_not_followed(self, store: Store, warnings: Collection[str], tmp_path: Path) -> None:
        store.add([ROW])
        assert store.path is not None
        store.path.rename(tmp_path / "elsewhere")
        store.path.symlink_to(tmp_path / "elsewhere")
        assert store.rows() == []
        store.add([replace(ROW, algorithm="mine")])
        assert [row.algorithm for row in store.rows()] == ["mine"]
        assert "is a link" in only(warnings)

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
    def test_another_users_is_refused(self, store: Store, warnings: Collection[str]) -> None:
        store.add([ROW])
        assert store.path is not None
        os.chown(store.path, 65534, 65534)
        before = store.path.read_bytes()
        assert store.rows() == []
        store.add([replace(ROW, algorithm="mine")])
        assert [row.algorithm for row in store.rows()] == ["mine"]
        assert "belongs to user 65534" in only(warnings)
        assert store.path.read_bytes() == before

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")
    def test_a_folder_that_may_not_be_entered(self, tmp_path: Path) -> None:
        folder = tmp_path / "closed"
        Store(folder / "tuning.sqlite").add([ROW])
        folder.chmod(0o700)
        script = (
            "import logging, os, secrets, sqlite3\nfrom pathlib import Path\n"
            "from jitdnn.planner.store import Store\nos.setgid(65534)\nos.setuid(65534)\n"
            f"store = Store(Path({str(folder / 'tuning.sqlite')!r}))\n"
            "assert store.rows() == []\n"
            "store.record('q', '', 'd', [('direct', 1, 0.5, 64)])\n"
            "assert len(store.rows()) == 1\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env=environment(JITDNN_LOG="warning"),
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("cannot be written") == 1


def test_of_damaged_files_one_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "tuning.sqlite")
    for _ in range(3):
        (tmp_path / "tuning.sqlite").write_bytes(b"this is no database" * 100)
        store.record("a", "", "device", [("one", 1, 1e-3, 0)])
        assert len(store.look_up("a", "", "device")) == 1
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
