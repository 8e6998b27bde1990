"""The application: pages and their REST twins, found in pages/, around one home folder."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import pkgutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from jitdnn import __version__
from jitdnn.studio import plugins
from jitdnn.studio.store import Store
from jitdnn.studio.sweeps import Sweeps
from jitdnn.studio.web import failures, pages
from jitdnn.studio.web.authors import Authors
from jitdnn.studio.web.context import STATIC, Studio, make_templates
from jitdnn.studio.web.stream import Watching
from jitdnn.studio.work.inspector import Inspector
from jitdnn.studio.work.queue import Queue

#: that answer requests
THREADS = 12
ABOUT = """Every page of the studio has a twin here. Send `Authorization: Bearer TOKEN`; the token is the content of the
file `token` in the studio's home."""


def make_app(home: Path, serve_queue: bool = True) -> FastAPI:
    """The studio of `home`, a folder that exists, whose queue it serves while it runs, unless `serve_queue` is false.

    It has no door of its own: wrap it in a `Guard` before it listens anywhere.
    """
    store, inspector = Store(home), Inspector()
    queue = Queue(store)
    trials = Sweeps(store, queue.wake, inspector)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        # each has a connection and memory of its own; what takes long is done by the inspector
        current_default_thread_limiter().total_tokens = THREADS
        served = (queue.serve(), trials.serve()) if serve_queue else ()
        tasks = [asyncio.create_task(each) for each in served]
        yield
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        inspector.close()

    app = FastAPI(
        title="jitdnn studio", version=__version__, description=ABOUT, openapi_url="/api/openapi.json",
        docs_url=None, redoc_url=None, lifespan=life,
    )  # fmt: skip
    studio = Studio(home, store, inspector, queue, make_templates(), Watching(store))
    app.state.studio = studio
    app.mount("/static", Static(directory=STATIC))
    found = sorted(modules(), key=lambda module: getattr(module, "ORDER", 50))
    for module in found:
        app.include_router(module.router, responses=failures.REFUSALS)
    for name in ("navigation", "tabs"):
        links = [link for module in found for link in getattr(module, name.upper(), ())]
        setattr(studio, name, sorted(links, key=lambda link: link.order))
    for router in plugins.load("views").values():
        app.include_router(router)
    failures.install(app)
    app.add_middleware(Authors)
    return app


def modules() -> list[ModuleType]:
    """The modules of pages/, in the order of their names."""
    names = sorted(found.name for found in pkgutil.iter_modules(pages.__path__))
    return [importlib.import_module(f"{pages.__name__}.{name}") for name in names]


class Static(StaticFiles):
    """Files under an address with a hash of their content never change; the others are asked for again."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        hashed = b"v=" in scope["query_string"]
        answer.headers["cache-control"] = "public, max-age=31536000, immutable" if hashed else "no-cache"
        return answer
