"""`jitdnn studio`: data sets, training and a look inside, in a browser; `jitdnn serve`: a trained net that answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jitdnn.cli.console import print_table, say
from jitdnn.errors import InvalidArgument, JitdnnError, NotSupported

if TYPE_CHECKING:
    from jitdnn.studio.client import Client

Row = dict[str, Any]
_SHOWN: Final = (
    "state",
    "iteration",
    "max_iter",
    "loss",
    "best",
    "best_of",
    "best_at",
    "speed",
    "seconds",
    "message",
)


class RunFailed(JitdnnError):
    """A run that was waited for did not end well."""


def run_studio(home: Path | None, host: str, port: int, browse: bool | None, slots: int | None) -> None:
    """Serve the studio until it is interrupted. Raises NotSupported without the packages of the extra."""
    with _naming_the_extra():
        from jitdnn.studio.store.folders import default_home
        from jitdnn.studio.web.serve import serve
    serve(home or default_home(), host, port, slots, browse, lambda line: print(line, flush=True))


class Asked:
    """What the commands ask of a studio that is served."""

    def __init__(self, home: Path | None, address: str, token: str) -> None:
        self._home, self._address, self._token = home, address, token

    @cached_property
    def client(self) -> Client:
        """Made when it is needed: raises InvalidArgument where no studio is served."""
        from jitdnn.studio.client import Client

        return Client(self._address or None, self._token or None, self._home)

    def datasets(self, is_json: bool) -> None:
        """List the data sets."""
        found = self.client.datasets()
        if is_json:
            _say_json(found)
            return
        rows = [
            [
                str(row["id"]),
                row["name"],
                row["task"],
                "x".join(map(str, row["shape"])),
                str(row["train"]),
                row["state"],
            ]
            for row in found
        ]
        print_table("Data sets", ("id", "name", "task", "shape", "training", "state"), rows, "rlllrl")

    def runs(self, words: str, count: int, is_json: bool) -> None:
        """List runs."""
        found = self.client.runs(words, count)
        if is_json:
            _say_json(found)
            return
        rows = [
            [
                *(str(row["id"]), row["name"], row["state"], f"{row['iteration']} / {row['max_iter']}"),
                *(_number(row["loss"]), _number(row["best"])),
            ]
            for row in found
        ]
        print_table("Runs", ("id", "name", "state", "iteration", "loss", "best"), rows, "rllrrr")

    def status(self, run: int, is_json: bool) -> None:
        """Print a run."""
        _say_run(self.client.run(run), is_json)

    def submit(
        self, net: str, data: str, name: str, wants: str, options: list[str], is_awaited: bool, is_json: bool
    ) -> None:
        """Queue a training; raises InvalidArgument for options that are no OPTION=VALUE."""
        given: Row = {}
        for each in options:
            key, equals, value = each.partition("=")
            if not equals or not key:
                raise InvalidArgument(f"--set {each!r}: give OPTION=VALUE, as epochs=4")
            given[key.strip()] = value.strip()
        made = self.client.start(self._dataset(data), self._net(net), name, wants=wants, **_typed(given))
        if is_awaited:
            self.wait(made["id"], is_json)
        elif is_json:
            _say_json(made)
        else:
            say(str(made["id"]))

    def wait(self, run: int, is_json: bool) -> None:
        """Wait for the end of a run. Raises RunFailed where it is neither done nor was stopped early."""
        row = self.client.wait(run)
        _say_run(row, is_json)
        if row["state"] not in ("done", "stopped"):
            raise RunFailed(f"run {run} is {row['state']}{': ' if row['message'] else ''}{row['message']}")

    def ask(self, run: int, what: str) -> None:
        """Have a run pause, resume or stop."""
        row = getattr(self.client, what)(run)
        say(f"{run}\t{row['intent'] or row['state']}")

    def export(self, run: int, kind: str, to: Path, weights: str) -> None:
        """Export a net to a file."""
        made = self.client.export(run, kind, to, weights)
        say(f"{to}\t{made['bytes']} bytes")
        for check in made["checks"]:
            say(f"checked by {check['runner']}: {check['distance']:.2g} of {check['allowed']:.2g} allowed")

    def mcp(self) -> None:
        """Answer messages of the Model Context Protocol until standard input ends."""
        from jitdnn.studio.tools import Tools

        Tools(self.client).serve(sys.stdin, sys.stdout)

    def _dataset(self, text: str) -> int:
        found = self.client.datasets()
        named = [row["id"] for row in found if row["name"] == text]
        if len(named) == 1:
            return int(named[0])
        if text.isdecimal() and any(row["id"] == int(text) for row in found):
            return int(text)
        listed = ", ".join(f"{row['id']} ({row['name']})" for row in found[:20]) or "none"
        why = f"{len(named)} data sets are called" if named else "there is no data set"
        raise InvalidArgument(f"{why} {text!r}: there are {listed}")

    def _net(self, text: str) -> str:
        path = Path(text)
        if path.is_file():
            return path.read_text("utf-8")
        shipped = {net["key"]: net["text"] for net in self.client.get("/api/nets")}
        if text not in shipped:
            raise InvalidArgument(
                f"{text} is no file, and no net of the gallery: there are {', '.join(shipped)}"
            )
        return str(shipped[text])


def _typed(given: Row) -> Row:
    """The values of options as JSON has them: numbers, lists and true where they read as such, text otherwise."""
    found: Row = {}
    for name, text in given.items():
        if name in ("steps", "freeze"):
            found[name] = text.replace(",", " ").split()
            continue
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _say_run(row: Row, is_json: bool) -> None:
    if is_json:
        _say_json(row)
        return
    rows = [
        ["name", row["name"]],
        *([name, _number(row[name])] for name in _SHOWN if row.get(name) not in (None, "")),
    ]
    print_table(f"Run {row['id']}", ("what", "value"), rows)


def _say_json(value: Any) -> None:
    say(json.dumps(value, ensure_ascii=False))


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def run_serve(bundle: Path, host: str, port: int, token: str) -> None:
    """Serve a bundle until it is interrupted. Raises NotSupported without the packages of the extra."""
    with _naming_the_extra():
        from jitdnn.studio.web.bundle_server import serve_bundle
    serve_bundle(bundle, host, port, token, lambda line: print(line, flush=True))


_PACKAGES: Final = ("fastapi", "uvicorn", "jinja2", "python_multipart", "PIL")


@contextmanager
def _naming_the_extra() -> Iterator[None]:
    try:
        # some are imported when the first page is made, and by others in words of their own
        for name in _PACKAGES:
            import_module(name)
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "jitdnn":
            raise
        raise NotSupported(
            f'the studio needs {error.name}, which is not installed: pip install "jitdnn[studio]"'
        ) from error
