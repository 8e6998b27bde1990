"""Tables of comma-separated values: pictures with labels, pictures with boxes, or rows of numbers."""

from __future__ import annotations

import csv
import io
import math
import posixpath
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from jitdnn import limits
from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.boxes import Boxes
from jitdnn.studio.data.containers import Container
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.folders import group_of, is_picture, natural, part_of
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.readers import Pictures, Rows

MOST_ROWS: Final = 5_000_000
MOST_COLUMNS: Final = 4096
#: more texts than this are no classes, but names or notes
MOST_CLASSES: Final = 10_000
_LABELS = ("label", "labels", "class", "classes", "category", "target", "y", "species", "tag", "tags")
_PARTS = ("part", "split", "set", "subset", "fold", "usage")
_CORNERS = (("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"), ("left", "top", "right", "bottom"))
_SEVERAL = re.compile(r"\s*[;|]\s*")


class Table:
    """Rows of text with named columns."""

    def __init__(self, text: str, what: str) -> None:
        """Raises InvalidArgument for what is no table, naming the line that has another number of cells."""
        self.what = what
        delimiter = max(",;\t", key=lambda sign: text.split("\n", 1)[0].count(sign))
        self.columns: list[str] = []
        self.rows: list[list[str]] = []
        limit = csv.field_size_limit(limits.PROTOTXT_STRING)
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
            first = next((row for row in reader if row), [])
            if not first or len(first) > MOST_COLUMNS:
                raise InvalidArgument(f"{what} has {len(first):,} columns: 1 to {MOST_COLUMNS:,} are read")
            has_names = not any(_number(cell) is not None for cell in first) and not any(
                map(is_picture, first)
            )
            width = len(first)
            self.columns = (
                [name.strip() for name in first]
                if has_names
                else [f"column {k}" for k in range(1, width + 1)]
            )
            if not has_names:
                self.rows.append(first)
            for row in reader:
                if not row:
                    continue
                if len(row) != width:
                    raise InvalidArgument(
                        f"{what}, line {reader.line_num}: {len(row)} cells, and the first line has {width}"
                    )
                self.rows.append(row)
                if len(self.rows) > MOST_ROWS:
                    raise InvalidArgument(f"{what} has more than {MOST_ROWS:,} rows")
        except csv.Error as error:
            raise InvalidArgument(f"{what} is no table: {error}") from None
        finally:
            csv.field_size_limit(limit)
        if not self.rows:
            raise InvalidArgument(f"{what} has no rows")

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        at = self.columns.index(name)
        return [row[at].strip() for row in self.rows]

    def find(self, names: Sequence[str]) -> str | None:
        """The first column whose name is one of these, whatever its case."""
        return next((column for name in names for column in self.columns if column.lower() == name), None)


def list_table(
    container: Container | None, name: str, text: str, names: Sequence[str], options: Options
) -> Listing:
    """The listing of a table, whose pictures, if it names any, lie in a container; `names` are the files there.

    Raises InvalidArgument for what makes no data set.
    """
    table = Table(text, name)
    asked = [column.strip() for column in options.labels.split(",") if column.strip()]
    for column in asked:
        if column not in table.columns:
            raise InvalidArgument(f"{name} has no column {column!r}; it has {', '.join(table.columns[:30])}")
    files = next((c for c in table.columns if all(is_picture(cell) for cell in table.column(c)[:50])), None)
    part, group = table.find(_PARTS), options.group if options.group in table.columns else None
    if part and not any(part_of(cell) for cell in set(table.column(part))):
        part = None
    parts: list[str | None] = [None] * len(table.rows)
    if part:
        parts = [part_of(cell) for cell in table.column(part)]
    groups = _groups(table, group, files, options)
    taken = {column for column in (files, part, group) if column}
    corners = next((found for c in _CORNERS if all(found := [table.find([each]) for each in c])), None)
    if files and container is None:
        raise InvalidArgument(
            f"{name} names pictures: pack it with them in a zip file, or give the folder's path"
        )
    if files and corners and options.task in ("", "detection"):
        assert container is not None
        return _boxes(table, container, names, files, [str(c) for c in corners], parts, groups, options)
    labels = asked or _label_columns(table, taken, is_rows=not files)
    values = _Labels(table, labels, options.task)
    if not files:
        return _rows(
            table, [c for c in table.columns if c not in taken and c not in labels], values, parts, groups
        )
    assert container is not None
    where, missing = _located(table.column(files), name, names)
    entries = [
        Entry(shown, where[shown], value, of, together)
        for shown, value, of, together in zip(table.column(files), values.values, parts, groups, strict=True)
        if shown in where
    ]
    columns = len(values.classes or labels) if values.task != "classification" else 0
    listing = Listing(values.task, entries, values.classes or labels, Pictures(container, options, columns))
    listing.kind, listing.columns, listing.skipped = "a table of pictures", table.columns, missing
    listing.notes.append(f"labels are taken from {', '.join(repr(label) for label in labels[:8])}")
    if missing:
        listing.notes.append(
            f"{len(missing):,} pictures that {name} names are not there: {missing[0][0]}, for one"
        )
    return listing


