"""The store: rows, transactions, many threads and processes, older files, and files that it must refuse."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from jitdnn.errors import InvalidArgument, StoreError
from jitdnn.studio.store import Store, schema


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    with Store(tmp_path / "home") as store:
        data = store.insert(
            "dataset", name="digits", shape=[1, 28, 28], classes=["0", "ö"], counts={"train": [3, 4]}
        )
        run = store.insert("run", name="a", dataset=data, options={"rate": 0.1})
        assert store.one("dataset", data) | {} == store.rows("SELECT * FROM dataset")[0]
        found = store.one("dataset", data)
        assert found is not None
        assert (found["shape"], found["classes"]) == ([1, 28, 28], ["0", "ö"])
        assert store.update("run", run, options={"rate": 0.2}, state="paused")
        assert not store.update("run", run + 1, state="paused")
        found = store.one("run", run)
        assert found is not None
        assert (found["options"], found["state"], found["lease"]) == ({"rate": 0.2}, "paused", 0)
        assert store.one("run", 99) is None
        assert store.setting("quota", 5) == 5
        store.set_setting("quota", {"bytes": 7})
        store.set_setting("quota", {"bytes": 8})
        assert store.setting("quota") == {"bytes": 8}


def test_names_of_tables_and_columns_are_checked(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        with pytest.raises(InvalidArgument, match="run has no column 'name = 1; --'"):
            store.insert("run", **{"name = 1; --": 2})
        with pytest.raises(InvalidArgument, match="no table 'run; DROP TABLE run'"):
            store.one("run; DROP TABLE run", 1)
        run = store.insert("run", name="a")
        with pytest.raises(InvalidArgument, match="no column 'speeed'"):
            store.update("run", run, speeed=1)


def test_a_transaction_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = store.insert("run", name="a")

        def fail() -> None:
            with store.transaction():
                store.add_points(run, [("a new series", 1, 2.0)])
                store.mark(run, 1, "told")
                with store.transaction():
                    store.update("run", run, state="failed")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert store.rows("SELECT * FROM mark") == []
        assert store.rows("SELECT state FROM run") == [{"state": "queued"}]
        store.add_points(run, [("another", 1, 3.0)])
        assert store.since(run).points == {"another": [[1], [3.0]]}


def test_version_tells_of_changes_by_anybody(tmp_path: Path) -> None:
    with Store(tmp_path) as store, Store(tmp_path) as other:
        before = store.version()
        assert store.version() == before
        other.insert("run", name="a")
        assert store.version() != before
        before = store.version()
        store.insert("run", name="b")
        assert store.version() != before


def test_threads_and_processes_write_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from jitdnn.studio.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for k in range(30): store.insert('run', name=sys.argv[2]); store.mark(1, k, sys.argv[2])"
    )
    home = str(tmp_path / "home")  # whose file is made by whoever comes first
    processes = [subprocess.Popen([sys.executable, "-c", code, home, str(k)]) for k in range(3)]
    with Store(tmp_path / "home") as store:
        threads = [
            threading.Thread(target=lambda: [store.mark(2, k, "thread") for k in range(30)]) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [process.wait(60) for process in processes] == [0, 0, 0]
        assert len(store.rows("SELECT id FROM run")) == 90
        numbers = [row["seq"] for row in store.rows("SELECT seq FROM mark ORDER BY id")]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 180
        assert len(store._connections) <= 2  # those of threads that ended are closed when another one begins


def test_an_older_file_is_brought_up_and_a_copy_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        run = store.insert("run", name="of the old version")
        store.add_points(run, [("loss", 1, 0.5)])
    steps = (
        *schema.STEPS,
        "CREATE TABLE later (id INTEGER PRIMARY KEY); ALTER TABLE run ADD COLUMN later TEXT",
    )
    monkeypatch.setattr(schema, "STEPS", steps)
    monkeypatch.setattr(schema, "VERSION", len(steps))
    with Store(tmp_path) as store:
        assert store.rows("SELECT name, later FROM run") == [{"name": "of the old version", "later": None}]
        assert store.since(run).points == {"loss": [[1], [0.5]]}
    copy = tmp_path / f"studio.sqlite.schema-{len(steps) - 1}.copy"
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(steps) - 1,)
        assert db.execute("SELECT name FROM run").fetchone() == ("of the old version",)


def test_a_step_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path).close()
    monkeypatch.setattr(
        schema, "STEPS", (*schema.STEPS, "CREATE TABLE later (id INTEGER); CREATE TABLE run (id)")
    )
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    with pytest.raises(StoreError, match="table run already exists"):
        Store(tmp_path)
    monkeypatch.undo()
    with Store(tmp_path) as store, pytest.raises(InvalidArgument, match="later"):
        store.one("later", 1)


def test_files_that_cannot_be_opened_say_why(tmp_path: Path) -> None:
    Store(tmp_path / "newer").close()
    with closing(sqlite3.connect(tmp_path / "newer" / "studio.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"schema 99.*install the newer version"):
        Store(tmp_path / "newer")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "studio.sqlite").write_bytes(b"no database at all " * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store(tmp_path / "damaged")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        Store(tmp_path / "file" / "home")


def test_a_run_is_forgotten_with_all_that_is_its_own(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        parent, other = store.insert("run", name="a"), store.insert("run", name="b")
        child = store.insert("run", name="c", parent=parent)
        for run in (parent, other):
            store.add_points(run, [("loss", k, 1.0) for k in range(100)])
            store.mark(run, 1, "begun")
            store.insert("evaluation", run=run)
        store.forget_run(parent)
        assert store.one("run", parent) is None
        assert store.rows("SELECT parent FROM run WHERE id = ?", child) == [{"parent": None}]
        for table in ("point", "level", "mark", "evaluation"):
            assert {row["run"] for row in store.rows(f"SELECT run FROM {table}")} == {other}


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_homes_of_all_older_versions_open(tmp_path: Path, version: int) -> None:
    """Made by the steps that there were then, with rows, points and marks as that version wrote them."""
    file = tmp_path / "studio.sqlite"
    with closing(sqlite3.connect(file)) as db:
        for script in schema.STEPS[:version]:
            db.executescript(script)
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("INSERT INTO run (id, name, options, made) VALUES (7, 'old', '{\"batch\": 3}', 1.0)")
        db.execute("INSERT INTO mark (run, seq, time, iteration, text) VALUES (7, 1, 1.0, 5, 'begun')")
        db.execute("UPDATE clock SET seq = 1")
        db.commit()
    with Store(tmp_path) as store:
        row = store.one("run", 7)
        assert row is not None
        assert (row["name"], row["options"], row["trial"], row["deaths"]) == ("old", {"batch": 3}, {}, 0)
        store.add_points(7, [("loss", 6, 0.5)])
        assert store.since(7, 1).points == {"loss": [[6], [0.5]]}
        assert store.insert("run", name="new") == 8
    assert (tmp_path / f"studio.sqlite.schema-{version}.copy").exists()
