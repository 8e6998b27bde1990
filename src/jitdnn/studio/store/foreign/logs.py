"""Logs of Caffe, as its program and DIGITS' jobs write them, and tables of curves.

Iteration 100 (53.2 iter/s, 1.9s/100 iters), loss = 0.21        Iteration 100, lr = 0.01
Iteration 500, Testing net (#0)                                  Test net output #0: accuracy = 0.98
"""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any, Final

from jitdnn.errors import InvalidArgument
from jitdnn.studio.store.foreign.found import MOST_POINTS, MOST_SERIES, Found, is_point, series_name

MOST_BYTES: Final = 1 << 30
_NUMBER: Final = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf))"
_LOSS: Final = re.compile(rf"Iteration (\d+)(?: \(.*?\))?, loss = {_NUMBER}", re.IGNORECASE)
_RATE: Final = re.compile(rf"Iteration (\d+), lr = {_NUMBER}", re.IGNORECASE)
_TESTING: Final = re.compile(r"Iteration (\d+), Testing net \(#(\d+)\)")
_OUTPUT: Final = re.compile(rf"Test net output #\d+: (\S+) = {_NUMBER}", re.IGNORECASE)
_STEPS: Final = ("iteration", "iter", "numiters", "step", "_step", "global_step", "epoch")


def read_log(path: Path, name: str, kind: str = "Caffe") -> Found:
    """The run of a log. Raises InvalidArgument for a file without a line of an iteration."""
    found = Found(name, kind)
    test, prefix = 0, "val "
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if match := _LOSS.search(line):
                _keep(found, "loss", match[1], match[2])
            elif match := _RATE.search(line):
                _keep(found, "lr", match[1], match[2])
            elif match := _TESTING.search(line):
                test, prefix = int(match[1]), "val " if match[2] == "0" else f"val {match[2]} "
            elif match := _OUTPUT.search(line):
                _keep(found, prefix + match[1], str(test), match[2])
            if len(found.points) > MOST_POINTS:
                raise InvalidArgument(f"{path.name} has more than {MOST_POINTS:,} points")
    if not found.points:
        raise InvalidArgument(f"{path.name} has no line of an iteration: it is no log of Caffe")
    return found


def read_table(path: Path, name: str) -> Found:
    """The run of a .csv or .jsonl file whose rows have a number of the step and values. Raises InvalidArgument."""
    rows = _json_rows(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _csv_rows(path)
    found = Found(name, "Table")
    for number, row in enumerate(rows):
        step = next((row[key] for key in row if key.strip().lower() in _STEPS), number)
        try:
            at = int(float(step))
        except (TypeError, ValueError, OverflowError):
            continue
        for key, value in row.items():
            if key.strip().lower() in _STEPS or key.startswith("_"):
                continue
            try:
                real = float(value)
            except (TypeError, ValueError):
                continue
            if is_point(at, real) and not (isinstance(value, str) and not value.strip()):
                found.points.append((series_name(key), at, real))
        if len(found.points) > MOST_POINTS:
            raise InvalidArgument(f"{path.name} has more than {MOST_POINTS:,} points")
    if not found.points:
        raise InvalidArgument(f"{path.name} has no numbers in columns with a name")
    return found


def _keep(found: Found, name: str, at: str, value: str) -> None:
    if len(at) < 16 and not math.isnan(real := float(value)):
        found.points.append((name, int(at), real))


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        try:
            reader = csv.DictReader(file)
            if len(reader.fieldnames or ()) > MOST_SERIES:
                raise InvalidArgument(f"{path.name} has more than {MOST_SERIES:,} columns")
            return [{key: value for key, value in row.items() if isinstance(key, str)} for row in reader]
        except csv.Error as error:
            raise InvalidArgument(f"{path.name} is no table: {error}") from None


def _json_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError):
                raise InvalidArgument(f"{path.name}, line {number} is no JSON") from None
            if isinstance(row, dict):
                rows.append(row)
    return rows
