"""A trained net for use elsewhere: Caffe's files, ONNX, weights, a self-checking bundle; made, checked, downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, HTTPException, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, Field

from jitdnn.errors import NotSupported
from jitdnn.studio import texts
from jitdnn.studio.export.exports import KINDS, download_name, export
from jitdnn.studio.store import Row, plain_files
from jitdnn.studio.web import trained_runs
from jitdnn.studio.web.context import Here, Link, Route, Studio, page
from jitdnn.studio.web.trained_runs import WeightsName

router = APIRouter(route_class=Route)
TABS = (Link(50, "/export", "download", texts.mark("Export")),)
#: kind -> title, what it is for
FORMS: Final = {
    "bundle": (
        texts.mark("Bundle"),
        texts.mark(
            "The net, its weights, how images are prepared, and images with the answers to them: one command checks "
            "that it answers alike on another machine, and one serves it."
        ),
    ),
    "onnx": (
        "ONNX",
        texts.mark(
            "For onnxruntime and many others. Cropping, mean and scale are inside: it takes images as they are, 0 to "
            "255, channels blue, green, red."
        ),
    ),
    "torch": (
        "torch.export",
        texts.mark(
            "A program for PyTorch, .pt2, that needs no code of a model: torch.export.load(file).module(). Cropping, "
            "mean and scale are inside, as in ONNX. Made where PyTorch and onnx are installed."
        ),
    ),
    "safetensors": (
        "safetensors",
        texts.mark(
            "The weights by LAYER/INDEX for PyTorch, JAX and NumPy; the net as prototxt, classes and how images are "
            "prepared are in its metadata."
        ),
    ),
    "caffe": (
        "Caffe",
        texts.mark("deploy.prototxt and weights.caffemodel, for Caffe, OpenCV and jitdnn.caffe."),
    ),
}


class Wanted(BaseModel):
    """What to export."""

    kind: str = Field(description=", ".join(KINDS), max_length=20)
    weights: str = Field(
        default="", max_length=200, description="best.npz (also if empty), or a snapshot's name"
    )


@router.get("/runs/{number}/export", include_in_schema=False)
def export_page(request: Request, studio: Here, number: int, weights: WeightsName = "") -> Response:
    found = trained_runs.trained_run(studio, number, weights)
    values = {"forms": FORMS, "files": listed(studio, number), "made": None, "kind": "", "error": ""}
    return page(request, "export.html", **values, **trained_runs.options_of(found))


@router.post("/runs/{number}/export", include_in_schema=False)
async def make_page(
    request: Request, studio: Here, number: int, kind: Annotated[str, Form(max_length=20)],
    weights: Annotated[str, Form(max_length=200)] = "",
) -> Response:  # fmt: skip
    made, error = None, ""
    try:
        made = await make(studio, number, Wanted(kind=kind, weights=weights))
    except NotSupported as refused:  # said beside the button, with the names of the layers
        error = str(refused)
    values: dict[str, Any] = {
        "forms": FORMS,
        "files": listed(studio, number),
        "made": made,
        "kind": kind,
        "error": error,
    }
    return page(
        request,
        "export.html",
        **values,
        **trained_runs.options_of(trained_runs.trained_run(studio, number, weights)),
    )


@router.post("/api/runs/{number}/export", status_code=201)
async def make(studio: Here, number: int, wanted: Wanted) -> Row:
    """Export a net: `file` is its name for GET, `checks` who ran it and how far its answers are from the net's."""
    found, chosen = trained_runs.with_weights(studio, number, wanted.weights)
    return await studio.inspector.inspect(
        export, studio.home, found.run, found.dataset, wanted.kind, chosen.name, seconds=600
    )


@router.get("/api/runs/{number}/export")
def list_exports(studio: Here, number: int) -> list[Row]:
    """The files that were exported: name and bytes."""
    studio.get("run", number)
    return listed(studio, number)


@router.get("/api/runs/{number}/export/{file}", response_class=FileResponse)
def download(studio: Here, number: int, file: str) -> Response:
    """An exported file."""
    run = studio.get("run", number)
    if file not in [each["file"] for each in listed(studio, number)]:
        raise HTTPException(404, texts.text("There is no such file."))
    name = download_name(run, file)
    return FileResponse(_folder(studio, number) / file, media_type="application/octet-stream", filename=name)


def listed(studio: Studio, number: int) -> list[Row]:
    """The exports of a run by their names, bytes and time."""
    return [
        {"file": file.name, "bytes": file.stat().st_size, "made": file.stat().st_mtime}
        for file in plain_files(_folder(studio, number))
    ]


def _folder(studio: Studio, number: int) -> Path:
    return studio.store.folder(number) / "export"
