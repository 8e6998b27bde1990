"""The queue: where runs train, what trains now, and what comes next in which order."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.store import Row
from jitdnn.studio.web import listing
from jitdnn.studio.web.context import Here, Link, Route, Studio, is_part, page
from jitdnn.studio.work import control

router = APIRouter(route_class=Route)
NAVIGATION = (Link(40, "/queue", "queue", texts.mark("Queue")),)
PRIORITIES = {10: texts.mark("first"), 0: texts.mark("normal"), -10: texts.mark("last")}
_PLACES = "SELECT * FROM place WHERE state != 'gone' ORDER BY device = 'cpu', host, device, id"


class Order(BaseModel):
    """Waiting runs, the next one first; those that are not named come after them."""

    runs: list[Annotated[int, Field(ge=0, le=1 << 62)]] = Field(max_length=10_000)


class Place(BaseModel):
    """Whether a place takes runs: `off` lets what trains there end, and starts nothing."""

    state: Literal["free", "off"]


class Turn(BaseModel):
    """When and where a waiting run starts."""

    priority: int | None = Field(default=None, ge=-100, le=100, description="higher ones start first")
    wants: str | None = Field(
        default=None, max_length=40, description="cpu, cuda, cuda:1, #3 (a place), or any"
    )


@router.get("/queue", include_in_schema=False)
def queue_page(request: Request, studio: Here) -> Response:
    template = "queue_part.html" if is_part(request) else "queue.html"
    return page(request, template, **read_queue(studio), priorities=PRIORITIES)


@router.get("/api/queue")
def read_queue(studio: Here) -> dict[str, list[Row]]:
    """Places with what trains there, runs that train, and runs that wait, the next one first."""
    store = studio.store
    running = listing.runs(store, count=1000, where="state = 'running' AND kind = 'train'")
    places = store.rows(_PLACES)
    for place in places:
        place["runs"] = [{"id": r["id"], "name": r["name"]} for r in running if r["place"] == place["id"]]
    waiting = [listing.find(store, row["id"]) or row for row in control.queue(store)]
    return {
        "places": places,
        "running": [listing.public(row) for row in running],
        "waiting": [listing.public(row) for row in waiting],
    }


@router.put("/api/queue")
def order_queue(studio: Here, order: Order) -> dict[str, list[Row]]:
    """Have waiting runs start in another order (within their priorities)."""
    control.reorder(studio.store, order.runs)
    studio.queue.wake()
    return read_queue(studio)


@router.post("/queue/order", include_in_schema=False)
async def order_form(request: Request, studio: Here) -> Response:
    """The order as the rows were dropped."""
    form = await request.form()
    numbers = [int(n) for n in form.getlist("run") if isinstance(n, str) and n.isdecimal() and len(n) < 19]
    order_queue(studio, Order(runs=numbers))
    return _changed(request, studio)


@router.post("/queue/{number}/move", include_in_schema=False)
def move(
    request: Request, studio: Here, number: int, to: Annotated[Literal["up", "down"], Form()]
) -> Response:
    """One place earlier or later, by a key or without script."""
    order = [row["id"] for row in control.queue(studio.store)]
    if number not in order:
        raise HTTPException(409, texts.text("Run %(number)d does not wait any more.", number=number))
    at = order.index(number)
    other = min(max(at + (1 if to == "down" else -1), 0), len(order) - 1)
    order[at], order[other] = order[other], order[at]
    order_queue(studio, Order(runs=order))
    return _changed(request, studio)


@router.patch("/api/queue/{number}")
def change_turn(studio: Here, number: int, turn: Turn) -> Row:
    """Change the priority of a waiting run, or where it may train."""
    studio.get("run", number)
    if turn.wants is not None:
        _check_wants(studio, turn.wants)
        studio.store.update("run", number, wants=turn.wants)
    if turn.priority is not None:
        control.set_priority(studio.store, number, turn.priority)
    studio.queue.wake()
    return listing.public(studio.get("run", number))


@router.post("/queue/{number}/turn", include_in_schema=False)
def turn_form(
    request: Request, studio: Here, number: int, priority: Annotated[int, Form(ge=-100, le=100)] = 0,
    wants: Annotated[str, Form(max_length=40)] = "",
) -> Response:  # fmt: skip
    change_turn(studio, number, Turn(priority=priority, wants=wants))
    return _changed(request, studio)


@router.patch("/api/places/{number}")
def change_place(studio: Here, number: int, place: Place) -> Row:
    """Have a place take runs, or no more of them."""
    studio.get("place", number)
    studio.store.update("place", number, state=place.state)
    studio.queue.wake()
    return studio.get("place", number)


@router.post("/places/{number}", include_in_schema=False)
def place_form(
    request: Request, studio: Here, number: int, state: Annotated[Literal["free", "off"], Form()]
) -> Response:
    change_place(studio, number, Place(state=state))
    return _changed(request, studio)


def _changed(request: Request, studio: Studio) -> Response:
    return queue_page(request, studio) if is_part(request) else RedirectResponse("/queue", 303)


def _check_wants(studio: Studio, wants: str) -> None:
    """Raises InvalidArgument for a place or device that there never was: a run would wait for ever."""
    places: list[dict[str, Any]] = studio.store.rows("SELECT id, device FROM place")
    known = {"", "cpu", "cuda", *(f"#{p['id']}" for p in places), *(p["device"] for p in places)}
    if wants not in known:
        raise InvalidArgument(
            texts.text(
                "there is no place %(place)s: give one of %(known)s, or nothing",
                place=repr(wants),
                known=", ".join(sorted(known - {""})),
            )
        )
