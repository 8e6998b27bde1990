"""Output for people and for pipes: rich tables and moving bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

Advance = Callable[[int, str], None]


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """A table on a terminal, else lines of tab-separated cells under a line of column names.

    `right` has an `r` for every column that is aligned to the right, for instance "lrr".
    """
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in rows:
            print("\t".join(row))
        return
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if right[number : number + 1] == "r" else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def say(text: str = "", file: TextIO | None = None) -> None:
    """A line of output, at once even into a pipe; to standard output unless another file is given."""
    print(text, file=file, flush=True)


@contextmanager
def progress(total: int, what: str, is_quiet: bool = False) -> Iterator[Advance]:
    """A bar on standard error while the context is open; `advance(done, note)` moves it.

    `is_quiet` is for measurements: nothing happens between two calls of `advance`, where otherwise a thread
    keeps the clock of the bar going. Where standard error is no terminal there is no bar: what is done is
    said by the lines that a command prints.
    """
    if not sys.stderr.isatty():
        yield lambda done, note: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[note]}", style="dim"),
    )  # fmt: skip
    # lines that are printed meanwhile go above the bar, unless they go somewhere else
    above = sys.stdout.isatty()
    with Progress(
        *columns,
        console=Console(stderr=True),
        redirect_stdout=above,
        transient=True,
        auto_refresh=not is_quiet,
    ) as bar:
        task = bar.add_task(what, total=total, note="")
        yield lambda done, note: bar.update(task, completed=done, note=note, refresh=is_quiet)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A line on standard error while a measurement runs whose end is not known; none where that is no
    terminal."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
