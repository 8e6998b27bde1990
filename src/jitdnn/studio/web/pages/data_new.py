"""A new data set: what it is made of is looked at before anything is made."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, File, HTTPException, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field
from starlette.datastructures import FormData
from starlette.datastructures import UploadFile as FormFile

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.studio import texts
from jitdnn.studio.data import buckets, creation, places
from jitdnn.studio.data.built_in import DIGITS
from jitdnn.studio.data.options import MODES, Options
from jitdnn.studio.data.scan import scan
from jitdnn.studio.store import Row
from jitdnn.studio.tasks import TASKS
from jitdnn.studio.web import words
from jitdnn.studio.web.context import Here, Link, Route, Studio, is_part, page

router = APIRouter(route_class=Route)
NAVIGATION = (
    Link(20, "/data", "data", texts.mark("Data sets"), short=texts.mark("Data"), within=("/data",)),
)
ORDER = 20


class Source(BaseModel):
    """What a data set is made of, and how. `path` is a folder or file of the machine that runs the studio, or a folder
    of a bucket (`s3://BUCKET/FOLDER`),
    `upload` what POST /api/uploads answered, or `path` is `package:data/mnist_5k.npz` for the digits that are shipped.
    """

    path: str = ""
    upload: str = ""
    name: str = Field("", max_length=120)
    options: Options = Options()


@router.get("/data/new", include_in_schema=False)
def form(request: Request, studio: Here) -> Response:
    return _form(request, studio)


@router.get("/data/folders", include_in_schema=False)
def folders(studio: Here, folder: Annotated[str, Query(max_length=4096)] = "") -> list[str]:
    """Folders whose paths begin so."""
    return places.suggestions(studio.store, folder)


@router.post("/data/scan", include_in_schema=False)
async def look(request: Request, studio: Here) -> Response:
    """What lies there, as a part of the page, or the whole page where there is no script."""
    async with request.form(max_files=1) as sent:
        values: dict[str, Any] = {"upload": "", "name": "", "error": "", "found": None}
        try:
            options = _options(sent)
            if not _is_chosen(sent):
                return (
                    _form(request, studio)
                    if not is_part(request)
                    else page(request, "data_scan.html", **values)
                )
            path, values["upload"], values["name"] = await _chosen(studio, sent)
            values["found"] = _shown(await studio.inspector.inspect(scan, str(path), options))
        except JitdnnError as error:
            values["error"] = str(error)
        plain = {key: value for key, value in sent.items() if isinstance(value, str)}
    if is_part(request):
        return page(request, "data_scan.html", **values)
    return _form(request, studio, plain, **values)


@router.post("/data", include_in_schema=False)
async def make(request: Request, studio: Here) -> Response:
    async with request.form(max_files=1) as sent:
        options = _options(sent)
        path, _, name = await _chosen(studio, sent)
        name = str(sent.get("name") or name or "Images")
    number = await run_in_threadpool(creation.begin, studio.store, name, str(path), options)
    return RedirectResponse(f"/data/{number}", 303)


@router.post("/data/digits", include_in_schema=False)
def make_digits(studio: Here) -> Response:
    return RedirectResponse(f"/data/{creation.digits(studio.store)}", 303)


# ---- the twins


@router.post("/api/uploads", status_code=201)
async def upload(studio: Here, file: Annotated[UploadFile, File()]) -> dict[str, str]:
    """A .zip, .csv or .npz file, at most 2 GiB: the answer's `upload` names it for a day."""
    return {"upload": await places.keep_upload(studio.home, file.filename or "", _pieces(file))}


@router.post("/api/datasets/scan")
async def scan_source(studio: Here, source: Source) -> dict[str, Any]:
    """What a source holds and what is wrong with it; nothing is made. Pictures are PNGs in base64."""
    path = _place(studio, source.path, source.upload)
    return _shown(await studio.inspector.inspect(scan, str(path), source.options))


@router.post("/api/datasets", status_code=201)
def create(studio: Here, source: Source) -> Row:
    """Begin to make a data set; its `state` is `making`, then `ready`, `failed`, `cancelled` or `interrupted`."""
    path = _place(studio, source.path, source.upload)
    number = creation.begin(studio.store, source.name or _name_of(str(path)), str(path), source.options)
    return studio.get("dataset", number)


# ---- what both use


def _form(request: Request, studio: Studio, sent: dict[str, str] | None = None, **values: Any) -> Response:
    defaults = {name: str(value) for name, value in Options().plain().items()} | {"folder": ""}
    return page(
        request, "data_new.html", modes=words.MODES, tasks=list(TASKS), sent=defaults | (sent or {}),
        checked=(sent or {}).get("grey") == "true", roots=places.roots(studio.store),
        **({"found": None, "error": "", "upload": "", "name": ""} | values),
    )  # fmt: skip


def _options(sent: FormData) -> Options:
    """Raises InvalidArgument naming the field."""
    values: dict[str, Any] = {}
    for field in fields(Options):
        text = sent.get(field.name)
        if not isinstance(text, str) or not text.strip():
            continue
        default = getattr(Options, field.name)
        try:
            values[field.name] = text == "true" if isinstance(default, bool) else type(default)(text)
        except ValueError:
            raise InvalidArgument(
                texts.text("%(name)s: %(value)s is no number", name=field.name, value=repr(text[:40]))
            ) from None
    if values.get("mode", "squash") not in MODES:
        raise InvalidArgument(
            texts.text("%(name)s: choose one of %(known)s", name="mode", known=", ".join(MODES))
        )
    return Options(**values)


def _is_chosen(sent: FormData) -> bool:
    file = sent.get("file")
    is_file = isinstance(file, FormFile) and bool(file.filename)
    return is_file or any(str(sent.get(name) or "").strip() for name in ("folder", "upload"))


async def _chosen(studio: Studio, sent: FormData) -> tuple[Path | str, str, str]:
    """The place that a form names, its token if it is an upload, and a name for the data set."""
    file, token, folder = sent.get("file"), str(sent.get("upload") or ""), str(sent.get("folder") or "")
    if isinstance(file, FormFile) and file.filename:
        token = await places.keep_upload(studio.home, file.filename, _pieces(file))
        return places.uploaded(studio.home, token), token, Path(file.filename).stem
    if folder.strip():
        return _place(studio, folder, ""), "", _name_of(folder)
    if token:
        return places.uploaded(studio.home, token), token, str(sent.get("name") or "")
    raise InvalidArgument(texts.text("choose a file, or name a folder of the machine that runs the studio"))


def _place(studio: Studio, path: str, token: str) -> Path | str:
    if token:
        return places.uploaded(studio.home, token)
    if buckets.is_address(path):
        return buckets.checked(path)
    return path if path == DIGITS else places.server_path(studio.store, path)


def _name_of(path: str) -> str:
    return (
        texts.text("Handwritten digits")
        if path == DIGITS
        else Path(path.rstrip("/")).stem or texts.text("Images")
    )


async def _pieces(file: FormFile) -> AsyncIterator[bytes]:
    while piece := await file.read(1 << 20):
        yield piece


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """Pictures as text."""
    strip = base64.b64encode(found["strip"]).decode()
    examples = {mode: base64.b64encode(png).decode() for mode, png in found["examples"].items()}
    return found | {"strip": strip, "examples": examples}


def not_ready(row: Row) -> HTTPException:
    """What asks for images of a data set that has none yet is told so."""
    return HTTPException(
        409,
        texts.text("The data set is %(state)s: it has no images to show.", state=words.state(row["state"])),
    )
