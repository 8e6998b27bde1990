"""Runs beside each other: curves over one another, what differs between them, and nothing of what does not."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from jitdnn.studio import texts
from jitdnn.studio.csv_text import csv_text
from jitdnn.studio.store import Row, original_text
from jitdnn.studio.web import curve_files, listing, words
from jitdnn.studio.web.charts import SMOOTHING, Chart, charts
from jitdnn.studio.web.context import Here, Route, Studio, csv_file, page

router = APIRouter(route_class=Route)
#: runs that are compared at a time: each of eight colours as a line, dashes and dots
MOST: Final = 24
COLOURS: Final = 8
#: lines of a difference between nets that are shown
LINES: Final = 400
_HEIGHT: Final = 220
Runs = Annotated[list[int] | None, Query(max_length=200)]


@router.get("/compare", include_in_schema=False)
def compare_page(request: Request, studio: Here, run: Runs = None) -> Response:
    found, more = _runs(studio, run)
    differing = differences(found)
    return page(
        request, "compare.html", runs=found, more=more, names=differing, charts=_charts(studio, found),
        smoothing=SMOOTHING, axes=parallel(found, differing), nets=_nets(studio, found), best=measure(found),
        looks=[f"s{at % COLOURS} d{at // COLOURS}" for at in range(MOST)],
    )  # fmt: skip


@router.get("/api/compare")
def compare(studio: Here, run: Runs = None) -> dict[str, Any]:
    """Runs, at most 24, and the options in which they differ; `more` says how many were left out."""
    found, more = _runs(studio, run)
    return {"runs": [listing.public(row) for row in found], "differ": differences(found), "more": more}


@router.get("/api/compare.csv", response_class=Response)
def compare_csv(studio: Here, run: Runs = None) -> Response:
    """The table of a comparison: a line for each run, with all options."""
    return csv_file(_table(_runs(studio, run)[0]), "comparison.csv")


@router.get("/api/compare/series.csv", response_class=Response)
def series_csv(studio: Here, name: Annotated[list[str], Query(max_length=50)], run: Runs = None) -> Response:
    """Curves of several runs: a line for each iteration, a column for each run and series."""
    found, _ = _runs(studio, run)
    columns = [
        (each["id"], series, f"{series} of {each['name']} ({each['id']})")
        for each in found
        for series in name
    ]
    return csv_file(curve_files.lines(studio.store, columns), "curves.csv")


def _table(runs: Sequence[Row]) -> Iterator[str]:
    known = (
        "id",
        "name",
        "state",
        "net_name",
        "dataset_name",
        "best_of",
        "best",
        "best_at",
        "loss",
        "seconds",
    )
    options = list(dict.fromkeys(name for run in runs for name in run["options"]))
    yield csv_text([[*known, *options]])
    for run in runs:
        yield csv_text(
            [[*(run[name] for name in known), *(_plain(run["options"].get(name)) for name in options)]]
        )


def _plain(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _runs(studio: Studio, numbers: Sequence[int] | None) -> tuple[list[Row], int]:
    """The runs, each once, and how many are left out."""
    asked = list(dict.fromkeys(numbers or []))
    found = [listing.run(studio.store, number) for number in asked]
    return found[:MOST], len(found[MOST:])


def measure(runs: Sequence[Row]) -> str:
    """What `best` is in all of these runs: "best accuracy", "best loss", or "best" where they differ."""
    kinds = {run["best_of"] == "val loss" for run in runs if run["best"] is not None}
    if len(kinds) != 1:
        return texts.mark("best")
    return texts.mark("best loss") if kinds.pop() else texts.mark("best accuracy")


def differences(runs: Sequence[Row]) -> list[str]:
    """The options that are not the same in all runs, in the order in which they are kept."""
    names = list(dict.fromkeys(name for run in runs for name in run["options"]))
    return [name for name in names if len({str(run["options"].get(name)) for run in runs}) > 1]


def _charts(studio: Studio, runs: Sequence[Row]) -> list[Chart]:
    names = sorted({name for run in runs for name in studio.store.series_names(run["id"])})
    return charts(names, runs[0].get("task") if runs else None)


def parallel(runs: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Axes of parallel coordinates, what runs are judged by the last: title, ends, and the height of each run on it (0
    is the top).

    Numbers lie by their value, infinite ones at the ends, words in their order; what a run has not, or is no number, is
    None.
    """
    columns = [(name, [run["options"].get(name) for run in runs]) for name in names]
    for title, is_loss in ((texts.mark("best accuracy"), False), (texts.mark("best loss"), True)):
        columns.append(
            (title, [run["best"] if (run.get("best_of") == "val loss") is is_loss else None for run in runs])
        )
    axes = []
    for name, values in columns:
        held = [value for value in values if value not in (None, "", [])]
        if not held:
            continue
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in held):
            places, ends = _by_value([None if value in ("", []) else value for value in values])
        else:
            known = sorted({str(value) for value in held})
            step = max(len(known) - 1, 1)
            places = [known.index(str(v)) / step if str(v) in known else None for v in values]
            ends = [known[0], known[-1]] if len(known) > 1 else [known[0], known[0]]
        heights = [None if place is None else round(_HEIGHT * (1 - place), 1) for place in places]
        axes.append(
            {
                "name": name,
                "title": _title(name, names),
                "low": ends[0][:14],
                "high": ends[1][:14],
                "heights": heights,
            }
        )
    return axes


def _title(name: str, options: Sequence[str]) -> str:
    """What an axis is called."""
    return words.option(name) if name in options else words.sentence(texts.said(name))


def _by_value(values: Sequence[float | None]) -> tuple[list[float | None], list[str]]:
    """Where numbers lie from 0 to 1, and what is at both ends. Halves, since a difference of doubles may be none."""
    held = [value for value in values if value is not None and not math.isnan(value)]
    finite = [value / 2 for value in held if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def place(value: float | None) -> float | None:
        if value is None or math.isnan(value):
            return None
        if math.isinf(value):
            return float(value > 0)
        return (value / 2 - low) / ((high - low) or 1.0)

    return [place(value) for value in values], [
        words.number(end) for end in (min(held), max(held))
    ] if held else ["–", "–"]


def _nets(studio: Studio, runs: Sequence[Row]) -> list[Row]:
    """How the net of each run differs from that of the first: lines with their kind, " ", "+", "-" or "@"."""
    texts = [original_text(studio.store.folder(run["id"])).splitlines() for run in runs]
    found = []
    for run, text in zip(runs[1:], texts[1:], strict=True):
        lines = list(difflib.unified_diff(texts[0], text, n=2, lineterm=""))[2:]
        if lines:
            shown = [
                {"kind": line[0], "text": line[1:] if line[0] != "@" else line} for line in lines[:LINES]
            ]
            found.append({"run": run, "lines": shown, "more": max(0, len(lines) - LINES)})
    return found
