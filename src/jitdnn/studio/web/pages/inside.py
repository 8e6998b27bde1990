"""What is inside of a trained net: activations, filters, what an answer depends on, what units look for."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, File, Form, HTTPException, Query, Request, UploadFile
from fastapi.responses import Response

from jitdnn.studio import texts
from jitdnn.studio.look import gradients, layers, maximize, saliency, strongest
from jitdnn.studio.look.pictures import data_url
from jitdnn.studio.look.trained import Given
from jitdnn.studio.store import Row
from jitdnn.studio.web import trained_runs
from jitdnn.studio.web.context import Here, Link, Route, Studio, page
from jitdnn.studio.web.trained_runs import Part, TrainedRun, WeightsName

router = APIRouter(route_class=Route)
TABS = (Link(40, "/inside", "eye", texts.mark("Look inside")),)
KINDS = {
    "gradient": texts.mark("Gradient"),
    "smooth": texts.mark("Smoothed gradient"),
    "occlusion": texts.mark("Occlusion"),
}
Kind = Annotated[str, Query(pattern="^(gradient|smooth|occlusion)$")]
#: of the ascent to what units answer to: gentler than by itself, for pictures that are looked at
_RATE: Final = 0.03
At = Annotated[int, Query(ge=0, le=1 << 40, description="the number of an image of the part")]
Layer = Annotated[str, Query(max_length=500)]
Unit = Annotated[int, Query(ge=0, le=1 << 30)]
Target = Annotated[
    int | None, Query(ge=0, le=1 << 30, description="the class; without it the one that is said")
]


@router.get("/runs/{number}/inside", include_in_schema=False)
async def inside_page(
    request: Request, studio: Here, number: int, part: Part = "", at: At = 0, weights: WeightsName = "",
    view: Annotated[str, Query(pattern="^(activations|gradients)$")] = "activations", target: Target = None,
) -> Response:  # fmt: skip
    found = trained_runs.trained_run(studio, number, weights)
    part = part or found.data.evaluation_part
    values = trained_runs.options_of(found) | {
        "part": part,
        "at": at,
        "count": found.data.count(part),
        "kinds": KINDS,
        "view": view,
    }
    if found.chosen is not None and view == "gradients":
        values["inside"] = await _gradients(studio, found, part, at, target)
    elif found.chosen is not None:
        values["inside"] = await _activations(studio, found, None, part, at, False)
    return page(request, "inside.html", **values)


@router.post("/runs/{number}/inside", include_in_schema=False)
async def inside_part(
    request: Request, studio: Here, number: int, file: Annotated[UploadFile | None, File()] = None,
    part: Annotated[str, Form()] = "", at: Annotated[int, Form(ge=0)] = 0, weights: Annotated[str, Form()] = "",
    inverted: Annotated[bool, Form()] = False,
) -> Response:  # fmt: skip
    found, _ = trained_runs.with_weights(studio, number, weights)
    content = await trained_runs.sent_image(file)
    inside = await _activations(studio, found, content, part, at, inverted)
    values = trained_runs.options_of(found) | {
        "part": part,
        "at": at,
        "kinds": KINDS,
        "view": "activations",
        "given": content is not None,
    }
    return page(request, "inside_layers.html", inside=inside, **values)


@router.get("/runs/{number}/inside/map", include_in_schema=False)
async def map_part(
    request: Request, studio: Here, number: int, kind: Kind = "gradient", part: Part = "", at: At = 0,
    target: Target = None, weights: WeightsName = "",
) -> Response:  # fmt: skip
    found = await explain(studio, number, kind, part, at, target, weights)
    found |= {name: data_url(found[name]) for name in ("image", "overlay")}
    values = trained_runs.options_of(trained_runs.trained_run(studio, number, weights))
    values |= {"found": found, "kinds": KINDS, "kind": kind, "part": part, "at": at, "target": target}
    return page(request, "inside_map.html", **values)


@router.get("/runs/{number}/inside/layers/{layer:path}", include_in_schema=False)
async def layer_page(
    request: Request, studio: Here, number: int, layer: str, part: Part = "", at: At = 0, weights: WeightsName = "",
    unit: Unit = 0,
) -> Response:  # fmt: skip
    """All maps of one layer, its weights, and what its units look for."""
    found, chosen = trained_runs.with_weights(studio, number, weights)
    part = part or found.data.evaluation_part
    asked = (studio.home, found.run, found.dataset)
    maps = partial(layers.maps_of, layer=layer, given=Given(part=part, at=at), weights=chosen.name)
    one = await studio.inspector.inspect(maps, *asked)
    learned = await studio.inspector.inspect(layers.learned, *asked, chosen.name)
    names = one["name"].split(" + ")
    values = trained_runs.options_of(found) | {"part": part, "at": at, "layer": one, "unit": unit}
    return page(
        request, "inside_layer.html", learned=[each for each in learned if each["name"] in names], **values
    )


@router.post("/runs/{number}/inside/maximize", include_in_schema=False)
async def maximize_part(
    request: Request, studio: Here, number: int, layer: Annotated[str, Form(max_length=500)],
    first: Annotated[int, Form(ge=0, le=1 << 30)] = 0, units: Annotated[int, Form(ge=1, le=maximize.MOST_UNITS)] = 16,
    count: Annotated[int, Form(ge=1)] = 1, steps: Annotated[int, Form(ge=1, le=maximize.MOST_STEPS)] = 128,
    weights: Annotated[str, Form()] = "",
) -> Response:  # fmt: skip
    chosen = list(range(first, min(first + units, count))) or [0]
    found = await seek(studio, number, layer, chosen, steps, weights=weights)
    for image in found["images"]:
        image["png"] = data_url(image["png"])
    return page(request, "inside_units.html", found=found)


@router.get("/runs/{number}/inside/strongest", include_in_schema=False)
async def strongest_part(
    request: Request, studio: Here, number: int, layer: Layer, first: Unit = 0,
    units: Annotated[int, Query(ge=1, le=strongest.MOST_UNITS)] = 8, count: Annotated[int, Query(ge=1)] = 1,
    part: Part = "", weights: WeightsName = "",
) -> Response:  # fmt: skip
    chosen = list(range(first, min(first + units, count))) or [0]
    values = trained_runs.options_of(trained_runs.trained_run(studio, number, weights))
    values["found"] = await strongest_images(studio, number, layer, chosen, part, weights=weights)
    return page(request, "inside_strongest.html", **values)


# ---- REST


@router.get("/api/runs/{number}/inside")
async def activations(
    studio: Here, number: int, part: Part = "", at: At = 0, weights: WeightsName = "", pictures: bool = False
) -> Row:
    """Every layer for one image of a part: shape, statistics and histogram, with `pictures` PNGs as data URLs."""
    found, _ = trained_runs.with_weights(studio, number, weights)
    shown: Row = _plain(await _activations(studio, found, None, part, at, False), pictures)
    return shown


@router.get("/api/runs/{number}/inside/weights")
async def learned(studio: Here, number: int, weights: WeightsName = "", pictures: bool = False) -> list[Row]:
    """Every weight: shape, statistics and histogram, with `pictures` its filters as PNGs in data URLs."""
    found, chosen = trained_runs.with_weights(studio, number, weights)
    listed = await studio.inspector.inspect(
        layers.learned, studio.home, found.run, found.dataset, chosen.name
    )
    return [_plain(each, pictures) for each in listed]


@router.get("/api/runs/{number}/inside/gradients")
async def layer_gradients(
    studio: Here, number: int, part: Part = "", at: At = 0, target: Target = None, weights: WeightsName = "",
    pictures: bool = False,
) -> Row:  # fmt: skip
    """The gradient of a class's score by what each layer makes of an image (`layers`) and by each weight (`learned`):
    shape, statistics and histogram, with `pictures` PNGs as data URLs."""
    found, _ = trained_runs.with_weights(studio, number, weights)
    shown: Row = _plain(await _gradients(studio, found, part, at, target), pictures)
    return shown


@router.get("/api/runs/{number}/inside/strongest")
async def strongest_images(
    studio: Here, number: int, layer: Layer,
    unit: Annotated[list[int], Query(min_length=1, max_length=strongest.MOST_UNITS)], part: Part = "",
    shown: Annotated[int, Query(ge=1, le=strongest.MOST_SHOWN)] = 8,
    images: Annotated[int, Query(ge=1, le=strongest.MOST_IMAGES)] = 2000, weights: WeightsName = "",
) -> Row:  # fmt: skip
    """The images of a part that units of a layer answer to most, of up to so many: `units`, each with the mean of its
    answers and `images` (`at`, `value`, and where: `row` and `column` as parts of the height and the width)."""
    found, chosen = trained_runs.with_weights(studio, number, weights)
    look = partial(strongest.strongest, part=part, shown=shown, images=images, weights=chosen.name)
    return await studio.inspector.inspect(look, studio.home, found.run, found.dataset, layer, unit)


@router.get("/api/runs/{number}/inside/units.png", response_class=Response)
async def units_png(
    studio: Here, number: int, layer: Layer,
    unit: Annotated[list[int], Query(max_length=maximize.MOST_UNITS)],
    steps: Annotated[int, Query(ge=1, le=maximize.MOST_STEPS)] = 128, seed: Annotated[int, Query(ge=0)] = 0,
    weights: WeightsName = "",
) -> Response:  # fmt: skip
    """Images that units of a layer answer most strongly to, beside each other."""
    found = await seek(studio, number, layer, unit, steps, seed, weights)
    return Response(found["tiles"], media_type="image/png")


@router.get("/api/runs/{number}/inside/{kind}.png", response_class=Response)
async def map_png(
    studio: Here,
    number: int,
    kind: str,
    part: Part = "",
    at: At = 0,
    target: Target = None,
    weights: WeightsName = "",
) -> Response:
    """Which pixels an answer depends on, over the image: `kind` is gradient, smooth or occlusion."""
    found = await explain(studio, number, kind, part, at, target, weights)
    return Response(found["overlay"], media_type="image/png")


async def explain(
    studio: Studio, number: int, kind: str, part: str, at: int, target: int | None, weights: str
) -> Row:
    """What `saliency` finds, in the inspector; 404 for another kind."""
    if kind not in KINDS:
        raise HTTPException(
            404, texts.text("There is no map %(kind)s: %(known)s.", kind=kind, known=", ".join(KINDS))
        )
    found, chosen = trained_runs.with_weights(studio, number, weights)
    given = Given(part=part, at=at)
    explained = partial(saliency.saliency, kind=kind, given=given, weights=chosen.name, target=target)
    return await studio.inspector.inspect(explained, studio.home, found.run, found.dataset)


async def seek(
    studio: Studio, number: int, layer: str, units: list[int], steps: int, seed: int = 0, weights: str = ""
) -> Row:
    """What `maximize` makes, in the inspector."""
    found, chosen = trained_runs.with_weights(studio, number, weights)
    made = partial(maximize.maximize, steps=steps, rate=_RATE, seed=seed, weights=chosen.name)
    return await studio.inspector.inspect(made, studio.home, found.run, found.dataset, layer, units)


async def _activations(
    studio: Studio, found: TrainedRun, content: bytes | None, part: str, at: int, inverted: bool
) -> Row:
    name = found.chosen.name if found.chosen else ""
    given = Given(content, part, at, inverted)
    shown = await studio.inspector.inspect(
        partial(layers.activations, given=given, weights=name), studio.home, found.run, found.dataset
    )
    return shown | {"image": data_url(shown["image"])}


async def _gradients(studio: Studio, found: TrainedRun, part: str, at: int, target: int | None) -> Row:
    name = found.chosen.name if found.chosen else ""
    look = partial(gradients.gradients, given=Given(part=part, at=at), target=target, weights=name)
    shown = await studio.inspector.inspect(look, studio.home, found.run, found.dataset)
    return shown | {"image": data_url(shown["image"])}


def _plain(value: Any, pictures: bool) -> Any:
    """A result as JSON has it: pictures as data URLs, or left out."""
    if is_dataclass(value) and not isinstance(value, type):
        found = asdict(value)
        found["png"] = data_url(found["png"])
        return found if pictures else None
    if isinstance(value, dict):
        kept = {name: _plain(each, pictures) for name, each in value.items() if pictures or name != "image"}
        return {name: each for name, each in kept.items() if pictures or name not in ("tiles", "picture")}
    return [_plain(each, pictures) for each in value] if isinstance(value, list) else value
