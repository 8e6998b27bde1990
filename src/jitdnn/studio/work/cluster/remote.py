"""A worker on another machine: it fetches what its run needs, trains, and reports over the network.

Its home is a copy of the parts that it needs, under the cache folder of jitdnn; arrays of data sets are kept there by
their hash, and each is fetched once. The server may be away for a while: what is to be told waits, and training goes on
until it has to be told.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import os
import shutil
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from jitdnn.errors import InvalidArgument, StoreError
from jitdnn.files import sha256, write_whole
from jitdnn.settings import current
from jitdnn.studio.store import Row, run_folder
from jitdnn.studio.work import ranks, worker
from jitdnn.studio.work.cluster.certificates import worker_context
from jitdnn.studio.work.run_access import LeaseLost, Report, locked

TOKEN, TLS = "JITDNN_STUDIO_WORK_TOKEN", "JITDNN_STUDIO_TLS"
BEAT = 10.0
_PATIENCE = 600.0  # seconds that a server may be away
_PIECE = 8 << 20
_KEPT_BYTES = 64 << 30
_PASSING = (urllib.error.URLError, http.client.HTTPException, OSError)


class RemoteRunAccess:
    """The access of a worker elsewhere: `address` is https://HOST:PORT of the gateway."""

    def __init__(self, address: str, run: int, lease: int, token: str, tls: Path, cache: Path) -> None:
        if not address.startswith("https://"):
            raise InvalidArgument(f"{address} is no address of a studio for workers: https://HOST:PORT")
        self._base = f"{address}/api/work/{run}/{lease}"
        self._token, self._context = token, worker_context(tls)
        self._arguments = (address, str(run), str(lease))
        self._cache = cache
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        self._home = cache / "homes" / name
        self.folder = run_folder(self._home, run)
        self._lock = threading.Lock()
        self.patience = _PATIENCE

    # ---- asking

    def _ask(self, method: str, path: str, body: bytes | None = None, to: Path | None = None) -> bytes:
        """One request, again and again while the server is away. Raises LeaseLost, InvalidArgument, StoreError."""
        deadline, pause = time.monotonic() + self.patience, 0.2
        while True:
            request = urllib.request.Request(self._base + path, body, method=method)
            request.add_header("Authorization", f"Bearer {self._token}")
            try:
                with urllib.request.urlopen(request, timeout=60, context=self._context) as answer:
                    if to is None:
                        content: bytes = answer.read()
                        return content
                    write_whole(to, partial(shutil.copyfileobj, answer))
                    return b""
            except urllib.error.HTTPError as error:
                with error:
                    text = error.read(2000).decode("utf-8", "replace")
                if error.code == 409:
                    raise LeaseLost(text) from None
                if error.code < 500:
                    raise InvalidArgument(
                        f"the studio refused {method} {path}: {error.code}, {text}"
                    ) from None
                why: object = f"{error.code}, {text}"
            except _PASSING as error:
                why = error
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the studio at {self._base} could not be reached for {self.patience:.0f} s: {why}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 10.0)

    # ---- what a access does

    def run(self) -> Row:
        found: Row = json.loads(self._ask("GET", ""))["run"]
        return found

    def tell(self, report: Report, *, is_lasting: bool = False) -> str:
        points = [(name, at, value if math.isfinite(value) else None) for name, at, value in report.points]
        values = {name: value for name, value in report.values.items() if name != "beat"}
        told = {"points": points, "values": values, "marks": list(report.marks), "lasting": is_lasting}
        with self._lock:  # beats come from a thread of their own
            return str(json.loads(self._ask("POST", "/report", json.dumps(told).encode()))["intent"])

    def history(self, series: str, last: int) -> list[tuple[int, float]]:
        query = urllib.parse.urlencode({"series": series, "last": last})
        return [(at, value) for at, value in json.loads(self._ask("GET", f"/history?{query}"))]

    def saved(self, file: Path) -> None:
        """Send a file, in pieces; the server has it whole or as it was."""
        with open(file, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            size, offset = opened.tell(), 0
            opened.seek(0)
            while offset < size or not offset:
                piece = opened.read(_PIECE)
                query = {"name": file.name, "offset": offset, "size": size, "sha256": digest}
                self._ask("PUT", f"/file?{urllib.parse.urlencode(query)}", piece)
                offset += max(len(piece), 1)

    def removed(self, file: Path) -> None:
        self._ask("DELETE", f"/file?{urllib.parse.urlencode({'name': file.name})}")

    def again(self) -> tuple[list[str], dict[str, str]]:
        return list(self._arguments), {TOKEN: self._token}

    def fetch(self) -> None:
        """Bring what the run needs: files by their hash, from what is kept here or from the server."""
        files: dict[str, dict[str, Any]] = json.loads(self._ask("GET", ""))["files"]
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("snap_iter_*"):  # of another start: the server knows which is the newest
            if f"runs/{self.folder.name}/{old.name}" not in files:
                old.unlink()
        self._make_room(sum(each["size"] for each in files.values()))
        for path, each in files.items():
            target = (self._home / path).resolve()
            if not target.is_relative_to(self._home.resolve()):
                raise InvalidArgument(f"{path!r} is no path of a home")
            kept = self._cache / "objects" / str(each["sha256"])
            if not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                coming = kept.with_name(f"{kept.name}.{os.getpid()}")
                self._ask("GET", f"/file?{urllib.parse.urlencode({'path': path})}", to=coming)
                if sha256(coming) != each["sha256"]:
                    coming.unlink()
                    raise StoreError(f"{path} came damaged, or changed meanwhile: its hash is another")
                coming.rename(kept)
            os.utime(kept)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.startswith("data/"):  # read only: the same file under another name
                target.unlink(missing_ok=True)
                os.link(kept, target)
            else:
                shutil.copyfile(kept, target)

    def _make_room(self, size: int) -> None:
        """Remove what was not used for longest while more than the limit would be kept."""
        folder = self._cache / "objects"
        kept = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime) if folder.is_dir() else []
        total = size + sum(file.stat().st_size for file in kept)
        for file in kept:
            if total <= _KEPT_BYTES:
                return
            total -= file.stat().st_size
            file.unlink()


def work_elsewhere(address: str, run: int, lease: int) -> int:
    """Train a run of the studio at `address`; return the exit code. Token and certificates are in the environment."""
    cache = current().cache_dir / "studio"
    access = RemoteRunAccess(address, run, lease, os.environ.pop(TOKEN, ""), Path(os.environ[TLS]), cache)
    if ranks.is_rank():  # whose worker beats, fetches and has the lock
        return worker.train(access)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            try:
                access.tell(Report())
            except Exception:  # the training itself will find out
                sys.stderr.write("a beat did not arrive\n")

    threading.Thread(target=beat, daemon=True).start()
    try:
        access.folder.mkdir(parents=True, exist_ok=True)
        with locked(access.folder / worker.LOCK):
            access.fetch()
            return worker.train(access)
    except LeaseLost as error:
        sys.stderr.write(f"{error}\n")
        return worker.LOST
    finally:
        ended.set()