class _Labels:
    """The labels of a table: `task`, `classes` (names of them, or of columns for several), and `values` by row."""

    def __init__(self, table: Table, columns: list[str], task: str) -> None:
        cells = [table.column(column) for column in columns]
        numbers = [_numbers(column) for column in cells]
        is_number = [column is not None for column in numbers]
        self.classes: list[str] = []
        if not columns:
            raise InvalidArgument(f"{table.what} has no column that could be a label: name one")
        several = not is_number[0] and len(columns) == 1 and any(_SEVERAL.search(cell) for cell in cells[0])
        if task == "multi-label" and len(columns) == 1 and not is_number[0]:
            several = True
        if several and task in ("", "multi-label"):
            self._tags(cells[0])
        elif all(is_number) and (
            len(columns) > 1 or task in ("regression", "multi-label") or _is_measure(numbers[0])
        ):
            stacked = np.array(numbers, np.float64).T
            only_bits = bool(np.isin(stacked, (0, 1)).all())
            self.task = task or ("multi-label" if only_bits and len(columns) > 1 else "regression")
            if self.task == "multi-label" and not only_bits:
                raise InvalidArgument(f"{table.what}: columns of several labels hold 0 and 1 only")
            self.classes = columns if self.task == "multi-label" else []
            self.values: list[Any] = [tuple(row) for row in stacked.tolist()]
        elif task == "regression" or len(columns) > 1:
            raise InvalidArgument(
                f"{table.what}: every cell of {', '.join(columns)} must be a number: {_first_text(cells)!r} is none"
            )
        else:
            self.task = "classification"
            self.classes = sorted({cell for cell in cells[0] if cell}, key=natural)
            if len(self.classes) > MOST_CLASSES:
                raise InvalidArgument(
                    f"{table.what}: {columns[0]} has {len(self.classes):,} different texts: no classes"
                )
            place = {name: k for k, name in enumerate(self.classes)}
            self.values = [place.get(cell, -1) for cell in cells[0]]

    def _tags(self, cells: list[str]) -> None:
        """One column that names several classes in each cell."""
        split = [[tag for tag in _SEVERAL.split(cell) if tag] for cell in cells]
        self.task, self.classes = "multi-label", sorted({tag for tags in split for tag in tags}, key=natural)
        if len(self.classes) > MOST_COLUMNS:
            raise InvalidArgument(
                f"there are {len(self.classes):,} different labels: at most {MOST_COLUMNS:,}"
            )
        self.values = [tuple(float(name in tags) for name in self.classes) for tags in map(set, split)]


def _label_columns(table: Table, taken: set[str], is_rows: bool) -> list[str]:
    """The columns that are labels, where nobody says: one that is called so; for pictures all others; for rows the last
    column of texts, or the last one.
    """
    named = table.find(_LABELS)
    if named and named not in taken and (is_rows or named.lower() != "y"):  # beside x it is a place
        return [named]
    rest = [column for column in table.columns if column not in taken]
    if not is_rows:
        numbers = [column for column in rest if _numbers(table.column(column)) is not None]
        return numbers if numbers and len(numbers) == len(rest) else [c for c in rest if c not in numbers][:1]
    texts = [column for column in rest if _numbers(table.column(column)) is None]
    return texts[-1:] or rest[-1:]


