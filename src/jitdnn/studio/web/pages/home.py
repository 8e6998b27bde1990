"""The first page: what runs now, the data sets, all runs; at the first start, one button that trains a net."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from jitdnn.studio.store import Row
from jitdnn.studio.web import listing
from jitdnn.studio.web.context import Here, Link, Route, is_part, page

router = APIRouter(route_class=Route)
NAVIGATION = (Link(10, "/", "runs", "Runs"),)
#: data sets shown on the first page, the newest first
CARDS = 12


@router.get("/", include_in_schema=False)
def home(
    request: Request, studio: Here, q: str = "", start: Annotated[int, Query(ge=0, le=1 << 40)] = 0
) -> Response:
    store = studio.store
    found = listing.runs(store, q, start, listing.PAGE + 1)
    values = {"runs": found[: listing.PAGE], "more": len(found) > listing.PAGE, "q": q, "start": start}
    if is_part(request):
        return page(request, "rows.html", **values)
    live = listing.runs(store, count=4, where="state = 'running' AND kind = 'train'")
    return page(
        request, "home.html", total=listing.count(store, "run"), live=live, **values,
        active=bool(live) or any(run["state"] == "queued" for run in found),
        datasets=store.rows("SELECT * FROM dataset ORDER BY id DESC LIMIT ?", CARDS),
    )  # fmt: skip


@router.get("/api/runs")
def list_runs(
    studio: Here,
    q: str = "",
    start: Annotated[int, Query(ge=0, le=1 << 40)] = 0,
    count: Annotated[int, Query(ge=1, le=1000)] = listing.PAGE,
) -> list[Row]:
    """Runs, the newest first, those that have every word of `q` in name, net, data set, note or state."""
    return [listing.public(row) for row in listing.runs(studio.store, q, start, count)]


@router.get("/runs/latest", include_in_schema=False)
def latest(studio: Here) -> Response:
    """The newest run: an address that always shows what goes on."""
    found = studio.store.rows("SELECT id FROM run ORDER BY id DESC LIMIT 1")
    return RedirectResponse(f"/runs/{found[0]['id']}" if found else "/", 303)
