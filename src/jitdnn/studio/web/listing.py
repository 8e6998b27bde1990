"""Runs as the tables of pages show them: joined with their data set, filtered and cut by the database."""

from __future__ import annotations

from typing import Final

from fastapi import HTTPException

from jitdnn.studio import texts
from jitdnn.studio.store import Row, Store
from jitdnn.studio.web.words import STATES, TABLES

#: runs in a page of a table
PAGE: Final = 50
_JOINED = """SELECT run.*, dataset.name AS dataset_name, dataset.train AS images, dataset.task AS task
  FROM run LEFT JOIN dataset ON dataset.id = run.dataset"""


#: runs that people see in lists: trials of sweeps are on the page of their sweep
LISTED: Final = "hidden = 0 AND trial = '{}'"
HIDDEN: Final = "hidden = 1 AND trial = '{}'"


def runs(store: Store, q: str = "", start: int = 0, count: int = PAGE, where: str = LISTED) -> list[Row]:
    """The newest runs first, those that have every word of `q` in name, net, data set, note, author or state."""
    words = q.split()[:8]
    fits = " AND ".join([where, *["about LIKE ? ESCAPE '\\'"] * len(words)])
    called = {state: texts.said(marked).replace("'", "''") for state, marked in STATES.items()}
    states = " ".join(f"WHEN '{state}' THEN '{state} {called[state]}'" for state in STATES)
    about = f"""run.name || ' ' || run.net_name || ' ' || coalesce(dataset.name, '') || ' ' || run.note || ' '
      || run.author || ' ' || CASE run.state {states} ELSE run.state END"""
    sql = f"SELECT * FROM ({_JOINED.replace('run.*,', f'run.*, {about} AS about,')}) WHERE {fits}"
    found = store.rows(f"{sql} ORDER BY id DESC LIMIT ? OFFSET ?", *map(_pattern, words), count, start)
    return [_with_spark(store, row) for row in found]


def find(store: Store, number: int) -> Row | None:
    """One run with its data set's name, task and number of training images."""
    found = store.rows(f"{_JOINED} WHERE run.id = ?", number) if 0 <= number < 1 << 63 else []
    return found[0] if found else None


def run(store: Store, number: int) -> Row:
    """One run as `find`; 404."""
    found = find(store, number)
    if found is None:
        raise HTTPException(
            404,
            texts.text("There is no %(thing)s %(number)d.", thing=texts.said(TABLES["run"]), number=number),
        )
    return found


def public(row: Row) -> Row:
    """A row as the API gives it: without the worker's secret and what was joined for tables."""
    return {name: value for name, value in row.items() if name not in ("token", "about")}


def count(store: Store, table: str, where: str = "1") -> int:
    """How many rows of a table there are."""
    return int(store.db.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()[0])


def _with_spark(store: Store, row: Row) -> Row:
    row.pop("about", None)
    row["spark"] = store.spark(row["id"])
    return row


def _pattern(word: str) -> str:
    for special in "\\%_":
        word = word.replace(special, "\\" + special)
    return f"%{word}%"
