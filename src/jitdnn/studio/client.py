"""The studio from Python: its REST interface in a few calls.

    studio = Client()                                     # the one that this user runs
    digits = studio.create_dataset("package:data/mnist_5k.npz", "Digits")
    run = studio.start(digits["id"], open("lenet.prototxt").read(), epochs=4)
    run = studio.wait(run["id"])
    print(studio.evaluate(run["id"])["summary"]["accuracy"])
    print(studio.classify(run["id"], "five.png")["top"][0])
    studio.export(run["id"], "bundle", "digits.zip")

Answers are what JSON has, dictionaries and lists; docs of the fields are at /api of the studio. It needs Python alone.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener, urlopen

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.files import write_whole
from jitdnn.studio.addresses import is_loopback
from jitdnn.studio.store.folders import default_home

Row = dict[str, Any]
#: states in which a run goes on by itself
_GOING = ("queued", "running")
#: to this machine: what the environment says of proxies is for others, and the token is for none of them
_DIRECT = build_opener(ProxyHandler({})).open


class Refused(JitdnnError):
    """The studio did not do what it was asked: `status` is HTTP's (404 not there, 409 not now, 422 does not fit ...),
    `line`
    that of a prototxt, if it is about one."""

    def __init__(self, status: int, message: str, line: int | None = None) -> None:
        super().__init__(status, message, line)
        self.status, self.message, self.line = status, message, line

    def __str__(self) -> str:
        return f"{self.message} (HTTP {self.status})"


class Client:
    """A studio that is being served. Objects may be used by several threads."""

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        home: str | PathLike[str] | None = None,
        seconds: float = 600.0,
        user: str | None = None,
    ) -> None:
        """`address` is that which the studio printed, with or without `?token=`; without it, it and the token are
        read from `home` (None: the folder that `jitdnn studio` uses). `seconds`: how long an answer is waited for.
        `user`: a name that marks what is made (None: that of the environment, JITDNN_STUDIO_USER).

        Raises InvalidArgument where there is no studio or no token.
        """
        folder = Path(home).expanduser() if home is not None else default_home()
        found = address or _served(folder)
        if not found:
            raise InvalidArgument(
                f"no studio is served from {folder}: start `jitdnn studio`, or give its address"
            )
        base, _, query = found.partition("?")
        given = next((part[6:] for part in query.split("&") if part.startswith("token=")), "")
        self.address = base.rstrip("/")
        if not self.address.startswith(("http://", "https://")):
            raise InvalidArgument(f"the address is {self.address[:80]!r}: it begins with http://")
        self._token, self._seconds = token or given or _read(folder / "token"), seconds
        self._user = quote(os.environ.get("JITDNN_STUDIO_USER", "") if user is None else user)
        if not self._token:
            raise InvalidArgument(
                f"there is no token: give that of {self.address}, it is the file `token` of its home"
            )

    # ---- data sets

    def datasets(self) -> list[Row]:
        """All data sets."""
        found: list[Row] = self.get("/api/datasets")
        return found

    def create_dataset(
        self, source: str | PathLike[str], name: str = "", seconds: float | None = None, **options: Any
    ) -> Row:
        """Make a data set of a folder, .zip, .csv, .npz or LMDB of the studio's machine (or a file of this one, which
        is sent, if the studio cannot see it by that path), and wait for it. `options`: width, height, grey, mode, val,
        test ...

        Raises Refused for a source that no data set can be made of.
        """
        body: Row = {"path": str(source), "name": name, "options": options}
        try:
            row = self.post("/api/datasets", body)
        except Refused as refused:
            path = Path(source)
            if refused.status not in (404, 422) or not path.is_file():
                raise
            sent = self.send("/api/uploads", [("file", path.name, path.read_bytes())])
            row = self.post(
                "/api/datasets", {"upload": sent["upload"], "name": name or path.stem, "options": options}
            )
        return self._until(f"/api/datasets/{row['id']}", ("making",), seconds)

    # ---- runs

    def runs(self, words: str = "", count: int = 50) -> list[Row]:
        """The newest runs, those that have every word in name, net, data set, note or state."""
        found: list[Row] = self.get("/api/runs", q=words, count=count)
        return found

    def run(self, number: int) -> Row:
        """One run: state, options, newest numbers."""
        found: Row = self.get(f"/api/runs/{number}")
        return found

    def check(self, dataset: int, net: str, **options: Any) -> Row:
        """Whether a net (prototxt) can be trained on a data set: layers, shapes, plan, or what is wrong in which
        line."""
        found: Row = self.post("/api/check", {"dataset": dataset, "net": net, "options": options})
        return found

    def import_net(self, source: str | PathLike[str]) -> Row:
        """The net of a .onnx, .pt2 or .py file, or of code that lists layers, as prototxt (`text`), its `weights` as
        that option of a training names them, and a `report` of what each node or line became."""
        is_code = isinstance(source, str) and ("\n" in source or "(" in source)
        name, content = (
            ("net.py", str(source).encode()) if is_code else (Path(source).name, Path(source).read_bytes())
        )
        found: Row = self.send("/api/nets/import", [("file", name, content)])
        return found

    def models(self) -> list[Row]:
        """Models to begin from, in the folders that the setting `model_stores` names, each with its `key`."""
        found: list[Row] = self.get("/api/models")
        return found

    def take_model(self, key: str) -> Row:
        """The net of a model (`text`), and its `weights` as that option of a training names them."""
        found: Row = self.post("/api/models/take", {"key": key})
        return found

    def find_rate(self, dataset: int, net: str, **options: Any) -> Row:
        """A learning rate to begin with (`suggestion`, None where there is none), from a short training with a rate
        that rises; `rates`, `losses` and `smooth` are its curve. It takes about a minute, or less."""
        found: Row = self.post("/api/rate", {"dataset": dataset, "net": net, "options": options})
        return found

    def start(self, dataset: int, net: str, name: str = "", *, wants: str = "", **options: Any) -> Row:
        """Queue a training of a net, as prototxt; `options` are those of the form: epochs, batch, rate ..."""
        body = {"dataset": dataset, "net": net, "name": name, "wants": wants, "options": options}
        found: Row = self.post("/api/runs", body)
        return found

    def bring(self, path: str | PathLike[str]) -> list[int]:
        """Bring runs that TensorBoard, W&B, DIGITS or Caffe left in a folder of the studio's machine; their numbers."""
        made: list[int] = self.post("/api/runs/import", {"path": str(path)})["runs"]
        return made

    def pause(self, number: int) -> Row:
        """Have a run write a snapshot and free its place."""
        found: Row = self.post(f"/api/runs/{number}/pause")
        return found

    def resume(self, number: int) -> Row:
        """Queue a run again, from its newest snapshot."""
        found: Row = self.post(f"/api/runs/{number}/resume")
        return found

    def stop(self, number: int) -> Row:
        """End a run early, keeping what it has learned."""
        found: Row = self.post(f"/api/runs/{number}/stop")
        return found

    def wait(self, number: int, seconds: float | None = None) -> Row:
        """Wait until a run has ended, is paused or has failed; TimeoutError after so many seconds."""
        return self._until(f"/api/runs/{number}", _GOING, seconds)

    def series(
        self, number: int, names: str | Iterable[str] = ("loss", "val loss", "val accuracy"), **options: Any
    ) -> dict[str, list[list[float | None]]]:
        """Curves: by name [iterations, values]; `options`: low, high, most, smooth."""
        listed = [names] if isinstance(names, str) else list(names)
        found: dict[str, list[list[float | None]]] = self.get(
            f"/api/runs/{number}/series", name=listed, **options
        )
        return found

    # ---- what was learned

    def evaluate(self, number: int, part: str = "", weights: str = "") -> Row:
        """The figures of merit for a part of the data set, made at the first question."""
        found: Row = self.get(f"/api/runs/{number}/evaluation", part=part, weights=weights)
        return found

    def classify(
        self, number: int, image: str | PathLike[str] | bytes | None = None, at: int | None = None, part: str = "",
        weights: str = "",
    ) -> Row:  # fmt: skip
        """What a net says of an image file (its path, or its bytes), or of image `at` of a part of its data set."""
        query = urlencode(
            {k: v for k, v in (("at", at), ("part", part), ("weights", weights)) if v not in (None, "")}
        )
        path = f"/api/runs/{number}/classify?{query}"
        if image is None:
            found: Row = self.post(path)
            return found
        content = image if isinstance(image, bytes) else Path(image).read_bytes()
        name = "image" if isinstance(image, bytes) else Path(image).name
        answer: Row = self.send(path, [("file", name, content)])
        return answer

    def classify_many(
        self, number: int, images: Sequence[str | PathLike[str]], weights: str = "", folder: str = ""
    ) -> list[Row]:
        """What a net says of image files, zip files of them, or lists (.txt): in each line a path on the studio's
        machine, below `folder` where it is no whole one, and behind it the class, if it is known."""
        files = [("files", Path(image).name, Path(image).read_bytes()) for image in images]
        query = urlencode({"weights": weights, "folder": folder})
        found: list[Row] = self.send(f"/api/runs/{number}/classify/many?{query}", files)
        return found

    def strongest(
        self, number: int, layer: str, units: int | Iterable[int], part: str = "", weights: str = "", **options: Any
    ) -> Row:  # fmt: skip
        """The images of a part that units of a layer answer to most; `options`: shown, images."""
        listed = [units] if isinstance(units, int) else list(units)
        found: Row = self.get(
            f"/api/runs/{number}/inside/strongest",
            layer=layer,
            unit=listed,
            part=part,
            weights=weights,
            **options,
        )
        return found

    def gradients(
        self, number: int, at: int = 0, target: int | None = None, part: str = "", weights: str = ""
    ) -> Row:
        """The gradient of a class's score (None: the greatest) by what layers make of an image and by their weights."""
        query = {"at": at, "target": target, "part": part, "weights": weights}
        found: Row = self.get(f"/api/runs/{number}/inside/gradients", **query)
        return found

    def export(self, number: int, kind: str, to: str | PathLike[str], weights: str = "") -> Row:
        """Export a net as "bundle", "onnx", "torch", "caffe" or "safetensors" to a file of this machine, written whole;
        what was checked."""
        made: Row = self.post(f"/api/runs/{number}/export", {"kind": kind, "weights": weights})
        with self._open("GET", f"/api/runs/{number}/export/{quote(made['file'])}") as answer:

            def copy(file: BinaryIO) -> None:
                while piece := answer.read(1 << 20):
                    file.write(piece)

            write_whole(Path(to), copy)
        return made

    # ---- HTTP

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of any path of the interface; values of `query` that are empty are left out, lists are repeated."""
        kept = {name: value for name, value in query.items() if value not in ("", None)}
        return self._json("GET", f"{path}?{urlencode(kept, doseq=True)}" if kept else path)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send JSON to any path of the interface."""
        return self._json("POST", path, json.dumps(body or {}).encode(), "application/json")

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
        """Ask for any path, with JSON where there is a body: the answer's type, as image/png, and its bytes."""
        content = None if body is None else json.dumps(body).encode()
        with self._open(method, path, content, "" if content is None else "application/json") as answer:
            return answer.headers.get_content_type(), answer.read()

    def send(self, path: str, files: Sequence[tuple[str, str, bytes]]) -> Any:
        """Send files, (field, name, bytes) each, as a form does, to any path; the JSON of the answer."""
        border = secrets.token_hex(16)
        parts: list[bytes] = []
        for field, name, content in files:
            told = name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
            head = f'--{border}\r\nContent-Disposition: form-data; name="{field}"; filename="{told}"\r\n\r\n'
            parts += [head.encode(), content, b"\r\n"]
        parts.append(f"--{border}--\r\n".encode())
        return self._json("POST", path, b"".join(parts), f"multipart/form-data; boundary={border}")

    def _json(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> Any:
        with self._open(method, path, body, kind) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def _open(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} | ({"Content-Type": kind} if kind else {})
        if self._user:
            headers["X-Studio-User"] = self._user
        request = Request(self.address + path, body, headers, method=method)
        try:
            opened = _DIRECT if is_loopback(urlsplit(self.address).hostname or "") else urlopen
            return opened(request, timeout=self._seconds)
        except HTTPError as error:
            raise _refused(error.code, error.read(1 << 20)) from None
        except URLError as error:
            raise InvalidArgument(f"{self.address} cannot be reached: {error.reason}") from None

    def _until(self, path: str, going: Sequence[str], seconds: float | None) -> Row:
        end = None if seconds is None else time.monotonic() + seconds
        pause = 0.05
        while True:
            row: Row = self.get(path)
            if row["state"] not in going:
                return row
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{path} is {row['state']} after {seconds:g} seconds")
            time.sleep(pause)
            pause = min(2.0, 1.3 * pause)


def _refused(status: int, content: bytes) -> Refused:
    text = content.decode("utf-8", "replace")
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return Refused(status, text.strip()[:500])
    if isinstance(detail, list):  # of validation: where and what
        told = "; ".join(
            f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', '')}" for each in detail
        )
        return Refused(status, told)
    if isinstance(detail, dict):
        return Refused(status, str(detail.get("message", detail)), detail.get("line"))
    return Refused(status, str(detail))


def _served(home: Path) -> str:
    """Where the studio of a home is served, "" if it is not: a server that was killed leaves its address, which another
    program may have by now, but not the lock on it."""
    from jitdnn.studio.file_locks import is_locked  # which not all systems have that a client may run on

    return _read(home / "server") if is_locked(home / "server") else ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
