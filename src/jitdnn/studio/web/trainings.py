"""A training as forms and programs ask for it, and its way into the queue."""

from __future__ import annotations

import shutil
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from fastapi import HTTPException
from pydantic import AfterValidator, BaseModel, Field, create_model

from jitdnn.errors import InvalidArgument
from jitdnn.studio import nets, texts
from jitdnn.studio.nets.weights import weights_file
from jitdnn.studio.store import Row
from jitdnn.studio.web import words
from jitdnn.studio.web.context import Studio
from jitdnn.studio.work.control import PREPARING

_MOST_TEXT = 2_000_000
#: of an option that holds a list
_LISTS = {"steps": list[float] | None, "freeze": list[str]}


def _model() -> type[BaseModel]:
    """The options of trainings for the contract: names, types, meanings and defaults are those of `nets.Options`."""
    hints = get_type_hints(nets.Options)
    entries: dict[str, Any] = {}
    for option in fields(nets.Options):
        default = list(option.default) if isinstance(option.default, tuple) else option.default
        kind = _LISTS.get(option.name, hints[option.name])
        entries[option.name] = (kind, Field(default, description=option.metadata["about"]))
    return create_model("TrainingOptions", __doc__="How to train; the defaults suit small images.", **entries)


if TYPE_CHECKING:

    class Options(BaseModel):
        pass
else:
    Options = _model()


def _checked(options: BaseModel) -> BaseModel:
    nets.Options.of(options.model_dump())  # a ValueError that names the option
    return options


class Training(BaseModel):
    """A training to look at, or to queue."""

    dataset: int = Field(description="number of a data set", ge=0, le=1 << 62)
    net: str = Field(description="a net as prototxt", max_length=_MOST_TEXT)
    name: str = Field(default="", max_length=120, description="named after net and data set if empty")
    options: Annotated[Options, AfterValidator(_checked)] = Options()
    wants: str = Field(
        default="", max_length=40, description="where: cpu, cuda, cuda:1, #3 (a place), or empty for any"
    )
    priority: int = Field(default=0, ge=-100, le=100)
    parent: int | None = Field(default=None, description="the run that this is a copy of", ge=0, le=1 << 62)

    def values(self, studio: Studio) -> dict[str, Any]:
        """The options as nets.check and nets.write take them: weights of a run become their file."""
        found: dict[str, Any] = self.options.model_dump()
        return found | {"weights": weights_file(studio.home, found["weights"])}


def from_form(form: dict[str, str]) -> Training:
    """A training from the fields of the page; empty numbers have their defaults. Raises InvalidArgument."""
    given: dict[str, Any] = {}
    for option in fields(nets.Options):
        value = form.get(option.name)
        if value is not None and (value or isinstance(option.default, str)):
            given[option.name] = value
    options = asdict(nets.Options.of(given))
    number = form.get("dataset", "")
    if not number.isdecimal() or len(number) > 18:
        raise InvalidArgument(texts.text("no data set is chosen: choose one, or make one first"))
    parent = form.get("parent", "")
    return Training(
        dataset=int(number),
        net=form.get("net", "").replace("\r\n", "\n")[:_MOST_TEXT],
        name=form.get("name", "")[:120],
        options=Options(**options),
        wants=form.get("wants", "")[:40],
        parent=int(parent) if parent.isdecimal() and len(parent) < 19 else None,
    )


def dataset_of(studio: Studio, number: int) -> Row:
    """A data set that is ready; 404, 409."""
    row = studio.get("dataset", number)
    if row["state"] != "ready":
        raise HTTPException(
            409,
            texts.text(
                "Data set “%(name)s” is not ready: it is %(state)s.",
                name=row["name"],
                state=words.state(row["state"]),
            ),
        )
    return row


async def start(studio: Studio, asked: Training) -> int:
    """Write the files of a run and queue it; return its number. Raises JitdnnError where the net does not fit, and then
    there is no run."""
    store, dataset = studio.store, dataset_of(studio, asked.dataset)
    options = asked.values(studio)
    found = await studio.inspector.inspect(nets.check, asked.net, options, dataset, studio.home)
    if not found["ok"]:
        raise HTTPException(422, {"message": found["error"], "line": found["line"]})
    title = found["name"] or texts.text("Net")
    name = texts.text("%(net)s on %(data)s", net=title, data=dataset["name"])
    with store.transaction():
        dataset = dataset_of(studio, asked.dataset)  # it may have been deleted while the net was looked at
        number = store.insert(
            "run", name=asked.name.strip() or name[:120], dataset=asked.dataset,
            net_name=title, options=nets.settled(asked.options.model_dump(), dataset), state=PREPARING,
            wants=asked.wants, priority=asked.priority,
            parent=asked.parent if asked.parent and store.one("run", asked.parent) else None,
        )  # fmt: skip
    folder = store.folder(number)
    try:
        last = await studio.inspector.inspect(nets.write, folder, asked.net, options, dataset, studio.home)
    except BaseException:
        store.forget_run(number)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    store.update("run", number, max_iter=last, state="queued", message="")
    studio.queue.wake()
    return number
