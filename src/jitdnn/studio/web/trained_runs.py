"""What the pages about a trained net share: its run, data set and weights, evaluations, images that were sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from weakref import WeakValueDictionary

from fastapi import HTTPException, Query, UploadFile

from jitdnn.errors import InvalidArgument
from jitdnn.limits import IMAGE_BYTES
from jitdnn.studio import texts
from jitdnn.studio.data import Dataset, open_dataset
from jitdnn.studio.look import evaluate, predictions
from jitdnn.studio.look.trained import Weights, choose_weights, weights_of
from jitdnn.studio.store import Row
from jitdnn.studio.web import listing
from jitdnn.studio.web.context import Studio

#: parameters of requests
WeightsName = Annotated[
    str, Query(max_length=200, description="best.npz (also if empty), or a snapshot's name")
]
Part = Annotated[
    str, Query(pattern="^(train|val|test|)$", description="empty: test, or val where there is no test")
]
#: seconds that a page waits for an evaluation before it shows how far it came
_PATIENCE: Final = 0.5
#: held while an evaluation is gone on with: two processes would remove pieces that the other one reads
_evaluating: WeakValueDictionary[tuple[Path, int, str, str], asyncio.Lock] = WeakValueDictionary()


class TrainedRun(NamedTuple):
    """A run whose net can be asked, the rows as functions of `look` take them, and its weights, the chosen ones first
    named by `chosen`."""

    run: Row
    dataset: Row
    data: Dataset
    weights: list[Weights]
    chosen: Weights | None


def trained_run(studio: Studio, number: int, weights: str = "") -> TrainedRun:
    """The run of that number; 404 for none, 409 for one without a data set; `chosen` is None without weights."""
    run = listing.run(studio.store, number)
    dataset = studio.store.one("dataset", run["dataset"]) if run["dataset"] else None
    if dataset is None:
        why = "is gone" if run["dataset"] else "is not here: the run was brought from elsewhere"
        raise HTTPException(409, f"The data set of run {number} {why}.")
    folder = studio.store.folder(number)
    found = weights_of(folder) if folder.is_dir() else []
    return TrainedRun(
        run,
        dataset,
        open_dataset(studio.home, dataset),
        found,
        choose_weights(folder, weights) if found else None,
    )


def with_weights(studio: Studio, number: int, weights: str = "") -> tuple[TrainedRun, Weights]:
    """The same for a net that must answer: 409 while there are no weights."""
    found = trained_run(studio, number, weights)
    if found.chosen is None:
        raise HTTPException(
            409, texts.text("There are no weights yet: the first test or snapshot saves some.")
        )
    return found, found.chosen


async def evaluated(
    studio: Studio, number: int, part: str = "", weights: str = "", seconds: float = _PATIENCE
) -> tuple[TrainedRun, Row | None, Row]:
    """The evaluation of some weights by a part: made once, kept in the store.

    Returns the row, or None and how far it came (done, count, part, key) where it takes longer than `seconds`.
    """
    found, chosen = with_weights(studio, number, weights)
    part = part or found.data.evaluation_part
    async with _evaluating.setdefault((studio.home, number, chosen.key, part), asyncio.Lock()):
        row, progress = await _gone_on(studio, found, chosen, part, seconds)
    return found, row, progress


async def _gone_on(
    studio: Studio, found: TrainedRun, chosen: Weights, part: str, seconds: float
) -> tuple[Row | None, Row]:
    number = int(found.run["id"])
    sql = "SELECT * FROM evaluation WHERE run = ? AND weights = ? AND part = ? ORDER BY id DESC LIMIT 1"
    file = predictions.predictions_file(studio.store.folder(number), chosen.key, part)
    rows = studio.store.rows(sql, number, chosen.key, part)
    if rows and file.is_file():
        return rows[0], _whole(rows[0])
    arguments = (studio.home, found.run, found.dataset, part, chosen.name, seconds)
    done = await studio.inspector.inspect(predictions.predict_some, *arguments)
    if not done["file"]:
        return None, done | {"part": part}
    summary = await studio.inspector.inspect(
        evaluate.summarize, studio.home, found.run, found.dataset, part, done["key"]
    )
    with studio.store.transaction():
        rows = studio.store.rows(sql, number, done["key"], part)
        if not rows:
            studio.store.insert(
                "evaluation", run=number, weights=done["key"], part=part, predictions=done["file"], **summary
            )
            rows = studio.store.rows(sql, number, done["key"], part)
    return rows[0], _whole(rows[0])


def _whole(row: Row) -> Row:
    images = row["summary"].get("images", 0)
    return {"done": images, "count": images, "key": row["weights"], "part": row["part"]}


async def sent_image(file: UploadFile | None) -> bytes | None:
    """The bytes of a file that was sent, None for none. Raises InvalidArgument for one that is too large."""
    return None if file is None or not file.filename else await read_image(file) or None


async def read_image(file: Any) -> bytes:
    """The bytes of an uploaded file. Raises InvalidArgument for one that is too large for an image."""
    content: bytes = await file.read(IMAGE_BYTES + 1)
    if len(content) > IMAGE_BYTES:
        raise InvalidArgument(f"the file has more than {IMAGE_BYTES:,} bytes, the most that are read")
    return content


def options_of(found: TrainedRun) -> dict[str, Any]:
    """What the form above these pages shows: weights, parts, and which are chosen."""
    return {
        "run": found.run,
        "dataset": found.dataset,
        "parts": found.data.parts,
        "weights": found.weights,
        "chosen": found.chosen,
    }
