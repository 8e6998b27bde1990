"""Images to what a trained net says of them: one that is drawn, dropped, pasted, photographed or of the data set;
many."""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Annotated, Any, Final

from fastapi import APIRouter, File, Form, HTTPException, Query, Request, UploadFile
from fastapi.responses import Response

from jitdnn.studio.look import classify as look
from jitdnn.studio.look.pictures import data_url
from jitdnn.studio.store import Row
from jitdnn.studio.web import looking
from jitdnn.studio.web.context import Here, Link, Studio, page
from jitdnn.studio.web.looking import Part, WeightsName

router = APIRouter()
TABS = (Link(30, "/classify", "eye", "Classify"),)
#: files that one call in the inspector takes: a few seconds' work
AT_ONCE: Final = 200
Place = Annotated[int | None, Query(ge=0, le=1 << 40, description="the number of an image of the part")]
_PICTURES: Final = ("image", "seen", "overlay", "true_overlay")


@router.get("/runs/{number}/classify", include_in_schema=False)
async def classify_page(
    request: Request, studio: Here, number: int, part: Part = "", at: Place = None, weights: WeightsName = ""
) -> Response:
    found = looking.looked(studio, number, weights)
    part = part or found.data.evaluation_part
    values = looking.options_of(found) | {
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
    found = looking.looked(studio, number, weights)
    content = await looking.sent_image(file)
    answer = await ask(studio, number, content, part or found.data.evaluation_part, at, inverted, weights)
    given = content is not None
    values = looking.options_of(found) | {"answer": _shown(answer), "at": None if given else at, "part": part}
    return page(request, "answer.html", **values)


@router.post("/api/runs/{number}/classify")
async def classify(
    studio: Here, number: int, file: Annotated[UploadFile | None, File(description="an image")] = None,
    part: Part = "", at: Place = None, inverted: bool = False, weights: WeightsName = "", pictures: bool = False,
) -> Row:  # fmt: skip
    """What the net says of an image file, or of image `at` of a part of its data set.

    With `pictures` the answer has PNGs as data URLs: the image, what the net gets of it, and overlays.
    """
    content = await looking.sent_image(file)
    if content is None and at is None:
        raise HTTPException(422, "Send an image as `file`, or say by `at` which image of the data set.")
    answer = await ask(studio, number, content, part, at or 0, inverted, weights)
    return _shown(answer) if pictures else {k: v for k, v in answer.items() if k not in _PICTURES}


async def ask(
    studio: Studio, number: int, content: bytes | None, part: str, at: int, inverted: bool, weights: str
) -> Row:
    """The answer of `look.classify`, in the inspector."""
    found, chosen = looking.asked(studio, number, weights)
    return await studio.inspector.inspect(
        look.classify, studio.home, found.run, found.dataset, content, part, at, inverted, chosen.name
    )


# ---- many


@router.post("/api/runs/{number}/classify/many")
async def classify_many(
    studio: Here, number: int, files: Annotated[list[UploadFile], File(description="images, or zip files of them")],
    weights: WeightsName = "",
) -> list[Row]:  # fmt: skip
    """What the net says of many images: `name` and its answer each, or `error` for a file that is none."""
    found, chosen = looking.asked(studio, number, weights)
    listed: list[tuple[str, bytes]] = []
    for file in files:
        content = await file.read(look.MOST_BYTES + 1)
        listed += await asyncio.to_thread(look.files_of, file.filename or "image", content)
    if len(listed) > look.MOST_FILES:
        raise HTTPException(413, f"{len(listed):,} images: at most {look.MOST_FILES:,} at a time.")
    answers: list[Row] = []
    for start in range(0, len(listed), AT_ONCE):
        some = listed[start : start + AT_ONCE]
        answers += await studio.inspector.inspect(
            look.classify_files, studio.home, found.run, found.dataset, some, chosen.name
        )
    return answers


@router.post("/runs/{number}/classify/many", include_in_schema=False)
async def many_page(
    request: Request, studio: Here, number: int, files: Annotated[list[UploadFile], File()],
    weights: Annotated[str, Form()] = "", table: Annotated[str, Form()] = "",
) -> Response:  # fmt: skip
    answers = await classify_many(studio, number, files, weights)
    if table == "csv":
        return Response(
            answers_csv(answers), media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="run-{number}-answers.csv"'},
        )  # fmt: skip
    found = looking.looked(studio, number, weights)
    counts: dict[str, int] = {}
    for answer in answers:
        if answer.get("top"):
            counts[answer["top"][0]["name"]] = counts.get(answer["top"][0]["name"], 0) + 1
    listed = sorted(counts.items(), key=lambda pair: -pair[1])
    return page(request, "many.html", answers=answers, counts=listed, **looking.options_of(found))


def answers_csv(answers: list[Row]) -> str:
    """Answers as CSV, a line an image."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["file", "answer", "value", "error"])
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
        row = [answer["name"], *cells, answer.get("error", "")]
        writer.writerow([f"'{c}" if isinstance(c, str) and c[:1] in ("=", "+", "-", "@") else c for c in row])
    return file.getvalue()


def _shown(answer: Row) -> Row:
    """An answer with its pictures as data URLs."""
    return {k: data_url(v) if k in _PICTURES and isinstance(v, bytes) else v for k, v in answer.items()}
