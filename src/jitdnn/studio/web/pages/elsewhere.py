"""Runs that other programs wrote, brought into the store: curves to look at and to compare."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.places import server_path
from jitdnn.studio.store import foreign
from jitdnn.studio.web.context import Here, Route, page

router = APIRouter(route_class=Route)
#: before the pages of runs, one of which takes any name
ORDER = 40


class Elsewhere(BaseModel):
    """Where runs lie, on the machine that serves the studio."""

    path: str = Field(max_length=4096, description="a folder or a file below the folders in the settings")
    only_look: bool = Field(default=False, description="say what is there, and bring nothing")


@router.get("/runs/import", include_in_schema=False)
def bring_form(request: Request) -> Response:
    return page(request, "runs_import.html", path="", found=None, error="")


@router.post("/runs/import", include_in_schema=False)
async def bring_page(
    request: Request, studio: Here, path: Annotated[str, Form(max_length=4096)] = "", bring: bool = False
) -> Response:
    """What there is to bring, and with `bring` the list of runs with it."""
    try:
        told = await bring_runs(studio, Elsewhere(path=path, only_look=not bring))
    except InvalidArgument as refused:
        return page(request, "runs_import.html", status=422, path=path, found=None, error=str(refused))
    if bring:
        return RedirectResponse("/", 303)
    return page(request, "runs_import.html", path=path, found=told["found"], error="")


@router.post("/api/runs/import")
async def bring_runs(studio: Here, asked: Elsewhere) -> dict[str, Any]:
    """Bring the runs of a folder: event files of TensorBoard, .wandb files of W&B, jobs of DIGITS, logs of Caffe,
    tables (.csv, .jsonl). `found`: name, kind, points and series of each; `runs`: numbers of those that were made."""
    place = server_path(studio.store, asked.path)
    if asked.only_look:
        return {"found": await asyncio.to_thread(foreign.look, place), "runs": []}
    return {"found": [], "runs": await asyncio.to_thread(foreign.bring, studio.store, place)}
