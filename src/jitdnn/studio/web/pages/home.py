"""The first page: what runs now, the data sets, all runs; at the first start, one button that trains a net."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from jitdnn.studio import texts
from jitdnn.studio.store import Row
from jitdnn.studio.web import listing
from jitdnn.studio.web.context import Here, Link, Route, is_part, page

router = APIRouter(route_class=Route)
NAVIGATION = (Link(10, "/", "runs", texts.mark("Runs"), within=("/runs", "/compare")),)
#: data sets shown on the first page, the newest first
CARDS = 12
Start = Annotated[int, Query(ge=0, le=1 << 40)]


@router.get("/", include_in_schema=False)
def home(request: Request, studio: Here, q: str = "", start: Start = 0, hidden: bool = False) -> Response:
    """`hidden`: the runs that were hidden, and no others."""
    store = studio.store
    found = listing.runs(store, q, start, listing.PAGE + 1, where=_which(hidden))
    values: dict[str, Any] = {"runs": found[: listing.PAGE], "more": len(found) > listing.PAGE}
    values |= {"q": q, "start": start, "hidden": hidden}
    if is_part(request):
        return page(request, "rows.html", **values)
    running = "state = 'running' AND kind = 'train' AND hidden = 0"
    live = [] if hidden else listing.runs(store, count=4, where=running)
    return page(
        request, "home.html", live=live, **values,
        is_new=not listing.count(store, "run"), trainings=listing.count(store, "run", "hidden = 0 AND kind = 'train'"),
        hidden_runs=listing.count(store, "run", listing.HIDDEN), data_sets=listing.count(store, "dataset"),
        active=bool(live) or any(run["state"] == "queued" for run in found),
        datasets=store.rows("SELECT * FROM dataset ORDER BY id DESC LIMIT ?", CARDS),
    )  # fmt: skip


def _which(hidden: bool) -> str:
    return listing.HIDDEN if hidden else listing.LISTED


@router.post("/runs/hidden", include_in_schema=False)
def hide(
    studio: Here, run: Annotated[list[int] | None, Form(max_length=1000)] = None, hidden: Annotated[bool, Form()] = True
) -> Response:  # fmt: skip
    """Leave runs out of lists, or have them listed again; the page that they were chosen on follows."""
    for number in run or []:
        studio.get("run", number)
    for number in run or []:
        studio.store.update("run", number, hidden=hidden)
    return RedirectResponse("/" if hidden else "/?hidden=1", 303)


@router.get("/api/runs")
def list_runs(
    studio: Here,
    q: str = "",
    start: Start = 0,
    count: Annotated[int, Query(ge=1, le=1000)] = listing.PAGE,
    hidden: bool = False,
) -> list[Row]:
    """Runs, the newest first, those that have every word of `q` in name, net, data set, note, author or state. Those
    that were hidden are left out; with `hidden` there are only these."""
    found = listing.runs(studio.store, q, start, count, where=_which(hidden))
    return [listing.public(row) for row in found]


@router.get("/runs/latest", include_in_schema=False)
def latest(studio: Here) -> Response:
    """The newest training that is listed: an address that always shows what goes on. Trials of sweeps and what was
    hidden are left out."""
    sql = f"SELECT id FROM run WHERE {listing.LISTED} AND kind = 'train' ORDER BY id DESC LIMIT 1"
    found = studio.store.rows(sql)
    return RedirectResponse(f"/runs/{found[0]['id']}" if found else "/", 303)
