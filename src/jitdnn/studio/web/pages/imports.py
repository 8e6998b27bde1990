"""Nets that were made elsewhere: models of ONNX, programs of torch.export, code that lists layers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import Response
from pydantic import BaseModel, Field

from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.nets import imports, model_store
from jitdnn.studio.nets.imports.imported import MOST_BYTES
from jitdnn.studio.store import Row
from jitdnn.studio.web.context import Here, Route, Studio, page
from jitdnn.studio.web.pages.train import training_form

router = APIRouter(route_class=Route)
#: before the pages of trainings, one of which takes any name
ORDER = 40


class Taken(BaseModel):
    """A model of a store, by its `key` in GET /api/models."""

    key: str = Field(max_length=300)


@router.get("/train/import", include_in_schema=False)
def import_form(request: Request, studio: Here) -> Response:
    return page(request, "import.html", found=None, code="", error="", models=list_models(studio))


@router.post("/train/import", include_in_schema=False)
async def import_page(
    request: Request, studio: Here, file: Annotated[UploadFile | None, File()] = None,
    code: Annotated[str, Form(max_length=200_000)] = "",
) -> Response:  # fmt: skip
    """What a file, or else a code, becomes; what is wrong with it is part of the page."""
    found, error = None, ""
    try:
        if file is not None and file.filename:
            found = await _read(studio, file)
        elif code.strip():
            found = await studio.inspector.inspect(imports.import_code, code)
        else:
            error = texts.text("Choose a file, or paste code.")
    except InvalidArgument as refused:
        error = str(refused)
    status, models = 422 if error else 200, list_models(studio)
    return page(request, "import.html", status=status, found=found, code=code, error=error, models=models)


@router.post("/train/model", include_in_schema=False)
def take_page(request: Request, studio: Here, key: Annotated[str, Form(max_length=300)]) -> Response:
    """The form of a new training with a model of a store."""
    found = take_model(studio, Taken(key=key))
    return training_form(request, studio, found["text"], {"weights": found["weights"]})


@router.get("/api/models")
def list_models(studio: Here) -> list[Row]:
    """Models to begin from, in the folders that the setting `model_stores` names."""
    return model_store.models(model_store.stores(studio.store))


@router.post("/api/models/take")
def take_model(studio: Here, asked: Taken) -> Row:
    """A model's net as prototxt (`text`), and `weights`, the value of that option of a training: they are kept in the
    home from then on."""
    return model_store.take(model_store.stores(studio.store), asked.key, studio.home)


@router.post("/api/nets/import")
async def import_net(studio: Here, file: Annotated[UploadFile, File()]) -> Row:
    """A net of a file as prototxt: .onnx, .pt2 of torch.export.save, or .py with code of Keras or PyTorch that lists
    layers, which is parsed and not run. `ok`, `text`, `weights` (the value of that option of a training), and `report`:
    for each node or line where it stands, what it is, what it became, and whether it `is_ok`."""
    return await _read(studio, file)


async def _read(studio: Studio, file: UploadFile) -> Row:
    content = await file.read(MOST_BYTES + 1)
    return await studio.inspector.inspect(imports.import_file, content, file.filename or "", studio.home)
