"""Sweeps: many trainings that differ in a few options; begun from a run, shown as a table of trials."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import Field

from jitdnn.errors import InvalidArgument
from jitdnn.studio import nets, sweeps, texts
from jitdnn.studio.nets.weights import weights_file
from jitdnn.studio.store import Row, original_text
from jitdnn.studio.sweeps.plan import PRUNERS, SAMPLERS, check
from jitdnn.studio.web import listing
from jitdnn.studio.web.context import Here, Link, Route, Studio, is_part, page
from jitdnn.studio.web.trainings import Options, Training, dataset_of

router = APIRouter(route_class=Route)
NAVIGATION = (Link(35, "/sweeps", "sweep", texts.mark("Sweeps"), phone=False, within=("/sweeps",)),)
SAMPLER_TITLES = {
    "tpe": texts.mark("TPE: learns from the trials before"),
    "random": texts.mark("At random"),
    "grid": texts.mark("Grid: every combination"),
}
PRUNER_TITLES = {
    "none": texts.mark("Every trial to its end"),
    "median": texts.mark("End what is worse than the median"),
    "halving": texts.mark("Only the best third goes on, again and again"),
    "hyperband": texts.mark("The same, but some begin to be judged later (Hyperband)"),
}
_EXAMPLE = "rate: 1e-4 to 1e-1 log\nbatch: 32, 64, 128"


class Sweep(Training):
    """A training with what varies; the net may have `{{name}}` where a variable's value goes."""

    space: dict[str, dict[str, Any]] = Field(
        description='by name of an option or variable, {"low", "high", "log", "step"} or {"values"}',
        max_length=20,
    )
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    trials: int = Field(default=20, ge=1, le=10_000)
    pruner: Literal["none", "median", "halving", "hyperband"] = "none"
    metric: str = Field(default="val accuracy", max_length=200, description="the series of tests that counts")
    parallel: int = Field(
        default=0, ge=0, le=999, description="trials at a time; 0: as many as there are places"
    )
    seed: int = Field(default=1, ge=0, le=1 << 31)

    def plan(self) -> sweeps.Plan:
        """The sweep itself. Raises InvalidArgument."""
        named = ("sampler", "trials", "pruner", "metric", "parallel", "seed")
        return sweeps.Plan.of({name: getattr(self, name) for name in named} | {"space": self.space})


@router.get("/sweeps", include_in_schema=False)
def sweeps_page(request: Request, studio: Here) -> Response:
    return page(request, "sweeps.html", sweeps=list_sweeps(studio))


@router.get("/api/sweeps")
def list_sweeps(studio: Here) -> list[Row]:
    """All sweeps, the newest first; `iteration` of `max_iter` trials are over, `best_at` is the best of them."""
    return [
        listing.public(row)
        for row in listing.runs(studio.store, count=1000, where="kind = 'sweep' AND hidden = 0")
    ]


@router.get("/sweeps/new", include_in_schema=False)
def sweep_form(request: Request, studio: Here, run: Annotated[int, Query(ge=0, le=1 << 62)] = 0) -> Response:
    """A sweep over the options of `run`, of the newest one without."""
    store = studio.store
    newest = store.rows("SELECT id FROM run WHERE kind = 'train' ORDER BY id DESC LIMIT 1")
    number = run or (newest[0]["id"] if newest else 0)
    base = listing.run(store, number) if number else None
    given = {
        "space": _EXAMPLE,
        "sampler": "tpe",
        "trials": "20",
        "pruner": "none",
        "parallel": "0",
        "name": "",
    }
    return _form(request, studio, base, given, "")


def _form(request: Request, studio: Studio, base: Row | None, given: Row, error: str) -> Response:
    metrics = (
        [name for name in studio.store.series_names(base["id"]) if name.startswith("val ")] if base else []
    )
    text = given.get("net") or (original_text(studio.store.folder(base["id"])) if base else "")
    return page(
        request, "sweep_new.html", base=base, given=given, error=error, text=text,
        metrics=metrics or ["val accuracy", "val loss"],
        samplers=SAMPLER_TITLES, pruners=PRUNER_TITLES, status=422 if error else 200,
    )  # fmt: skip


@router.post("/sweeps/new", include_in_schema=False)
async def begin_sweep(request: Request, studio: Here) -> Response:
    form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    number = form.get("run", "")
    if not number.isdecimal() or len(number) > 18:
        raise InvalidArgument(texts.text("a sweep begins from a run: choose one"))
    base = listing.run(studio.store, int(number))
    try:
        made = await start(studio, _asked(base, form))
    except InvalidArgument as error:
        return _form(request, studio, base, form, str(error))
    return RedirectResponse(f"/sweeps/{made}", 303)


