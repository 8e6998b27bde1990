"""The tables, and the way from each older version of them to the newest.

`PRAGMA user_version` is the number of steps that a file has behind it. Steps only lead forwards; before the first of
them a copy of the file is kept beside it, named after the version that it has.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from jitdnn.errors import StoreError
from jitdnn.files import whole

#: one script a version; what was released is never edited
STEPS: Final = (
    """
    CREATE TABLE dataset (
      id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, task TEXT NOT NULL DEFAULT 'classification',
      source TEXT NOT NULL DEFAULT '', path TEXT NOT NULL DEFAULT '', shape TEXT NOT NULL DEFAULT '[]',
      classes TEXT NOT NULL DEFAULT '[]', counts TEXT NOT NULL DEFAULT '{}',
      train INTEGER NOT NULL DEFAULT 0, val INTEGER NOT NULL DEFAULT 0, test INTEGER NOT NULL DEFAULT 0,
      split_seed INTEGER NOT NULL DEFAULT 0, settings TEXT NOT NULL DEFAULT '{}', notes TEXT NOT NULL DEFAULT '[]',
      state TEXT NOT NULL DEFAULT 'ready', message TEXT NOT NULL DEFAULT '', digest TEXT NOT NULL DEFAULT '',
      bytes INTEGER NOT NULL DEFAULT 0, made REAL NOT NULL
    );
    CREATE TABLE run (
      id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, kind TEXT NOT NULL DEFAULT 'train',
      dataset INTEGER REFERENCES dataset, net_name TEXT NOT NULL DEFAULT '', options TEXT NOT NULL DEFAULT '{}',
      state TEXT NOT NULL DEFAULT 'queued', intent TEXT NOT NULL DEFAULT '', lease INTEGER NOT NULL DEFAULT 0,
      place INTEGER REFERENCES place, wants TEXT NOT NULL DEFAULT '', priority INTEGER NOT NULL DEFAULT 0,
      position REAL NOT NULL DEFAULT 0, pid INTEGER, host TEXT NOT NULL DEFAULT '', beat REAL,
      iteration INTEGER NOT NULL DEFAULT 0, max_iter INTEGER NOT NULL DEFAULT 0, loss REAL, accuracy REAL,
      best REAL, best_at INTEGER, speed REAL, seconds REAL NOT NULL DEFAULT 0, message TEXT NOT NULL DEFAULT '',
      note TEXT NOT NULL DEFAULT '', hidden INTEGER NOT NULL DEFAULT 0, parent INTEGER REFERENCES run,
      token TEXT NOT NULL DEFAULT '', bytes INTEGER NOT NULL DEFAULT 0, started REAL, ended REAL, made REAL NOT NULL
    );
    CREATE INDEX run_of_state ON run (state, priority, position);
    CREATE INDEX run_of_dataset ON run (dataset);
    CREATE INDEX run_of_parent ON run (parent);
    CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL);
    INSERT INTO clock VALUES (1, 0);
    CREATE TABLE point (
      run INTEGER NOT NULL, series INTEGER NOT NULL, iteration INTEGER NOT NULL, seq INTEGER NOT NULL, value REAL,
      PRIMARY KEY (run, series, iteration)
    ) WITHOUT ROWID;
    CREATE INDEX point_of_seq ON point (run, seq);
    CREATE TABLE level (
      run INTEGER NOT NULL, series INTEGER NOT NULL, level INTEGER NOT NULL, bucket INTEGER NOT NULL,
      count INTEGER NOT NULL, mean REAL, low REAL, low_at INTEGER, high REAL, high_at INTEGER, last INTEGER NOT NULL,
      smooth BLOB NOT NULL, PRIMARY KEY (run, series, level, bucket)
    ) WITHOUT ROWID;
    CREATE TABLE mark (
      id INTEGER PRIMARY KEY, run INTEGER NOT NULL, seq INTEGER NOT NULL, time REAL NOT NULL,
      iteration INTEGER NOT NULL, text TEXT NOT NULL
    );
    CREATE INDEX mark_of_run ON mark (run, seq);
    CREATE TABLE evaluation (
      id INTEGER PRIMARY KEY, run INTEGER NOT NULL, weights TEXT NOT NULL DEFAULT '', part TEXT NOT NULL DEFAULT 'test',
      matrix TEXT NOT NULL DEFAULT '[]', per_class TEXT NOT NULL DEFAULT '[]', summary TEXT NOT NULL DEFAULT '{}',
      predictions TEXT NOT NULL DEFAULT '', made REAL NOT NULL
    );
    CREATE INDEX evaluation_of_run ON evaluation (run);
    CREATE TABLE place (
      id INTEGER PRIMARY KEY, executor TEXT NOT NULL DEFAULT 'local', host TEXT NOT NULL DEFAULT '',
      device TEXT NOT NULL DEFAULT 'cpu', name TEXT NOT NULL DEFAULT '', slots INTEGER NOT NULL DEFAULT 1,
      state TEXT NOT NULL DEFAULT 'free', message TEXT NOT NULL DEFAULT '', settings TEXT NOT NULL DEFAULT '{}',
      beat REAL, made REAL NOT NULL, UNIQUE (executor, host, device)
    );
    CREATE TABLE setting (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    """,
    """
    ALTER TABLE run ADD COLUMN best_of TEXT NOT NULL DEFAULT '';
    ALTER TABLE run ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE run ADD COLUMN died_at INTEGER;
    """,
    """
    ALTER TABLE run ADD COLUMN trial TEXT NOT NULL DEFAULT '{}';
    """,
    """
    ALTER TABLE dataset ADD COLUMN author TEXT NOT NULL DEFAULT '';
    ALTER TABLE run ADD COLUMN author TEXT NOT NULL DEFAULT '';
    ALTER TABLE mark ADD COLUMN author TEXT NOT NULL DEFAULT '';
    """,
)
VERSION: Final = len(STEPS)
#: text columns that hold JSON, by table: rows come with them decoded
JSON_COLUMNS: Final = {
    "dataset": ("shape", "classes", "counts", "settings", "notes"),
    "run": ("options", "trial"),
    "evaluation": ("matrix", "per_class", "summary"),
    "place": ("settings",),
}


def prepare(path: Path) -> None:
    """Make the file if it is not there, and bring an older one to the newest schema, with a copy of it kept.

    Raises StoreError for a file that a newer version wrote, for one that is no database, and where nothing can be
    written.
    """
    try:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
            found = _version(db)
            if found == VERSION:
                return
            if found > VERSION:
                raise StoreError(
                    f"{path} has schema {found}, and this version of jitdnn knows those up to {VERSION}: "
                    "install the newer version that wrote it"
                )
            if found or db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                _keep_copy(db, path, found)
            db.execute("PRAGMA journal_mode = WAL")
            _climb(db)
    except sqlite3.Error as error:
        raise StoreError(
            f"{path} cannot be opened: {error}; copies of older versions are beside it as *.copy"
        ) from error


def _climb(db: sqlite3.Connection) -> None:
    """All steps that are missing, in one transaction: another process may have made them meanwhile."""
    db.execute("BEGIN EXCLUSIVE")
    try:
        for number, script in enumerate(STEPS[_version(db) :], _version(db) + 1):
            for statement in script.split(";"):
                if statement.strip():
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _keep_copy(db: sqlite3.Connection, path: Path, version: int) -> None:
    copy = path.with_name(f"{path.name}.schema-{version}.copy")
    if not copy.exists():
        with whole(copy) as unfinished:
            db.execute("VACUUM INTO ?", (str(unfinished),))


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
