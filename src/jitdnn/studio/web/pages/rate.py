"""A learning rate for a new training, found by a short one whose rate rises."""

from __future__ import annotations

import math
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from jitdnn.errors import InvalidArgument
from jitdnn.studio import nets
from jitdnn.studio.store import Row
from jitdnn.studio.web.context import Here, Route, Studio, is_part, page
from jitdnn.studio.web.trainings import Training, dataset_of, from_form

router = APIRouter(route_class=Route)
#: seconds that the short training may take, about, and after which it is ended with its process
SECONDS: Final = 60.0
MOST_SECONDS: Final = 300.0
WIDTH, HEIGHT = 600, 200


@router.post("/train/rate", include_in_schema=False)
async def rate_part(request: Request, studio: Here) -> Response:
    """The curve of the loss over the rate for the form, and what it suggests; what is wrong is part of the answer."""
    form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    template = "rate.html" if is_part(request) else "rate_page.html"
    try:
        found = await _found(studio, from_form(form))
    except InvalidArgument as error:
        return page(request, template, found=None, error=str(error))
    return page(request, template, found=found, error="", drawn=drawing(found))


@router.post("/api/rate")
async def find_rate(studio: Here, asked: Training) -> Row:
    """Train from the start for about a minute at most, with a rate that rises from 1e-6 to 10: `rates`, `losses`,
    `smooth` (their mean), `suggestion` (null where the loss never fell), `lowest`, `has_diverged`, `is_whole`. Nothing
    of it is kept."""
    return await _found(studio, asked)


async def _found(studio: Studio, asked: Training) -> Row:
    dataset, values = dataset_of(studio, asked.dataset), asked.values(studio)
    checked = await studio.inspector.inspect(nets.check, asked.net, values, dataset, studio.home)
    if not checked["ok"]:
        raise InvalidArgument(checked["error"])
    arguments = (asked.net, values, dataset, studio.home, SECONDS)
    found: Row = await studio.inspector.inspect(nets.find_rate, *arguments, seconds=MOST_SECONDS)
    return found


def drawing(found: Row) -> dict[str, Any]:
    """The curve as an SVG of WIDTH x HEIGHT: `dots`, `line`, `ticks` (x and rate of each decade), `mark`, the place of
    the suggestion; empty for less than two points."""
    rates, smooth = found["rates"], found["smooth"]
    if len(rates) < 2:
        return {}
    first, last = math.log10(rates[0]), math.log10(rates[-1])
    low, high = float(min(smooth)), float(max(smooth[0], sorted(smooth)[round(0.9 * (len(smooth) - 1))]))
    span = (high - low) or 1.0

    def x(rate: float) -> float:
        return float(round(WIDTH * (math.log10(rate) - first) / (last - first), 1))

    def y(loss: float) -> float:
        return float(round(HEIGHT * (0.95 - 0.85 * min(max((loss - low) / span, -0.05), 1.1)), 1))

    mark = found["suggestion"]
    return {
        "dots": [(x(rate), y(loss)) for rate, loss in zip(rates, found["losses"], strict=True)],
        "line": "M" + "L".join(f"{x(rate)},{y(loss)}" for rate, loss in zip(rates, smooth, strict=True)),
        "ticks": [(x(10.0**power), 10.0**power) for power in range(math.ceil(first), math.floor(last) + 1)],
        "mark": None if mark is None else x(mark),
    }
