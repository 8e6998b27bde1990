"""How good a trained net is: what was taken for what, per class, calibration, and the surest errors, to be mended."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from jitdnn.studio import texts
from jitdnn.studio.look import evaluate
from jitdnn.studio.look.evaluate import name_of
from jitdnn.studio.store import Row
from jitdnn.studio.web import trained_runs
from jitdnn.studio.web.context import Here, Link, Route, csv_file, is_part, page
from jitdnn.studio.web.evaluation_report import report
from jitdnn.studio.web.trained_runs import Part, WeightsName

router = APIRouter(route_class=Route)
TABS = (Link(20, "/evaluation", "check", texts.mark("Evaluation")),)
#: classes in the table of a page, the worst first; CSV has all
CLASSES: Final = 100
PAIRS: Final = 60
Words = Annotated[
    str, Query(max_length=200, description="words that the names of both classes have together")
]
Number = Annotated[int, Query(ge=-1, le=1 << 30)]


@router.get("/runs/{number}/evaluation", include_in_schema=False)
async def evaluation_page(
    request: Request, studio: Here, number: int, part: Part = "", weights: WeightsName = "", q: Words = ""
) -> Response:
    found = trained_runs.trained_run(studio, number, weights)
    if found.chosen is None:
        return page(
            request,
            "evaluation.html",
            progress=None,
            evaluation=None,
            part=part,
            **trained_runs.options_of(found),
        )
    found, row, progress = await trained_runs.evaluated(studio, number, part, weights)
    values = {
        "progress": progress,
        "evaluation": row,
        "part": progress["part"],
        "q": q,
        **trained_runs.options_of(found),
    }
    if row is not None:
        values |= _shown(found, row)
        if q and row["summary"]["task"] == "classification":
            values["pairs"] = await pairs(studio, number, part, weights, q, PAIRS)
    template = "evaluation_found.html" if is_part(request) else "evaluation.html"
    return page(request, template, **values)


@router.get("/api/runs/{number}/evaluation")
async def evaluation(studio: Here, number: int, part: Part = "", weights: WeightsName = "") -> Row:
    """The figures of merit of some weights by a part of the data set; made at the first question, which waits for
    it."""
    while True:
        _, row, _ = await trained_runs.evaluated(studio, number, part, weights, seconds=5)
        if row is not None:
            return row


@router.get("/api/runs/{number}/evaluation/pairs")
async def pairs(
    studio: Here, number: int, part: Part = "", weights: WeightsName = "", q: Words = "",
    most: Annotated[int, Query(ge=1, le=10_000)] = 500,
) -> list[Row]:  # fmt: skip
    """The pairs of classes that were confused most often: true, said, count."""
    row = await evaluation(studio, number, part, weights)
    found = trained_runs.trained_run(studio, number, weights)
    return await studio.inspector.inspect(
        evaluate.find_pairs, studio.home, found.run, found.dataset, row["part"], row["weights"], q, most
    )


@router.get("/api/runs/{number}/evaluation/images")
async def images(
    studio: Here, number: int, said: Number, true: Number = -1, part: Part = "", weights: WeightsName = "",
    most: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[Row]:  # fmt: skip
    """The images of class `true` that were said to be `said`, or without `true` those that are surest of being
    `said`."""
    row = await evaluation(studio, number, part, weights)
    found = trained_runs.trained_run(studio, number, weights)
    return await studio.inspector.inspect(
        evaluate.find_images, studio.home, found.run, row["part"], row["weights"], true, said, most
    )


@router.get("/runs/{number}/evaluation/images", include_in_schema=False)
async def images_page(
    request: Request, studio: Here, number: int, said: Number, true: Number = -1, part: Part = "",
    weights: WeightsName = "",
) -> Response:  # fmt: skip
    found, _ = trained_runs.with_weights(studio, number, weights)
    part = part or found.data.evaluation_part
    listed = await images(studio, number, said, true, part, weights)
    classes = found.dataset["classes"]
    values = trained_runs.options_of(found) | {"part": part, "images": listed, "said": said, "true": true}
    return page(request, "evaluation_images.html", name=lambda k: name_of(classes, k), **values)


@router.get("/api/runs/{number}/evaluation/{table}.csv", response_class=Response)
async def table_csv(
    studio: Here, number: int, table: str, part: Part = "", weights: WeightsName = ""
) -> Response:
    """A table as CSV: `matrix`, `classes` or `predictions`."""
    row = await evaluation(studio, number, part, weights)
    found = trained_runs.trained_run(studio, number, weights)
    text = await studio.inspector.inspect(
        evaluate.table_csv, studio.home, found.run, found.dataset, row["part"], row["weights"], table
    )
    return csv_file(text, f"run-{number}-{row['part']}-{table}.csv")


@router.get("/api/runs/{number}/evaluation/report.html", response_class=Response)
async def report_file(studio: Here, number: int, part: Part = "", weights: WeightsName = "") -> Response:
    """The evaluation as one HTML file to keep or to send: style and images inside, no script, no network."""
    row = await evaluation(studio, number, part, weights)
    found = trained_runs.trained_run(studio, number, weights)
    text = await asyncio.to_thread(
        report, studio, found, row["part"], _shown(found, row) | {"evaluation": row}
    )
    name = f"run-{number}-{row['part']}-evaluation.html"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


def _shown(found: trained_runs.TrainedRun, row: Row) -> dict[str, Any]:
    """What templates need beside the row: names, the worst classes first, the columns of their table."""
    classes, per_class = found.dataset["classes"], row["per_class"]
    columns = [name for name in (per_class[0] if per_class else ()) if name not in ("support", "histogram")]
    measure = next((name for name in ("f1", "r2", "iou", "average_precision") if name in columns), None)
    order = sorted(range(len(per_class)), key=lambda k: _rank(per_class[k].get(measure) if measure else None))
    return {
        "summary": row["summary"],
        "matrix": row["matrix"],
        "ranked": [{"number": k, "name": name_of(classes, k), **per_class[k]} for k in order[:CLASSES]],
        "columns": columns,
        "pairs": row["summary"].get("pairs", [])[:PAIRS],
        "name": lambda k: name_of(classes, k),
        "count": len(per_class),
        "shares": [[_share(n, sum(cells)) for n in cells] for cells in row["matrix"]],
    }


def _rank(value: float | None) -> float:
    return float("inf") if value is None else value


def _share(count: int, whole: int) -> int:
    """The step of colour of a cell, 0 to 10: small shares of a row are seen, too."""
    return round(10 * (count / whole) ** 0.45) if whole else 0
