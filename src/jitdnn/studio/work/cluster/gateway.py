"""What workers elsewhere ask of the store: their run, its files, and that their reports be written.

    GET    /api/work/RUN/LEASE                   the run; size and hash of each file it needs, by path in the home
    GET    /api/work/RUN/LEASE/file?path=        one of them
    PUT    /api/work/RUN/LEASE/file?name=&offset=&size=&sha256=   a piece of a file of the run's folder
    DELETE /api/work/RUN/LEASE/file?name=        an old snapshot
    POST   /api/work/RUN/LEASE/report            points, columns, notes; answers with the intent
    GET    /api/work/RUN/LEASE/history?series=&last=

Each carries `Authorization: Bearer TOKEN` of this start; 409 says that the lease is over. It listens for itself, with
TLS, to machines that have a certificate of this studio; the pages are not there.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from jitdnn.caffe import SolverParameter
from jitdnn.caffe.load import parse_file
from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.files import sha256, whole
from jitdnn.studio.store import SOLVER, Row, Store
from jitdnn.studio.work.cluster.tokens import is_token
from jitdnn.studio.work.control import OVER
from jitdnn.studio.work.run_access import LeaseLost, Report, StoreRunAccess

PIECE = 8 << 20
_BODY = 16 << 20
_MOST_FILE = 64 << 30
_UPLOADED = re.compile(r"best\.npz|snap_iter_\d{1,18}\.jdsnap|worker\.log|settings\.json|device\.json")
_TEXT = ("message", "best_of", "host", "state", "intent")
_NUMBERS = (
    *("iteration", "max_iter", "loss", "accuracy", "best", "best_at", "seconds", "speed"),
    *("pid", "started", "ended", "bytes"),
)

Handler = Callable[["Gateway", Request, StoreRunAccess, Row], Awaitable[Response]]


class Gateway:
    """The ASGI application for the workers of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.hashes: dict[tuple[str, int, int], str] = {}
        base = "/api/work/{run:int}/{lease:int}"
        self.app = Starlette(
            routes=[
                Route(base, self._for(_run), methods=["GET"]),
                Route(f"{base}/file", self._for(_send), methods=["GET"]),
                Route(f"{base}/file", self._for(_receive), methods=["PUT"]),
                Route(f"{base}/file", self._for(_remove), methods=["DELETE"]),
                Route(f"{base}/report", self._for(_report), methods=["POST"]),
                Route(f"{base}/history", self._for(_history), methods=["GET"]),
            ]
        )

    def _for(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler behind the token; errors of ours as answers."""

        async def endpoint(request: Request) -> Response:
            run, lease = request.path_params["run"], request.path_params["lease"]
            kind, _, token = request.headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not is_token(self.store.home, run, lease, token.strip()):
                return PlainTextResponse("that token does not open this run", 401)
            access = StoreRunAccess(self.store, run, lease)
            try:
                row = await run_in_threadpool(access.run)
                return await handler(self, request, access, row)
            except LeaseLost as error:
                return PlainTextResponse(str(error), 409)
            except (JitdnnError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                return PlainTextResponse(str(error), 400)

        return endpoint

    def files(self, row: Row) -> dict[str, Path]:
        """The files that a worker needs, by their paths in the home."""
        home, folder = self.store.home, self.store.folder(row["id"])
        found = [
            file
            for file in folder.iterdir()
            if file.suffix in (".prototxt", ".npy", ".jdsnap", ".npz", ".caffemodel", ".json")
        ]
        if row["dataset"]:
            found += self.store.data_folder(row["dataset"]).glob("*")
        solver = folder / SOLVER
        for names in parse_file(solver, SolverParameter).weights if solver.exists() else []:
            found += [(folder / name.strip()).resolve() for name in names.split(",")]
        inside = [(file, home.resolve()) for file in found if file.is_file() and not file.is_symlink()]
        return {
            str(file.resolve().relative_to(root)): file
            for file, root in inside
            if file.resolve().is_relative_to(root)
        }

    def digest(self, file: Path) -> str:
        """The SHA-256 of a file, computed once for each state of it."""
        status = file.stat()
        key = (str(file), status.st_mtime_ns, status.st_size)
        if key not in self.hashes:
            self.hashes[key] = sha256(file)
        return self.hashes[key]


async def _run(gateway: Gateway, request: Request, access: StoreRunAccess, row: Row) -> Response:
    def listed() -> dict[str, Any]:
        files = gateway.files(row)
        return {
            path: {"size": file.stat().st_size, "sha256": gateway.digest(file)}
            for path, file in files.items()
        }

    return JSONResponse({"run": row, "files": await run_in_threadpool(listed)})


async def _send(gateway: Gateway, request: Request, access: StoreRunAccess, row: Row) -> Response:
    found = (await run_in_threadpool(gateway.files, row)).get(request.query_params["path"])
    return PlainTextResponse("no such file", 404) if found is None else FileResponse(found)


async def _receive(gateway: Gateway, request: Request, access: StoreRunAccess, row: Row) -> Response:
    query = request.query_params
    name, offset, size = _name(query["name"]), int(query["offset"]), int(query["size"])
    if not 0 <= offset <= size <= _MOST_FILE:
        raise InvalidArgument(f"offset {offset} of {size} bytes: a file has up to {_MOST_FILE:,}")
    body = await _body(request)
    part = access.folder / f".{name}.{row['lease']}.coming"

    def write() -> bool:
        there = part.stat().st_size if part.exists() else 0
        if there < offset:
            raise InvalidArgument(f"a piece at {offset}, and {there} bytes came before it")
        with open(part, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.truncate()  # a piece that came twice
            file.write(body)
        if offset + len(body) < size:
            return False
        if gateway.digest(part) != query["sha256"]:
            part.unlink()
            raise InvalidArgument(f"{name} came damaged: its hash is another")
        with whole(access.folder / name) as unfinished:
            part.rename(unfinished)
        return True

    return JSONResponse({"is_whole": await run_in_threadpool(write)})


async def _remove(gateway: Gateway, request: Request, access: StoreRunAccess, row: Row) -> Response:
    (access.folder / _name(request.query_params["name"])).unlink(missing_ok=True)
    return JSONResponse({})


async def _report(gateway: Gateway, request: Request, access: StoreRunAccess, row: Row) -> Response:
    given = json.loads(await _body(request))
    points = [_point(*point) for point in given.get("points", ())]
    values = {name: _value(name, value) for name, value in given.get("values", {}).items()}
    marks = [(int(at), str(text)[:1000]) for at, text in given.get("marks", ())]

    def write() -> str:
        told = access.store.rows(
            "SELECT iteration, text FROM mark WHERE run = ? AND time > ?", row["id"], time.time() - 3600
        )
        known = {(each["iteration"], each["text"]) for each in told}
        new = [
            mark for mark in marks if mark not in known
        ]  # an answer may be lost, and the report come again
        return access.tell(Report(points, values, new), is_lasting=bool(given.get("lasting")))

    return JSONResponse({"intent": await run_in_threadpool(write)})


async def _history(gateway: Gateway, request: Request, access: StoreRunAccess, row: Row) -> Response:
    query = request.query_params
    return JSONResponse(await run_in_threadpool(access.history, query["series"], int(query["last"])))


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > _BODY:
            raise InvalidArgument(f"more than {_BODY:,} bytes at once")
    return b"".join(parts)


def _name(name: str) -> str:
    if not _UPLOADED.fullmatch(name):
        raise InvalidArgument(f"{name[:60]!r} is no file that a worker writes")
    return name


def _point(name: str, at: int, value: float | None) -> tuple[str, int, float]:
    if not isinstance(name, str) or not 0 < len(name) <= 200 or type(at) is not int or not 0 <= at < 1 << 53:
        raise InvalidArgument(f"no point of a curve: {str(name)[:60]!r} at {at!r}")
    return name, at, math.nan if value is None else float(value)


def _value(name: str, value: Any) -> Any:
    """A column that a worker may write, with a value that it may have."""
    if name in _NUMBERS and (value is None or isinstance(value, int | float)) and not isinstance(value, bool):
        return value
    if name in _TEXT and isinstance(value, str) and len(value) <= 10_000:
        if (name == "state" and value not in OVER) or (name == "intent" and value):
            raise InvalidArgument(f"a worker does not set {name} to {value!r}")
        return value
    raise InvalidArgument(f"a worker does not set {name[:60]!r} to {str(value)[:60]!r}")