def _rows(
    table: Table, features: list[str], labels: _Labels, parts: list[str | None], groups: list[str]
) -> Listing:
    """Rows of numbers: N x 1 x 1 x K."""
    columns = {name: _numbers(table.column(name)) for name in features}
    kept = [name for name, values in columns.items() if values is not None]
    if not kept:
        raise InvalidArgument(
            f"{table.what} names no pictures, and has no columns of numbers beside its label"
        )
    data = np.array([columns[name] for name in kept], np.float32).T[:, np.newaxis, np.newaxis, :]
    is_class = labels.task == "classification"
    targets = np.array(labels.values, np.int64 if is_class else np.float32)
    entries = [
        Entry(f"row {k + 1}", k, labels.values[k], parts[k], groups[k])
        for k in range(len(data))
        if not is_class or labels.values[k] >= 0
    ]
    left = [name for name in features if name not in kept]
    listing = Listing(
        labels.task, entries, labels.classes, Rows(np.ascontiguousarray(data), targets), "a table"
    )
    listing.columns = kept
    if left:
        listing.notes.append(f"columns that are no numbers are left out: {', '.join(left[:8])}")
    return listing


def _boxes(
    table: Table, container: Container, names: Sequence[str], files: str, corners: list[str],
    parts: list[str | None], groups: list[str], options: Options,
) -> Listing:  # fmt: skip
    """One row a box: the boxes of each picture together."""
    named = table.find(_LABELS)
    labels = table.column(named) if named else ["object"] * len(table.rows)
    classes = sorted({label for label in labels if label}, key=natural)
    place = {name: k for k, name in enumerate(classes)}
    sides = [_numbers(table.column(corner)) for corner in corners]
    if any(side is None for side in sides):
        raise InvalidArgument(f"{table.what}: {', '.join(corners)}: every cell must be a number")
    shown = table.column(files)
    where, missing = _located(shown, table.what, names)
    held: dict[str, list[tuple[float, ...]]] = {name: [] for name in where}
    first = {name: k for k, name in reversed(list(enumerate(shown)))}
    for k, name in enumerate(shown):
        box = tuple(side[k] for side in sides if side is not None)
        if name in held and labels[k] and box[2] > box[0] and box[3] > box[1]:
            held[name].append((place[labels[k]], *box))
    is_part = all(0 <= value <= 1 for side in sides if side is not None for value in side)
    unit = "parts" if is_part else "pixels"
    entries = [
        Entry(name, where[name], (unit, tuple(boxes)), parts[first[name]], groups[first[name]])
        for name, boxes in held.items()
    ]
    most = max((len(boxes) for boxes in held.values()), default=0)
    listing = Listing("detection", entries, classes, Boxes(container, options, most), "a table of boxes")
    listing.columns, listing.skipped = table.columns, missing
    return listing


def _groups(table: Table, group: str | None, files: str | None, options: Options) -> list[str]:
    if group:
        return table.column(group)
    pattern = options.pattern()
    if not files or pattern is None:
        if options.group and not files:
            raise InvalidArgument(
                f"{table.what} has no column {options.group!r} to keep together what agrees in it"
            )
        return [""] * len(table.rows)
    return [group_of(cell, pattern) for cell in table.column(files)]


def _located(
    shown: Sequence[str], table: str, names: Sequence[str]
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Where the pictures that a table names lie: beside it, from the top, or the one file of that name; and those that
    are nowhere.
    """
    there = set(names)
    base = posixpath.dirname(table)
    tails: dict[str, list[str]] = {}
    for name in names:
        tails.setdefault(posixpath.basename(name), []).append(name)
    where: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    for cell in dict.fromkeys(shown):
        plain = posixpath.normpath(cell.replace("\\", "/").lstrip("/"))
        tried = [posixpath.normpath(posixpath.join(base, plain)), plain]
        same = tails.get(posixpath.basename(plain), [])
        found = next((path for path in tried if path in there), None)
        found = found or next((path for path in same if path.endswith("/" + plain)), None)
        found = found or (same[0] if len(same) == 1 else None)
        if found:
            where[cell] = found
        else:
            missing.append((cell, "the table names it, and it is not there"))
    if not where:
        raise InvalidArgument(
            f"none of the {len(missing):,} pictures that {table} names is there: {missing[0][0]}, for one"
        )
    return where, missing


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _numbers(cells: Sequence[str]) -> list[float] | None:
    """The cells as numbers, None if one of them is none."""
    found = [_number(cell) for cell in cells]
    return None if any(value is None for value in found) else [value for value in found if value is not None]


def _first_text(columns: Sequence[Sequence[str]]) -> str:
    """The first cell that is no number."""
    return next((cell for column in columns for cell in column if _number(cell) is None), "")[:60]


def _is_measure(values: list[float] | None) -> bool:
    """Whether numbers of one column are measurements: any is no whole number, or there are very many of them."""
    if values is None:
        return False
    different = set(values)
    return any(value != int(value) for value in different) or len(different) > max(50, len(values) // 4)