def _asked(base: Row, form: dict[str, str]) -> Sweep:
    """A sweep from the fields of the page. Raises InvalidArgument."""
    whole = {}
    for name in ("trials", "parallel"):
        text = form.get(name, "").strip() or "0"
        if not text.isdecimal() or len(text) > 5:
            raise InvalidArgument(
                texts.text("%(name)s is %(value)s: give a whole number", name=name, value=repr(text[:20]))
            )
        whole[name] = int(text)
    for name, known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        if form.get(name) not in known:
            raise InvalidArgument(
                texts.text("%(name)s: choose one of %(known)s", name=name, known=", ".join(known))
            )
    space = sweeps.parse_space(form.get("space", "")[:100_000].replace("\r\n", "\n"))
    options = Options(**{key: value for key, value in base["options"].items() if key != "sweep"})
    return Sweep.model_construct(
        dataset=base["dataset"], net=form.get("net", "").replace("\r\n", "\n"), name=form.get("name", "")[:120],
        options=options, wants=base["wants"], priority=0, parent=None,
        space=space.plain(), sampler=form["sampler"], pruner=form["pruner"], metric=form.get("metric", "val accuracy"),
        seed=1, trials=whole["trials"], parallel=whole["parallel"],
    )  # fmt: skip


async def start(studio: Studio, asked: Sweep) -> int:
    """Check the first trial and add the sweep; return its number. Raises JitdnnError."""
    plan, dataset = asked.plan(), dataset_of(studio, asked.dataset)
    text, options = check(plan, asked.net, nets.settled(asked.options.model_dump(), dataset))
    options["weights"] = weights_file(studio.home, str(options.get("weights") or ""))
    found = await studio.inspector.inspect(nets.check, text, options, dataset, studio.home)
    if not found["ok"]:
        said = texts.text("the first trial could not be trained: %(why)s", why=found["error"])
        if found["line"]:
            said = texts.text(
                "the first trial could not be trained: line %(line)d of the net: %(why)s",
                line=found["line"], why=found["error"],
            )  # fmt: skip
        raise InvalidArgument(said)
    title = found["name"] or "Net"
    name = (
        asked.name.strip()
        or texts.text("Sweep of %(net)s on %(data)s", net=title, data=dataset["name"])[:120]
    )
    return await asyncio.to_thread(
        sweeps.create, studio.store, plan, name=name, dataset=dataset, net_name=title, text=asked.net,
        options=nets.settled(asked.options.model_dump(), dataset), wants=asked.wants, priority=asked.priority,
    )  # fmt: skip


@router.post("/api/sweeps", status_code=201)
async def create_sweep(studio: Here, asked: Sweep) -> Row:
    """Begin a sweep. Pause, resume, stop and delete it as a run."""
    return read_sweep(studio, await start(studio, asked))


@router.get("/sweeps/{number}", include_in_schema=False)
def sweep_page(request: Request, studio: Here, number: int) -> Response:
    found = read_sweep(studio, number)
    order = sorted(found["trials"], key=lambda trial: _rank(found, trial["best"]))
    template = "sweep_part.html" if is_part(request) else "sweep.html"
    names = list(found["run"]["options"]["sweep"]["space"])
    return page(
        request,
        template,
        **(found | {"trials": order}),
        names=names,
        pruner=PRUNER_TITLES,
        sampler=SAMPLER_TITLES,
    )


@router.get("/api/sweeps/{number}")
def read_sweep(studio: Here, number: int) -> Row:
    """A sweep: its `run`, its `trials` with values, state and best, and how much each option mattered, of 1 in all."""
    run = listing.run(studio.store, number)
    if run["kind"] != "sweep":
        raise HTTPException(404, texts.text("Run %(number)d is no sweep.", number=number))
    found = sweeps.trials(studio.store, run)
    over = [trial for trial in found if trial["best"] is not None]
    matter = sweeps.importances(studio.store, run) if len(over) > 3 else {}
    return {"run": listing.public(run), "trials": found, "importances": matter}


def _rank(found: Row, best: float | None) -> tuple[bool, float]:
    sign = -1.0 if "accuracy" in found["run"]["options"]["sweep"]["metric"] else 1.0
    return best is None, sign * (best or 0.0)
