"""A new training: data, a net, options, and what they come to before anything is started."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Annotated

from fastapi import APIRouter, File, Form, HTTPException, Query, Request, UploadFile
from fastapi.responses import RedirectResponse, Response

from jitdnn.caffe.update_rules import RULES
from jitdnn.errors import InvalidArgument
from jitdnn.studio import nets, texts
from jitdnn.studio.data import creation
from jitdnn.studio.look.pictures import data_url
from jitdnn.studio.nets.weights import keep_weights, kept_weights
from jitdnn.studio.store import Row, original_text
from jitdnn.studio.web import listing, planning
from jitdnn.studio.web.context import Here, Link, Route, Studio, is_part, page
from jitdnn.studio.web.pages.run import read_run
from jitdnn.studio.web.trainings import Training, dataset_of, from_form, start
from jitdnn.studio.work.queue import first_place

router = APIRouter(route_class=Route)
NAVIGATION = (Link(30, "/train", "train", texts.mark("New training"), short=texts.mark("Train")),)
#: the options of the page, in its groups
GROUPS = {
    texts.mark("Solver"): ("solver", "momentum", "decay", "clip", "accumulate", "weight_average", "seed"),
    texts.mark("Loss"): ("smoothing", "class_weights"),
    texts.mark("Learning rate"): ("gamma", "power", "step", "steps", "warmup"),
    texts.mark("Images"): ("mean", "scale", "crop", "mirror"),
    texts.mark("Tests and snapshots"): ("tests", "snapshots"),
    texts.mark("Fine-tuning"): ("weights", "freeze"),
    texts.mark("Arithmetic and memory"): ("math", "memory_limit"),
}

#: what is subtracted from images
_MEANS = {
    "as in the net": texts.mark("As in the net"),
    "none": texts.mark("None"),
    "pixel": texts.mark("Pixel"),
    "image": texts.mark("Image"),
}


@router.get("/train", include_in_schema=False)
def train_form(
    request: Request, studio: Here, dataset: Annotated[int, Query(ge=0, le=1 << 62)] = 0,
    run: Annotated[int, Query(ge=0, le=1 << 62)] = 0, net: str = "",
) -> Response:  # fmt: skip
    """The form: a copy of `run`, for `dataset`, with the net `net` of the gallery; each may be absent."""
    text, given = "", {}
    if run:
        old = listing.run(studio.store, run)
        text = original_text(studio.store.folder(run))
        given, dataset = old["options"], dataset or old["dataset"] or 0
    return _form(request, studio, dataset, text, given, run, net)


@router.post("/train/imported", include_in_schema=False)
def imported_form(
    request: Request, studio: Here, net: Annotated[str, Form(max_length=2_000_000)],
    weights: Annotated[str, Form(max_length=200)] = "",
) -> Response:  # fmt: skip
    """The form with a net that was brought from elsewhere."""
    return training_form(request, studio, net, {"weights": weights} if weights else {})


def training_form(request: Request, studio: Studio, text: str, given: Row) -> Response:
    """The form with a net and options from elsewhere, for the newest data set."""
    return _form(request, studio, 0, text.replace("\r\n", "\n"), given)


def _form(
    request: Request, studio: Studio, dataset: int, text: str, given: Row, run: int = 0, net: str = ""
) -> Response:
    store = studio.store
    datasets = store.rows("SELECT * FROM dataset WHERE state = 'ready' ORDER BY id DESC LIMIT 500")
    chosen = next((d for d in datasets if d["id"] == dataset), datasets[0] if datasets else None)
    gallery = _gallery(chosen)
    text = text or next((each["text"] for each in gallery if each["key"] == net), gallery[0]["text"])
    return page(
        request, "train.html", datasets=datasets, chosen=chosen, gallery=gallery, text=text, copied=run,
        options=_options(given), schedules=nets.SCHEDULES, groups=GROUPS, choices=_choices(studio),
        places=store.rows("SELECT * FROM place WHERE state != 'gone' ORDER BY device = 'cpu', id"),
    )  # fmt: skip


@router.get("/train/nets/{key}", include_in_schema=False)
def net_text(key: str) -> Response:
    """A net of the gallery as its prototxt: all of them are more than the rest of the page."""
    found = next((net["text"] for net in nets.gallery() if net["key"] == key), None)
    if found is None:
        raise HTTPException(404, texts.text("There is no such net in the gallery."))
    return Response(found, media_type="text/plain; charset=utf-8")


def _gallery(dataset: Row | None) -> list[Row]:
    """The nets for a data set's task, those that are meant for its size first."""
    if dataset is None:
        return nets.gallery()
    _, height, width = (*dataset["shape"], 0, 0, 0)[:3]
    found = nets.gallery(dataset["task"]) or nets.gallery()
    for net in found:
        is_along = (
            net["is_for_signals"] or "Convolution" not in net["text"]
        )  # windows of images are higher than a row
        is_kind = is_along if height == 1 < width else not net["is_for_signals"]
        net["fits"] = is_kind and net["size"][0] <= width <= net["size"][1]
    return sorted(found, key=lambda net: not net["fits"])


