"""One run: its status and curves while they grow, what happened, its files; pause, resume, stop, describe, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.store import Row, Store, plain_files
from jitdnn.studio.web import charts, curve_files, listing, stream
from jitdnn.studio.web.context import Here, Link, Route, Studio, csv_file, is_part, page
from jitdnn.studio.work import control, disk_space

router = APIRouter(route_class=Route)
TABS = (Link(10, "", "runs", texts.mark("Curves")),)
#: what happened, on the page; the API has all
MARKS: Final = 60
#: points of a curve that a page draws
DRAWN: Final = 1500
_PLAIN: Final = (".prototxt", ".log", ".txt", ".csv", ".json")


class Description(BaseModel):
    """What may be changed in a run at any time; what is absent stays as it is."""

    name: str | None = Field(default=None, min_length=1, max_length=120)
    note: str | None = Field(default=None, max_length=20_000)
    hidden: bool | None = Field(default=None, description="left out of the list of runs")


class Note(BaseModel):
    """A mark in the course of a run."""

    text: str = Field(min_length=1, max_length=500)


# ---- the page


@router.get("/runs/{number}", include_in_schema=False)
def run_page(request: Request, studio: Here, number: int) -> Response:
    run = listing.run(studio.store, number)
    if run["kind"] == "sweep":
        return RedirectResponse(f"/sweeps/{number}", 303)
    parent = studio.store.one("run", run["parent"]) if run["parent"] else None
    return page(
        request, "run.html", run=run, parent=parent, marks=_marks(studio, number)[:MARKS], files=files(studio, number),
        dataset=studio.store.one("dataset", run["dataset"]) if run["dataset"] else None,
        seq=stream.last_seq(studio.store, number), **_drawn(studio, run),
    )  # fmt: skip


@router.get("/runs/{number}/curves", include_in_schema=False)
def curves_part(request: Request, studio: Here, number: int) -> Response:
    """The charts alone: asked for when a run tells of a series that the page has no chart for."""
    run = listing.run(studio.store, number)
    return page(request, "curves.html", run=run, **_drawn(studio, run))


def _drawn(studio: Studio, run: Row) -> dict[str, Any]:
    found = charts.charts(studio.store.series_names(run["id"]), run.get("task"))
    drawings = []
    for chart in found:
        curves = {
            line.name: studio.store.series(
                run["id"], line.name, most=240, smooth=0.95 if line.is_smoothed else 0
            )
            for line in chart.lines
            if line.kind != "raw"
        }
        drawings.append(charts.drawing(chart, curves, run["max_iter"]))
    return {"charts": found, "drawings": drawings, "smoothing": charts.SMOOTHING}


# ---- its state


@router.get("/api/runs/{number}")
def read_run(studio: Here, number: int) -> Row:
    """A run: options, state, newest numbers."""
    return listing.public(listing.run(studio.store, number))


@router.patch("/api/runs/{number}")
def change_run(studio: Here, number: int, change: Description) -> Row:
    """Change name, note, or whether a run is hidden."""
    studio.get("run", number)
    values = {name: value for name, value in change.model_dump().items() if value is not None}
    if values:
        studio.store.update("run", number, **values)
    return read_run(studio, number)


@router.post("/runs/{number}/describe", include_in_schema=False)
def describe(
    studio: Here,
    number: int,
    name: Annotated[str, Form()] = "",
    note: Annotated[str, Form(max_length=20_000)] = "",
) -> Response:
    change_run(studio, number, Description(name=name.strip()[:120] or None, note=note))
    return RedirectResponse(f"/runs/{number}", 303)


def _act(studio: Studio, number: int, action: Callable[[Store, int], str]) -> Row:
    studio.get("run", number)
    try:
        action(studio.store, number)
    except InvalidArgument as error:
        raise HTTPException(409, str(error)) from None
    studio.queue.wake()
    return read_run(studio, number)


@router.post("/api/runs/{number}/pause")
def pause_run(studio: Here, number: int) -> Row:
    """Have a run write a snapshot, end, and free its place; it can be resumed."""
    return _act(studio, number, control.pause)


@router.post("/api/runs/{number}/resume")
def resume_run(studio: Here, number: int) -> Row:
    """Queue a run that was paused, stopped, interrupted or failed; it goes on from its newest snapshot."""
    return _act(studio, number, control.resume)


@router.post("/api/runs/{number}/stop")
def stop_run(studio: Here, number: int) -> Row:
    """End a run early and keep what it has learned."""
    return _act(studio, number, control.stop)


@router.post("/runs/{number}/pause", include_in_schema=False)
@router.post("/runs/{number}/resume", include_in_schema=False)
@router.post("/runs/{number}/stop", include_in_schema=False)
def act_page(request: Request, studio: Here, number: int) -> Response:
    twins = {"pause": pause_run, "resume": resume_run, "stop": stop_run}
    twins[request.url.path.rpartition("/")[2]](studio, number)
    if is_part(request):
        return page(request, "status.html", run=listing.run(studio.store, number))
    return RedirectResponse(f"/runs/{number}", 303)


# ---- deleting


@router.get("/runs/{number}/delete", include_in_schema=False)
def delete_page(request: Request, studio: Here, number: int) -> Response:
    run = listing.run(studio.store, number)
    after = disk_space.dependents(studio.store, number)
    return page(request, "run_delete.html", run=run, files=files(studio, number), dependents=after)


@router.post("/runs/{number}/delete", include_in_schema=False)
def delete_form(studio: Here, number: int) -> Response:
    delete_run(studio, number)
    return RedirectResponse("/", 303)


@router.delete("/api/runs/{number}", status_code=204)
def delete_run(studio: Here, number: int) -> None:
    """Remove a run with its curves, weights and files, a sweep with its trials. Refused while it runs or waits."""
    studio.get("run", number)
    try:
        disk_space.remove_run(studio.store, number, with_trials=True)
    except InvalidArgument as error:
        raise HTTPException(409, str(error)) from None


# ---- what happened


def _marks(studio: Studio, number: int) -> list[Row]:
    return studio.store.rows("SELECT * FROM mark WHERE run = ? ORDER BY seq DESC", number)


@router.get("/api/runs/{number}/marks")
def list_marks(studio: Here, number: int) -> list[Row]:
    """What happened in a run, the newest first: snapshots, pauses, notes of its user."""
    studio.get("run", number)
    return _marks(studio, number)


@router.post("/api/runs/{number}/marks", status_code=201)
def add_mark(studio: Here, number: int, note: Note) -> Row:
    """Note something at the iteration where a run is."""
    studio.store.mark(number, studio.get("run", number)["iteration"], note.text)
    return _marks(studio, number)[0]


@router.post("/runs/{number}/marks", include_in_schema=False)
def mark_form(
    studio: Here, number: int, text: Annotated[str, Form(min_length=1, max_length=500)]
) -> Response:
    add_mark(studio, number, Note(text=text))
    return RedirectResponse(f"/runs/{number}#marks", 303)


# ---- files


def files(studio: Studio, number: int) -> list[Row]:
    """The files of a run."""
    return [{"name": f.name, "bytes": f.stat().st_size} for f in plain_files(studio.store.folder(number))]


@router.get("/api/runs/{number}/files")
def list_files(studio: Here, number: int) -> list[Row]:
    """Names and sizes of a run's files."""
    studio.get("run", number)
    return files(studio, number)


