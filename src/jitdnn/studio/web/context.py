"""What every page has at hand: the store, the queue, the inspector, templates, and the parts of the frame around it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.templating import Jinja2Templates

from jitdnn.studio import texts
from jitdnn.studio.store import Row, Store
from jitdnn.studio.web import words
from jitdnn.studio.web.stream import Watching
from jitdnn.studio.work.inspector import Inspector
from jitdnn.studio.work.queue import Queue

HERE = Path(__file__).parent
STATIC = HERE / "static"
#: fields, and files, that a form may have
MOST_FIELDS = 20_000


@dataclass(frozen=True)
class Link:
    """An entry of the side, or a tab of a run (`path` is then what follows `/runs/ID`); ordered by `order`."""

    order: int
    path: str
    icon: str
    title: str
    #: shown on the phone's bar, which has room for five, there by its short name
    phone: bool = True
    short: str = ""
    #: whose pages are its own, beside the one that it leads to: all below these paths
    within: tuple[str, ...] = ()

    def current(self, path: str) -> str:
        """The value of aria-current on the page `path`: "page" where the link leads, "true" below it, else ""."""
        if path == self.path:
            return "page"
        return "true" if any(path == each or path.startswith(f"{each}/") for each in self.within) else ""


@dataclass
class Studio:
    """One server's things."""

    home: Path
    store: Store
    inspector: Inspector
    queue: Queue
    templates: Jinja2Templates
    watching: Watching
    navigation: Sequence[Link] = ()
    tabs: Sequence[Link] = ()

    def render(self, template: str, **values: Any) -> str:
        """A part of a page as text."""
        return self.templates.get_template(template).render(values)

    def machine(self) -> Row:
        """What the side says of the queue: runs that train and that wait, and how many can train at a time."""
        return self.store.rows(BUSY)[0]

    def get(self, table: str, number: int) -> Row:
        """A row, or 404."""
        found = self.store.one(table, number) if 0 <= number < 1 << 63 else None
        if found is None:
            raise HTTPException(
                404,
                texts.text(
                    "There is no %(thing)s %(number)d.", thing=texts.said(words.TABLES[table]), number=number
                ),
            )
        return found


def _studio(request: Request) -> Studio:
    return cast(Studio, request.app.state.studio)


#: the parameter of a handler: `def page(request: Request, studio: Here)`
Here = Annotated[Studio, Depends(_studio)]


def page(request: Request, template: str, /, **values: Any) -> HTMLResponse:
    """A template with what base.html needs beside `values`; `status` among them is the answer's, 200 if absent."""
    studio = _studio(request)
    status = int(values.pop("status", 200))
    values["machine"] = studio.machine()
    theme = request.cookies.get("theme", "")
    values |= {"studio": studio, "theme": theme if theme in ("light", "dark") else ""}
    answer = studio.templates.TemplateResponse(request, template, values, status_code=status)
    answer.headers["cache-control"] = "no-store"
    return cast(HTMLResponse, answer)


BUSY = """SELECT (SELECT count(*) FROM run WHERE state = 'running') AS running,
  (SELECT count(*) FROM run WHERE state = 'queued') AS waiting,
  (SELECT coalesce(sum(slots), 0) FROM place WHERE state = 'free') AS slots"""


class _Request(Request):
    """A request whose form may have as many fields and files as the studio takes at a time."""

    def form(self, *, max_files: float = MOST_FIELDS, max_fields: float = MOST_FIELDS, **more: Any) -> Any:
        return super().form(max_files=max_files, max_fields=max_fields, **more)


class Route(APIRoute):
    """What the routers of pages are made of: `APIRouter(route_class=Route)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_large(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handle_large


def is_part(request: Request) -> bool:
    """Whether htmx asks for a part of a page."""
    return request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true"


def csv_file(lines: str | Iterator[str], name: str) -> Response:
    """A table of comma-separated values, whole or piece by piece, to be kept under a name."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    given = iter([lines]) if isinstance(lines, str) else lines
    return StreamingResponse(given, media_type="text/csv; charset=utf-8", headers=headers)


@cache
def asset(name: str) -> str:
    """The address of a file of static/, with a hash of its content, so that browsers may keep it for ever."""
    content = (STATIC / name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"


def make_templates() -> Jinja2Templates:
    """Jinja2 that escapes everything, with the filters of words.py."""
    templates = Jinja2Templates(HERE / "templates")
    templates.env.trim_blocks = templates.env.lstrip_blocks = True
    templates.env.filters |= words.FILTERS
    templates.env.globals |= {"asset": asset, "language": texts.language, "DIRECTIONS": words.DIRECTIONS}
    templates.env.add_extension("jinja2.ext.i18n")
    templates.env.policies["ext.i18n.trimmed"] = True
    templates.env.install_gettext_callables(  # type: ignore[attr-defined]  # of the extension
        lambda message: texts.catalogue().gettext(message),
        lambda one, many, count: texts.catalogue().ngettext(one, many, count),
        newstyle=True,
    )
    return templates