def _options(given: Row) -> dict[str, Row]:
    """Name, value as a field holds it, and meaning of each option."""
    found = {}
    for option in fields(nets.Options):
        value = given.get(option.name, option.default)
        if isinstance(value, list | tuple):
            value = ", ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in value)
        found[option.name] = {"value": "" if value is None else value, "about": option.metadata["about"]}
    return found


def _choices(studio: Studio) -> dict[str, list[tuple[str, str]]]:
    """Options that are chosen from a list: value and title."""
    trained = studio.store.rows(
        "SELECT id, name FROM run WHERE best_at IS NOT NULL ORDER BY id DESC LIMIT 200"
    )
    return {
        "solver": [(name, name) for name in RULES],
        "math": [
            ("", texts.text("As the machine's settings say")),
            ("fp32", "fp32"),
            ("tf32", texts.text("tf32, on matrix units of GPUs")),
        ],
        "mean": [(name, texts.said(_MEANS[name])) for name in nets.MEANS],
        "mirror": [
            ("", texts.text("As in the net")),
            ("true", texts.text("Yes")),
            ("false", texts.text("No")),
        ],
        "weights": [
            ("", texts.text("Nothing: random weights")),
            *((f"run:{r['id']}", texts.text("Best of %(name)s", name=r["name"])) for r in trained),
            *((f"file:{name}", name) for name in kept_weights(studio.home)),
        ],
    }


async def _asked(request: Request) -> Training:
    form = await request.form()
    return from_form({name: value for name, value in form.items() if isinstance(value, str)})


@router.post("/train/check", include_in_schema=False)
async def check_part(request: Request, studio: Here) -> Response:
    """What the form comes to; what is wrong is part of the answer, not a refusal."""
    template = "check.html" if is_part(request) else "checked.html"
    try:
        asked = await _asked(request)
        found, dataset = await check(studio, asked), dataset_of(studio, asked.dataset)
    except InvalidArgument as error:
        wrong = {"ok": False, "error": str(error), "line": None}
        return page(request, template, found=wrong, dataset=None, asked=None)
    return page(request, template, found=found, asked=asked, dataset=dataset)


@router.post("/api/check")
async def check(studio: Here, asked: Training) -> Row:
    """Whether a net can be trained: its layers with their shapes and weights, or what is wrong in which line."""
    dataset = dataset_of(studio, asked.dataset)
    return await studio.inspector.inspect(nets.check, asked.net, asked.values(studio), dataset, studio.home)


@router.post("/train/plan", include_in_schema=False)
async def plan_part(request: Request, studio: Here, longer: bool = False) -> Response:
    """The layers of a net that fits, with how each would run; `longer`: with all ways in less workspace. Nothing for a
    net that does not fit: somebody types, and the check says what is wrong."""
    try:
        asked = await _asked(request)
        planned = await plan(studio, asked, longer)
    except InvalidArgument:
        return Response(status_code=204)
    return page(request, "plan.html", found={"layers": planned["net"]}, planned=planned, longer=longer)


