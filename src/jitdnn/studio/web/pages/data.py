"""A data set: its gallery, what is in it, what is there twice, labels and their changes."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from jitdnn.studio import texts
from jitdnn.studio.data import Dataset, creation, duplicates, gallery, mending, open_dataset
from jitdnn.studio.data.drawing import drawn
from jitdnn.studio.data.sheets import sheet, tile
from jitdnn.studio.data.values import values_of
from jitdnn.studio.png import png
from jitdnn.studio.store import Row
from jitdnn.studio.web import words
from jitdnn.studio.web.context import Here, Route, Studio, csv_file, page
from jitdnn.studio.web.pages.data_new import not_ready

router = APIRouter(route_class=Route)
#: pictures of a sheet of the gallery (of small ones, of others), of a page of the list, pairs of a page of duplicates
SHEET, LARGE_SHEET, LIST, PAIRS = 200, 96, 60, 40
#: sheets of a page
SHEETS = 50
SMALL = 36
DAY = {"cache-control": "private, max-age=86400"}
Part = Annotated[str, Query(pattern="^(train|val|test)$")]
Label = Annotated[str, Query(pattern="^(-?[0-9]{1,6})?$")]
Text = Annotated[str, Query(max_length=200)]
Number = Annotated[int, Query(ge=0, le=1 << 40)]


class Change(BaseModel):
    """Another class for an image: its number, -1 for none known, -2 to leave the image out."""

    label: int = Field(ge=-2)


class Version(BaseModel):
    """A name for the new version."""

    name: str = Field("", max_length=120)


# ---- pages


@router.get("/data", include_in_schema=False)
def list_page(request: Request, studio: Here) -> Response:
    rows = list_datasets(studio)[:1000]
    runs = studio.store.rows("SELECT dataset, count(*) AS n FROM run GROUP BY dataset")
    return page(request, "data_list.html", datasets=rows, runs={row["dataset"]: row["n"] for row in runs})


@router.get("/data/{number}", include_in_schema=False)
def gallery_page(
    request: Request, studio: Here, number: int, part: str = "", label: Label = "", q: Text = "",
    view: str = "sheets", start: Number = 0,
) -> Response:  # fmt: skip
    row = studio.get("dataset", number)
    if row["state"] != "ready":
        return _waiting(request, studio, row, "data_waiting.html")
    row, dataset = _ready(studio, number)
    part = part if part in dataset.parts else dataset.parts[0]
    chosen = int(label) if label else None
    is_list = view == "list"
    found = gallery.find(dataset.folder, part, chosen, q, start, LIST if is_list else 0)
    width, height = _tile_size(dataset)
    step = SHEET if width <= SMALL else LARGE_SHEET
    return page(
        request, "data.html", dataset=row, parts=dataset.parts, part=part, label=label, q=q, view=view, start=start,
        found=found, histogram=dataset.histogram(part), step=step,
        tile=(width, height), columns=25 if width <= SMALL else 16, shown=LIST if is_list else SHEETS * step,
        mended=_mended(dataset), tab="",
    )  # fmt: skip


@router.get("/data/{number}/progress", include_in_schema=False)
def progress_part(request: Request, studio: Here, number: int) -> Response:
    row = studio.get("dataset", number)
    answer = _waiting(request, studio, row, "data_progress.html")
    if studio.get("dataset", number)["state"] != creation.MAKING:
        answer.headers["hx-refresh"] = "true"
    return answer


@router.get("/data/{number}/about", include_in_schema=False)
def about_page(request: Request, studio: Here, number: int) -> Response:
    row, dataset = _ready(studio, number)
    return page(
        request, "data_about.html", dataset=row, parts=dataset.parts, mean_pixel=dataset.mean_pixel,
        histograms={part: dataset.histogram(part) for part in dataset.parts},
        runs=creation.dependents(studio.store, number), versions=mending.version_rows(studio.store, number),
        skipped=gallery.skipped(dataset.folder), source=dataset.source("train"), tab="about",
        values=values_of(dataset),
    )  # fmt: skip


@router.get("/data/{number}/duplicates", include_in_schema=False)
def duplicates_page(
    request: Request, studio: Here, number: int, leaks: bool = False, start: Number = 0
) -> Response:
    row, dataset = _ready(studio, number)
    found = duplicates.twins(dataset.folder, leaks, start, PAIRS)
    return page(
        request,
        "data_duplicates.html",
        dataset=row,
        found=found,
        leaks=leaks,
        start=start,
        step=PAIRS,
        tab="duplicates",
    )


@router.get("/data/{number}/changes", include_in_schema=False)
def changes_page(request: Request, studio: Here, number: int) -> Response:
    row, dataset = _ready(studio, number)
    return page(
        request, "data_changes.html", dataset=row, found=mending.edits(dataset), name_of=_namer(row), tab="changes",
        versions=mending.version_rows(studio.store, number),
    )  # fmt: skip


@router.get("/data/{number}/label", include_in_schema=False)
def label_next(studio: Here, number: int) -> Response:
    """The next image without a label."""
    _, dataset = _ready(studio, number)
    found = mending.unlabelled(dataset)
    return RedirectResponse(
        f"/data/{number}/images/{found[0]}/{found[1]}?next=unlabelled"
        if found
        else f"/data/{number}/changes",
        303,
    )


@router.get("/data/{number}/images/{part}/{place}", include_in_schema=False)
def image_page(
    request: Request, studio: Here, number: int, part: str, place: int, next: str = ""
) -> Response:
    row, dataset = _ready(studio, number)
    image = _image(dataset, part, place)
    count = dataset.count(part)
    return page(
        request, "data_image.html", dataset=row, image=image, part=part, place=place, count=count, next=next,
        name_of=_namer(row), told=_told(dataset, part, place), tab="", done=_mended(dataset),
    )  # fmt: skip


@router.post("/data/{number}/images/{part}/{place}", include_in_schema=False)
def mend_page(
    studio: Here, number: int, part: str, place: int, label: Annotated[int, Form()], next: Annotated[str, Form()] = "",
) -> Response:  # fmt: skip
    mend(studio, number, part, place, Change(label=label))
    if next == "unlabelled":
        found = mending.unlabelled(open_dataset(studio.home, studio.get("dataset", number)), part, place)
        found = found or mending.unlabelled(open_dataset(studio.home, studio.get("dataset", number)))
        if found is None:
            return RedirectResponse(f"/data/{number}/changes", 303)
        return RedirectResponse(f"/data/{number}/images/{found[0]}/{found[1]}?next=unlabelled", 303)
    return RedirectResponse(f"/data/{number}/images/{part}/{place}", 303)


@router.post("/data/{number}/{action}", include_in_schema=False)
def act_page(
    studio: Here, number: int, action: str, edit: Annotated[int | None, Form(ge=0, le=1 << 62)] = None,
    name: Annotated[str, Form()] = "",
) -> Response:  # fmt: skip
    """What the buttons of the pages do."""
    if action == "cancel":
        cancel(studio, number)
    elif action == "delete":
        delete(studio, number)
        return RedirectResponse("/", 303)
    elif action == "undo":
        undo(studio, number, edit)
        return RedirectResponse(f"/data/{number}/changes", 303)
    elif action == "copies":
        leave_out_copies(studio, number)
        return RedirectResponse(f"/data/{number}/changes", 303)
    elif action == "versions":
        return RedirectResponse(f"/data/{make_version(studio, number, Version(name=name[:120]))['id']}", 303)
    else:
        raise HTTPException(404, texts.text("There is no such page."))
    return RedirectResponse(f"/data/{number}", 303)


# ---- pictures


@router.get("/data/{number}/sheet.png", include_in_schema=False)
def sheet_png(
    studio: Here, number: int, part: str = "", label: Label = "", q: Text = "", start: Number = 0,
    count: Annotated[int, Query(ge=1, le=400)] = SHEET, columns: Annotated[int, Query(ge=1, le=100)] = 25,
    at: Annotated[list[int] | None, Query()] = None,
) -> Response:  # fmt: skip
    """Many small pictures as one; with `at` those places."""
    row = studio.get("dataset", number)
    if row["state"] != "ready":
        return Response(sheet([], columns), media_type="image/png", headers={"cache-control": "no-store"})
    dataset = open_dataset(studio.home, row)
    part = part if part in dataset.parts else dataset.parts[0]
    if at is None and not label and not q:
        chosen = list(range(start, min(start + count, dataset.count(part))))
    elif at is None:
        found = gallery.find(dataset.folder, part, int(label) if label else None, q, start, count)
        chosen = [item["place"] for item in found["items"]]
    else:
        chosen = [place for place in at[:400] if 0 <= place < dataset.count(part)]
    picture = sheet([_drawn(dataset, part, place, 64) for place in chosen], columns, largest=64)
    return Response(picture, media_type="image/png", headers=DAY)


@router.get("/data/{number}/images/{part}/{place}/picture.png", include_in_schema=False)
def image_png(studio: Here, number: int, part: str, place: int, plain: bool = False) -> Response:
    _, dataset = _ready(studio, number)
    _image(dataset, part, place)
    image = dataset.images(part)[place] if plain else _drawn(dataset, part, place, 1024)
    return Response(png(tile(image, 1024)), media_type="image/png", headers=DAY)


@router.get("/data/{number}/mean.png", include_in_schema=False)
def mean_png(studio: Here, number: int) -> Response:
    _, dataset = _ready(studio, number)
    return Response(
        png(tile(np.clip(dataset.mean, 0, 255).astype(np.uint8))), media_type="image/png", headers=DAY
    )


@router.get("/data/{number}/std.png", include_in_schema=False)
def std_png(studio: Here, number: int) -> Response:
    """Where the training images differ: bright where they differ most."""
    _, dataset = _ready(studio, number)
    return Response(png(tile(values_of(dataset).std.astype(np.float32))), media_type="image/png", headers=DAY)


# ---- the twins


@router.get("/api/datasets")
def list_datasets(studio: Here) -> list[Row]:
    """All data sets, the newest first."""
    creation.tidy(studio.store)
    return studio.store.rows("SELECT * FROM dataset ORDER BY id DESC")


@router.get("/api/datasets/{number}")
def read_dataset(studio: Here, number: int) -> Row:
    """A data set; `progress` while it is made."""
    creation.tidy(studio.store)
    row = studio.get("dataset", number)
    if row["state"] == creation.MAKING:
        row["progress"] = creation.progress(studio.home, number)
    return row


@router.get("/api/datasets/{number}/values")
def list_values(studio: Here, number: int) -> dict[str, Any]:
    """The numbers of up to 4,096 training images: `mean` and `std` of each channel (over all of its numbers), and
    `histogram`, how many are in each of 64 equal stretches from `low` to `high`, a list for each channel."""
    found = values_of(_ready(studio, number)[1])
    means = found.mean.mean((1, 2))
    spread = np.sqrt((np.square(found.std) + np.square(found.mean)).mean((1, 2)) - np.square(means))
    return {
        "looked": found.looked, "mean": means.tolist(), "std": np.nan_to_num(spread).tolist(), "low": found.low,
        "high": found.high, "histogram": found.histogram.tolist(), "not_finite": found.not_finite,
    }  # fmt: skip


@router.delete("/api/datasets/{number}", status_code=204)
def delete(studio: Here, number: int) -> None:
    """Remove a data set and its files: refused while runs have it."""
    studio.get("dataset", number)
    found = creation.dependents(studio.store, number)
    if found:
        raise HTTPException(
            409,
            texts.text(
                "%(runs)s were trained on it: delete them first.", runs=words.plural(len(found), "run")
            ),
        )
    creation.delete(studio.store, number)


@router.post("/api/datasets/{number}/cancel", status_code=202)
def cancel(studio: Here, number: int) -> Row:
    """End the making of a data set; nothing of it is left."""
    row = studio.get("dataset", number)
    creation.cancel(studio.store, number)
    return row


@router.get("/api/datasets/{number}/images")
def list_images(
    studio: Here, number: int, part: Part = "train", label: Annotated[int | None, Query(ge=-2, le=1 << 31)] = None,
    q: Text = "", start: Number = 0,
    count: Annotated[int, Query(ge=1, le=1000)] = SHEET,
) -> dict[str, Any]:  # fmt: skip
    """`total` and `items` (part, place, name, label): of a class, with `q` in their names."""
    _, dataset = _ready(studio, number)
    return gallery.find(dataset.folder, part, label, q, start, count)


@router.put("/api/datasets/{number}/images/{part}/{place}")
def mend(studio: Here, number: int, part: str, place: int, change: Change) -> dict[str, Any]:
    """Change a label. It is written down; the arrays keep the old one until a version is made."""
    _, dataset = _ready(studio, number)
    _image(dataset, part, place)
    mending.edit(dataset, part, place, change.label)
    return _image(dataset, part, place)


@router.get("/api/datasets/{number}/changes")
def list_changes(studio: Here, number: int) -> dict[str, Any]:
    """`total` of images whose labels were changed, and the last 200 `changes`."""
    return mending.edits(_ready(studio, number)[1])


@router.post("/api/datasets/{number}/undo")
def undo(
    studio: Here, number: int, edit: Annotated[int | None, Query(ge=0, le=1 << 62)] = None
) -> dict[str, bool]:
    """Take back a change of labels, the last one where `edit` is not said."""
    return {"undone": mending.undo(_ready(studio, number)[1], edit)}


@router.post("/api/datasets/{number}/copies")
def leave_out_copies(studio: Here, number: int) -> dict[str, int]:
    """Mark copies to be left out of the next version: `changed` so many. What is in val or test stays there."""
    return {"changed": mending.leave_out_copies(_ready(studio, number)[1])}


@router.post("/api/datasets/{number}/versions", status_code=201)
def make_version(studio: Here, number: int, version: Version) -> Row:
    """A new data set with all changes in it."""
    _ready(studio, number)
    return studio.get("dataset", mending.new_version(studio.store, number, version.name))


@router.get("/api/datasets/{number}/duplicates")
def list_duplicates(
    studio: Here,
    number: int,
    leaks: bool = False,
    start: Number = 0,
    count: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """Pairs that are alike; `leaks`: only those of two parts."""
    return duplicates.twins(_ready(studio, number)[1].folder, leaks, start, count)


@router.get("/api/datasets/{number}/split.csv", response_class=StreamingResponse)
def split_csv(studio: Here, number: int) -> Response:
    """Which file is in which part, as a table."""
    row, dataset = _ready(studio, number)
    return csv_file(gallery.split_list(dataset.folder, row["classes"]), f"split-{number}.csv")


# ---- what they use


def _ready(studio: Studio, number: int) -> tuple[Row, Dataset]:
    row = studio.get("dataset", number)
    if row["state"] != "ready":
        raise not_ready(row)
    dataset = open_dataset(studio.home, row)
    row["unlabelled"] = _has_unlabelled(dataset)
    return row, dataset


def _image(dataset: Dataset, part: str, place: int) -> Row:
    found = gallery.one(dataset.folder, part, place) if 0 <= place < 1 << 62 else None
    if found is None:
        raise HTTPException(
            404, texts.text("There is no image %(number)d in %(part)s.", number=place, part=part[:20])
        )
    return found


def _waiting(request: Request, studio: Studio, row: Row, template: str) -> Response:
    creation.tidy(studio.store)
    row = studio.get("dataset", row["id"])
    return page(request, template, dataset=row, progress=creation.progress(studio.home, row["id"]))


def _drawn(dataset: Dataset, part: str, place: int, largest: int) -> Any:
    image = dataset.images(part)[place]
    if dataset.task in ("segmentation", "detection"):
        return drawn(image, dataset.labels(part)[place], dataset.task, largest)
    return image


def _told(dataset: Dataset, part: str, place: int) -> list[tuple[str, str]]:
    """A label that is no class, as names and values."""
    if dataset.task == "detection":
        boxes = [
            (int(number), corners) for number, *corners in dataset.labels(part)[place].tolist() if number >= 0
        ]
        return [(dataset.classes[k], ", ".join(f"{value:.3f}" for value in corners)) for k, corners in boxes]
    if dataset.task not in ("multi-label", "regression"):
        return []
    values = dataset.labels(part)[place]
    names = dataset.classes or [texts.text("value %(number)d", number=k) for k in range(len(values))]
    if dataset.task == "multi-label":
        return [(name, "yes") for name, value in zip(names, values, strict=False) if value > 0.5]
    return [(name, f"{float(value):.6g}") for name, value in zip(names, values, strict=False)]


def _namer(row: Row) -> Any:
    words = {mending.UNKNOWN: texts.text("no label yet"), mending.LEFT_OUT: texts.text("left out"), None: "–"}
    return lambda label: words[label] if label in words else row["classes"][label]


def _tile_size(dataset: Dataset) -> tuple[int, int]:
    """Width and height of a picture on a sheet."""
    height, width = tile(dataset.images(dataset.parts[0])[0], 64).shape[:2]
    return width, height


def _mended(dataset: Dataset) -> int:
    return int(mending.edits(dataset, 0)["total"]) if dataset.task == "classification" else 0


def _has_unlabelled(dataset: Dataset) -> bool:
    return dataset.task == "classification" and mending.unlabelled(dataset) is not None
