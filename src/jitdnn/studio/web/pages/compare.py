"""Runs beside each other: curves over one another, what differs between them, and nothing of what does not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from jitdnn.studio.store import Row, original_text
from jitdnn.studio.web import listing, words
from jitdnn.studio.web.charts import SMOOTHING, Chart, charts
from jitdnn.studio.web.context import Here, Route, Studio, page

router = APIRouter(route_class=Route)
#: runs that are compared at a time, and lines of a difference between nets that are shown
MOST: Final = 24
LINES: Final = 400
_HEIGHT: Final = 220
Runs = Annotated[list[int] | None, Query(max_length=200)]


@router.get("/compare", include_in_schema=False)
def compare_page(request: Request, studio: Here, run: Runs = None) -> Response:
    found = _runs(studio, run)
    differing = differences(found)
    return page(
        request, "compare.html", runs=found, names=differing, charts=_charts(studio, found), smoothing=SMOOTHING,
        axes=parallel(found, differing), nets=_nets(studio, found),
    )  # fmt: skip


@router.get("/api/compare")
def compare(studio: Here, run: Runs = None) -> dict[str, Any]:
    """Runs, and the options in which they differ."""
    found = _runs(studio, run)
    return {"runs": [listing.public(row) for row in found], "differ": differences(found)}


def _runs(studio: Studio, numbers: Sequence[int] | None) -> list[Row]:
    return [listing.run(studio.store, number) for number in dict.fromkeys(numbers or [])][:MOST]


def differences(runs: Sequence[Row]) -> list[str]:
    """The options that are not the same in all runs, in the order in which they are kept."""
    names = list(dict.fromkeys(name for run in runs for name in run["options"]))
    return [name for name in names if len({str(run["options"].get(name)) for run in runs}) > 1]


def _charts(studio: Studio, runs: Sequence[Row]) -> list[Chart]:
    names = sorted({name for run in runs for name in studio.store.series_names(run["id"])})
    return charts(names, runs[0].get("task") if runs else None)


def parallel(runs: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Axes of parallel coordinates, accuracy the last: title, ends, and the height of each run on it (0 is the top).

    Numbers lie by their value, words in their order; what a run has not is None.
    """
    columns = [(name, [run["options"].get(name) for run in runs]) for name in names]
    columns.append(("best accuracy", [run["best"] for run in runs]))
    axes = []
    for name, values in columns:
        held = [value for value in values if value not in (None, "", [])]
        if not held:
            continue
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in held):
            low, high = min(held), max(held)
            places = [None if v in (None, "") else (v - low) / ((high - low) or 1) for v in values]
            ends = [words.number(low), words.number(high)]
        else:
            known = sorted({str(value) for value in held})
            step = max(len(known) - 1, 1)
            places = [known.index(str(v)) / step if str(v) in known else None for v in values]
            ends = [known[0], known[-1]] if len(known) > 1 else [known[0], known[0]]
        heights = [None if place is None else round(_HEIGHT * (1 - place), 1) for place in places]
        axes.append({"name": name, "low": ends[0][:14], "high": ends[1][:14], "heights": heights})
    return axes


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
