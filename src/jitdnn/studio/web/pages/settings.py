"""Settings: how much trains at a time, how much room the studio may take, which folders it reads; and tidying."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from jitdnn import __version__
from jitdnn.errors import InvalidArgument
from jitdnn.settings import parse_bytes
from jitdnn.sizes import format_bytes
from jitdnn.studio import texts
from jitdnn.studio.data import places
from jitdnn.studio.nets import model_store
from jitdnn.studio.store import Row
from jitdnn.studio.store.authors import author
from jitdnn.studio.web.authors import remember
from jitdnn.studio.web.context import Here, Link, Route, Studio, page
from jitdnn.studio.web.pages.cluster import read_cluster
from jitdnn.studio.work import disk_space, joint_places

router = APIRouter(route_class=Route)
NAVIGATION = (Link(80, "/settings", "settings", texts.mark("Settings")),)
#: of the largest runs and data sets, how many are shown
LARGEST = 8


class Settings(BaseModel):
    """What may be set; what is absent stays as it is."""

    cpu_slots: int | None = Field(
        default=None, ge=0, le=64, description="trainings at a time on the processor"
    )
    restarts: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="how often a worker that died without getting further is followed",
    )
    quota: int | None = Field(
        default=None, ge=0, le=1 << 62, description="bytes the studio may take; 0: any number"
    )
    least_free: int | None = Field(
        default=None, ge=0, le=1 << 62, description="bytes free on the disk below which nothing is started"
    )
    together: list[Annotated[str, Field(max_length=400)]] | None = Field(
        default=None,
        max_length=50,
        description="devices of one host that train a run together: cuda:0+cuda:1, cpu*2",
    )
    roots: list[Annotated[str, Field(min_length=1, max_length=4096)]] | None = Field(
        default=None, max_length=50, description="folders of the server below which data may be read"
    )
    model_stores: list[Annotated[str, Field(min_length=1, max_length=4096)]] | None = Field(
        default=None, max_length=50, description="folders of the server with models to begin from"
    )


class Keys(BaseModel):
    """What is to be removed, by the keys of GET /api/disk."""

    keys: list[Annotated[str, Field(max_length=200)]] = Field(max_length=10_000)


@router.get("/settings", include_in_schema=False)
def settings_page(request: Request, studio: Here, saved: bool = False) -> Response:
    values, found = read_settings(studio), read_room(studio)
    largest = [
        *names_of(studio, "run", "/runs/", found["runs"]),
        *names_of(studio, "dataset", "/data/", found["datasets"]),
    ]
    sizes = {name: format_bytes(values[name]) if values[name] else "" for name in ("quota", "least_free")}
    return page(
        request, "settings.html", cluster=read_cluster(studio), values=values, found=found, author=author(),
        sizes=sizes, saved=saved, version=__version__,
        largest=sorted(largest, key=lambda each: -each["bytes"])[:LARGEST],
    )  # fmt: skip


@router.get("/api/settings")
def read_settings(studio: Here) -> dict[str, Any]:
    """The settings as they are."""
    setting = studio.store.setting
    return {
        "cpu_slots": int(setting("cpu_slots", 1)),
        "restarts": int(setting("restarts", 2)),
        "quota": setting("quota") or 0,
        "least_free": int(setting("least_free", disk_space.LEAST_FREE)),
        "together": list(setting(joint_places.SETTING, [])),
        "roots": [str(root) for root in places.roots(studio.store)],
        "model_stores": [str(folder) for folder in model_store.stores(studio.store)],
    }


@router.patch("/api/settings")
def change_settings(studio: Here, change: Settings) -> dict[str, Any]:
    """Change settings; they hold from now on."""
    values = {name: value for name, value in change.model_dump().items() if value is not None}
    if str(own := studio.home / model_store.FOLDER) in values.get("model_stores", ()):
        own.mkdir(exist_ok=True)
    for name in ("roots", "model_stores"):
        if name in values:
            values[name] = [str(_folder(folder)) for folder in values[name]]
    if joint_places.SETTING in values:
        values[joint_places.SETTING] = [
            joint_places.checked(device) for device in values[joint_places.SETTING]
        ]
    with studio.store.transaction():
        for name, value in values.items():
            studio.store.set_setting(name, value)
    studio.queue.wake()
    return read_settings(studio)


@router.post("/settings", include_in_schema=False)
def settings_form(
    studio: Here, cpu_slots: Annotated[int, Form(ge=0, le=64)], restarts: Annotated[int, Form(ge=0, le=1000)] = 2,
    quota: Annotated[str, Form(max_length=40)] = "", least_free: Annotated[str, Form(max_length=40)] = "",
    roots: Annotated[str, Form(max_length=100_000)] = "",
    model_stores: Annotated[str, Form(max_length=100_000)] = "",
) -> Response:  # fmt: skip
    change = Settings(
        cpu_slots=cpu_slots,
        restarts=restarts,
        quota=_bytes("quota", quota),
        least_free=_bytes("free room", least_free),
        roots=_lines(roots) or [str(Path.home())],
        model_stores=_lines(model_stores),
    )
    change_settings(studio, change)
    return RedirectResponse("/settings?saved=true", 303)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _bytes(name: str, text: str) -> int:
    if not text.strip():
        return 0
    found = parse_bytes(text)
    if found is None or not 0 <= found < 1 << 62:
        raise InvalidArgument(
            texts.text(
                "%(name)s is %(value)s: give a size such as 20 GiB, or nothing",
                name=name,
                value=repr(text[:40]),
            )
        )
    return found


def _folder(text: str) -> Path:
    try:
        path = Path(text).expanduser().resolve()
        if path.is_dir():
            return path
    except (OSError, ValueError, RuntimeError):
        pass
    raise InvalidArgument(
        texts.text("%(path)s is no folder on the machine that runs the studio", path=repr(text[:200]))
    )


@router.post("/name", include_in_schema=False)
def set_name(name: Annotated[str, Form(max_length=1000)] = "") -> Response:
    """Mark what this browser makes from now on with a name, or with none."""
    answer = RedirectResponse("/settings#name", 303)
    remember(answer, name)
    return answer


# ---- room on the disk


@router.get("/api/disk")
def read_room(studio: Here) -> dict[str, Any]:
    """Bytes by run and data set, what is free, and what could go: `spares` with their keys."""
    return disk_space.usage(studio.store) | {
        "spares": [spare._asdict() for spare in disk_space.spares(studio.store)]
    }


@router.post("/api/disk/tidy")
def tidy(studio: Here, asked: Keys) -> dict[str, int]:
    """Remove what nobody needs, by its keys; the answer has the bytes that became free."""
    return {"bytes": disk_space.tidy(studio.store, asked.keys)}


@router.post("/settings/tidy", include_in_schema=False)
async def tidy_form(request: Request, studio: Here) -> Response:
    form = await request.form()
    tidy(studio, Keys(keys=[key for key in form.getlist("key") if isinstance(key, str)]))
    return RedirectResponse("/settings#disk", 303)


def names_of(studio: Studio, table: str, path: str, bytes_of: dict[int, int]) -> list[Row]:
    """The largest rows of a table: where their page is, name, bytes."""
    largest = sorted(bytes_of.items(), key=lambda pair: -pair[1])[:LARGEST]
    rows = [(number, size, studio.store.one(table, number)) for number, size in largest]
    return [
        {"path": f"{path}{number}", "bytes": size, "name": row["name"]} for number, size, row in rows if row
    ]