@router.get("/runs/{number}/files/{name}", include_in_schema=False)
@router.get("/api/runs/{number}/files/{name}", response_class=FileResponse)
def read_file(studio: Here, number: int, name: str) -> Response:
    """A file of a run; found in the list of them, so that no name leads out of the folder."""
    if name not in [file["name"] for file in list_files(studio, number)]:
        raise HTTPException(404, texts.text("There is no such file."))
    path = studio.store.folder(number) / name
    if path.suffix in _PLAIN:
        return FileResponse(path, media_type="text/plain; charset=utf-8")
    return FileResponse(path, media_type="application/octet-stream", filename=name)


# ---- curves

Names = Annotated[list[str], Query(max_length=50)]
Iteration = Annotated[int, Query(ge=0, le=1 << 60)]


@router.get("/api/runs/{number}/series")
def read_series(
    studio: Here,
    number: int,
    name: Names,
    low: Iteration = 0,
    high: Iteration = 1 << 60,
    most: Annotated[int, Query(ge=2, le=100_000)] = DRAWN,
    smooth: Annotated[float, Query(ge=0, lt=1)] = 0,
) -> dict[str, list[list[int | float | None]]]:
    """[iterations, values] of curves: the least and the greatest of each stretch where there are more than `most`."""
    studio.get("run", number)
    return {each: studio.store.series(number, each, low, high, most, smooth) for each in name}


@router.get("/api/runs/{number}/series.csv", response_class=Response)
def read_csv(studio: Here, number: int, name: Names) -> Response:
    """Curves as they were written: a line for each iteration, a column for each series."""
    studio.get("run", number)
    return csv_file(
        curve_files.lines(studio.store, [(number, each, each) for each in name]), f"run-{number}.csv"
    )


@router.get("/api/runs/{number}/events", response_class=StreamingResponse)
async def read_events(
    request: Request, studio: Here, number: int, after: Annotated[int, Query(ge=0, le=1 << 62)] = 0
) -> Response:
    """Server-sent events: `points` in the order of their writing, `status` and `marks` as HTML.

    Each `points` has the place in that order as its id, so a stream goes on where it was broken off (Last-Event-ID).
    """
    studio.get("run", number)
    last = request.headers.get("last-event-id", "")
    after = int(last) if last.isdecimal() and len(last) < 19 else after

    def status() -> str | None:
        found = listing.find(studio.store, number)
        return studio.render("status.html", run=found) if found else None

    def marks() -> str | None:
        return studio.render("marks.html", marks=_marks(studio, number)[:MARKS])

    def machine() -> str | None:
        return studio.render("machine.html", machine=studio.machine())

    async def told() -> AsyncIterator[str]:
        async for text in stream.events(
            studio.watching, number, after, {"status": status, "marks": marks, "machine": machine}
        ):
            yield text

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(told(), media_type="text/event-stream", headers=headers)