@router.post("/api/plan")
async def plan(studio: Here, asked: Training, longer: bool = False) -> Row:
    """How each convolution of a net would run where it would start (`wants`): algorithm, seconds, workspace, and what
    else there is. Ways in less workspace are looked for in half a second, `longer` in some; `is_whole`: all were."""
    dataset, place = dataset_of(studio, asked.dataset), first_place(studio.store, asked.wants)
    seconds = planning.LONGER if longer else planning.QUICK
    return await studio.inspector.inspect(
        planning.plan, asked.net, asked.values(studio), dataset, studio.home, place, seconds
    )


@router.post("/train/graph", include_in_schema=False)
async def graph_part(request: Request, studio: Here) -> Response:
    """The net as a drawing; nothing for a net that does not fit."""
    try:
        drawn = await graph(studio, await _asked(request))
    except InvalidArgument:
        return Response(status_code=204)
    return page(request, "train_graph.html", graph=drawn) if drawn["ok"] else Response(status_code=204)


@router.post("/api/graph")
async def graph(studio: Here, asked: Training) -> Row:
    """A net laid out as a drawing: places, shapes and cost of its layers, and edges as paths of SVG; or what is wrong
    in which line."""
    dataset = dataset_of(studio, asked.dataset)
    return await studio.inspector.inspect(nets.graph, asked.net, asked.values(studio), dataset, studio.home)


@router.post("/train/preview", include_in_schema=False)
async def preview_part(request: Request, studio: Here) -> Response:
    """Some training images as the net gets them; nothing for a net that does not fit."""
    try:
        found = await _preview(studio, await _asked(request))
    except InvalidArgument:
        return Response(status_code=204)
    return page(request, "preview.html", found=found, png=data_url(found["png"]))


@router.post("/api/preview", response_class=Response)
async def preview(studio: Here, asked: Training) -> Response:
    """A PNG of training images as the net gets them: two of them six times, cropped and mirrored as in training; where
    nothing is random, six."""
    return Response((await _preview(studio, asked))["png"], media_type="image/png")


async def _preview(studio: Studio, asked: Training) -> Row:
    dataset = dataset_of(studio, asked.dataset)
    arguments = (asked.net, asked.values(studio), dataset, studio.home)
    found: Row = await studio.inspector.inspect(nets.preview, *arguments)
    if not found["ok"]:
        raise InvalidArgument(found["error"])
    return found


@router.post("/train", include_in_schema=False)
async def train(request: Request, studio: Here) -> Response:
    return RedirectResponse(f"/runs/{await start(studio, await _asked(request))}", 303)


@router.post("/api/runs", status_code=201)
async def create_run(studio: Here, asked: Training) -> Row:
    """Queue a training."""
    return read_run(studio, await start(studio, asked))


@router.get("/api/weights")
def list_weights(studio: Here) -> list[str]:
    """Files of weights that trainings can begin from, as `file:NAME` in their option `weights`."""
    return kept_weights(studio.home)


@router.post("/api/weights", status_code=201)
def upload_weights(studio: Here, file: Annotated[UploadFile, File()]) -> dict[str, str]:
    """Keep a .caffemodel, .npz or .h5 to fine-tune from; the answer's `weights` is the option's value."""
    return {"weights": f"file:{keep_weights(studio.home, file.filename or '', file.file)}"}


@router.get("/api/nets")
def list_nets(task: str | None = None) -> list[Row]:
    """The nets of the gallery, as prototxt."""
    return nets.gallery(task)


@router.post("/first", include_in_schema=False)
async def first(studio: Here) -> Response:
    """From an empty home to a net that is trained, by one click."""
    number = await asyncio.to_thread(creation.digits, studio.store)
    text = nets.gallery("classification")[0]["text"]
    made = await start(studio, Training(dataset=number, net=text, name=texts.text("My first net")))
    return RedirectResponse(f"/runs/{made}", 303)
