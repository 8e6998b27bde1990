"""Images to what a trained net says of them: one that is drawn, dropped, pasted, photographed or of the data set;
many."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, File, Form, HTTPException, Query, Request, UploadFile
from fastapi.responses import RedirectResponse, Response

from jitdnn.studio import texts
from jitdnn.studio.csv_text import csv_text
from jitdnn.studio.look import classify as look
from jitdnn.studio.look.pictures import data_url
from jitdnn.studio.look.trained import Given
from jitdnn.studio.store import Row
from jitdnn.studio.web import answering, trained_runs
from jitdnn.studio.web.context import Here, Link, Route, Studio, csv_file, is_part, page
from jitdnn.studio.web.trained_runs import Part, WeightsName

router = APIRouter(route_class=Route)
TABS = (Link(30, "/classify", "eye", texts.mark("Classify")),)
Place = Annotated[int | None, Query(ge=0, le=1 << 40, description="the number of an image of the part")]
_PICTURES: Final = ("image", "seen", "overlay", "true_overlay")


@router.get("/runs/{number}/classify", include_in_schema=False)
async def classify_page(
    request: Request, studio: Here, number: int, part: Part = "", at: Place = None, weights: WeightsName = ""
) -> Response:
    found = trained_runs.trained_run(studio, number, weights)
    part = part or found.data.evaluation_part
    values = trained_runs.options_of(found) | {
        "part": part,
        "at": at,
        "count": found.data.count(part),
        "answer": None,
    }
    if found.chosen is not None:
        answer = await ask(studio, number, None, part, at or 0, False, weights)
        values |= {"answer": _shown(answer), "at": at or 0}
    return page(request, "classify.html", **values)


@router.post("/runs/{number}/classify", include_in_schema=False)
async def classify_part(
    request: Request, studio: Here, number: int, file: Annotated[UploadFile | None, File()] = None,
    part: Annotated[str, Form()] = "", at: Annotated[int, Form(ge=0)] = 0, inverted: Annotated[bool, Form()] = False,
    weights: Annotated[str, Form()] = "",
) -> Response:  # fmt: skip
    found = trained_runs.trained_run(studio, number, weights)
    content = await trained_runs.sent_image(file)
    answer = await ask(studio, number, content, part or found.data.evaluation_part, at, inverted, weights)
    given = content is not None
    values = trained_runs.options_of(found) | {
        "answer": _shown(answer),
        "at": None if given else at,
        "part": part,
    }
    return page(request, "answer.html", **values)


@router.post("/api/runs/{number}/classify")
async def classify(
    studio: Here, number: int, file: Annotated[UploadFile | None, File(description="an image")] = None,
    part: Part = "", at: Place = None, inverted: bool = False, weights: WeightsName = "", pictures: bool = False,
) -> Row:  # fmt: skip
    """What the net says of an image file, or of image `at` of a part of its data set.

    With `pictures` the answer has PNGs as data URLs: the image, what the net gets of it, and overlays.
    """
    content = await trained_runs.sent_image(file)
    if content is None and at is None:
        raise HTTPException(
            422, texts.text("Send an image as `file`, or say by `at` which image of the data set.")
        )
    answer = await ask(studio, number, content, part, at or 0, inverted, weights)
    return _shown(answer) if pictures else {k: v for k, v in answer.items() if k not in _PICTURES}


async def ask(
    studio: Studio, number: int, content: bytes | None, part: str, at: int, inverted: bool, weights: str
) -> Row:
    """The answer of `look.classify`, in the inspector."""
    found, chosen = trained_runs.with_weights(studio, number, weights)
    ask_net = partial(look.classify, given=Given(content, part, at, inverted), weights=chosen.name)
    return await studio.inspector.inspect(ask_net, studio.home, found.run, found.dataset)


# ---- many


@router.post("/api/runs/{number}/classify/many")
async def classify_many(
    studio: Here, number: int,
    files: Annotated[list[UploadFile], File(description="images, zip files of them, or lists (.txt) of paths here")],
    weights: WeightsName = "",
    folder: Annotated[str, Query(max_length=4096, description="where images of a list lie without a whole path")] = "",
) -> list[Row]:  # fmt: skip
    """What the net says of many images: `name` and its answer each, or `error` for a file that is none. Where a list
    says the class of an image it is `wanted`, and `is_right` whether the answer is that."""
    job, kept = await answering.begin(studio, number, weights, files, folder)
    await answering.work(studio, job, kept)
    if job.error:
        raise HTTPException(422, job.error)
    return job.answers


@router.post("/runs/{number}/classify/many", include_in_schema=False)
async def many_begin(
    request: Request, studio: Here, number: int, files: Annotated[list[UploadFile], File()],
    weights: Annotated[str, Form()] = "", folder: Annotated[str, Form(max_length=4096)] = "",
) -> Response:  # fmt: skip
    job, kept = await answering.begin(studio, number, weights, files, folder)
    name = answering.start(request, studio, job, kept)
    if is_part(request):
        return await many_page(request, studio, number, name)
    return RedirectResponse(f"/runs/{number}/classify/many/{name}", 303)


@router.get("/runs/{number}/classify/many/{name}.csv", include_in_schema=False)
def many_csv(request: Request, number: int, name: str) -> Response:
    return csv_file(answers_csv(answering.job_of(request, number, name).answers), f"run-{number}-answers.csv")


@router.get("/runs/{number}/classify/many/{name}", include_in_schema=False)
async def many_page(request: Request, studio: Here, number: int, name: str) -> Response:
    job = answering.job_of(request, number, name)
    if job.task is not None:
        await asyncio.wait([job.task], timeout=0.5)
    counts: dict[str, int] = {}
    for answer in job.answers:
        if answer.get("top"):
            counts[answer["top"][0]["name"]] = counts.get(answer["top"][0]["name"], 0) + 1
    values = {"job": job, "name": name, "counts": sorted(counts.items(), key=lambda pair: -pair[1])}
    found = trained_runs.options_of(trained_runs.trained_run(studio, number, job.weights))
    return page(request, "many.html" if is_part(request) else "many_page.html", **values, **found)


def answers_csv(answers: list[Row]) -> str:
    """Answers as CSV, a line an image."""
    has_wanted = any("wanted" in answer for answer in answers)
    rows = [["file", "answer", "value", "error", *["wanted"] * has_wanted]]
    for answer in answers:
        cells: list[Any] = ["", ""]
        if answer.get("top"):
            cells = [answer["top"][0]["name"], answer["top"][0]["probability"]]
        elif "labels" in answer:
            said = [each["name"] for each in answer["labels"] if each["said"]]
            cells = ["; ".join(said), ""]
        elif "numbers" in answer:
            cells = ["; ".join(each["name"] for each in answer["numbers"]),
                     "; ".join(f"{each['value']}" for each in answer["numbers"])]  # fmt: skip
        rows.append(
            [answer["name"], *cells, answer.get("error", ""), *[answer.get("wanted", "")] * has_wanted]
        )
    return csv_text(rows)


def _shown(answer: Row) -> Row:
    """An answer with its pictures as data URLs."""
    return {k: data_url(v) if k in _PICTURES and isinstance(v, bytes) else v for k, v in answer.items()}
