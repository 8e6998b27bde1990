"""A studio in a process of its own, and pages of it in headless Chromium that note everything they complain about."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

AXE = Path(__file__).parent.parent / "studio" / "web" / "axe" / "axe.min.js"
#: findings of axe as lines
_FINDINGS = """async (rules) => {
  const options = rules.length ? { runOnly: rules, resultTypes: ["violations"] } : { resultTypes: ["violations"] };
  return (await axe.run(options)).violations.flatMap((found) => found.nodes.slice(0, 2).map(
    (node) => `${found.id}: ${node.html.slice(0, 120)} ${node.failureSummary.slice(0, 200)}`));
}"""
_TELL = """addEventListener("securitypolicyviolation",
  (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""


#: that a server may take until it answers
START_SECONDS = 180.0


def chromium() -> str | None:
    """The browser of the system, JITDNN_CHROMIUM first; None if there is none."""
    names = [os.environ.get("JITDNN_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Server:
    """`jitdnn studio` with a home of its own; can be killed and started again."""

    def __init__(
        self, home: Path, python: str = sys.executable, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home, self._python = home, python
        self._environment = {**os.environ, **(environment or {})}
        if python != sys.executable:  # that of another environment, which has its own packages
            self._environment.pop("PYTHONPATH", None)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it says its address."""
        command = [
            self._python,
            "-m",
            "jitdnn",
            "studio",
            "--home",
            str(self.home),
            "--port",
            str(self.port),
            "--no-open",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("jitdnn studio: http://"), line
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.ask("GET", "/api/queue")
                return
            except (urllib.error.URLError, TimeoutError):  # a busy machine may keep an answer waiting
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def kill(self) -> None:
        """As if the power failed."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        """Of a request of a program."""
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None, seconds: float = 60.0) -> Any:
        """The answer of the REST API, decoded; `seconds` is how long it is waited for."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, content, self.headers, method=method)
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read() or b"null")

    def end(self) -> None:
        """End it and the workers that outlive it."""
        with contextlib.suppress(OSError, urllib.error.URLError):
            for run in self.ask("GET", "/api/runs?count=1000"):
                if run["state"] == "running" and run["pid"]:
                    os.kill(run["pid"], signal.SIGKILL)
        self.kill()


class Browser:
    """Contexts of one headless Chromium, signed in to one server; `said` is what pages complained about."""

    def __init__(self, play: Any, server: Server) -> None:
        self.play, self.server = play, server
        # a camera that shows a moving picture, for pages that may use one
        fake = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        self.browser = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox", *fake])
        self.said: list[str] = []

    def page(self, **options: Any) -> Any:
        """A page in a context of its own, on the first page."""
        context = self.browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.add_init_script(_TELL)
        page = context.new_page()
        self.watch(page)
        page.goto(f"{self.server.base}/?token={self.server.token}")
        return page

    def phone(self, **options: Any) -> Any:
        return self.page(**(self.play.devices["Pixel 7"] | options))

    def watch(self, page: Any) -> None:
        page.on(
            "console",
            lambda m: self.said.append(f"{page.url}: {m.text}") if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.said.append(f"{page.url}: {error}"))

    def complaints(self) -> list[str]:
        """What pages said since it was asked for last."""
        said, self.said = self.said, []
        return said


def findings(page: Any, rules: Sequence[str] = ()) -> list[str]:
    """What axe finds on a page as it is, by all of its rules or by some."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate(_FINDINGS, list(rules))
    return [f"{page.url}: {each}" for each in found]


@contextlib.contextmanager
def running(
    home: Path, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server while the block runs, by another Python if one is given, with more in its environment."""
    server = Server(home, python, environment)
    try:
        server.start()
        yield server
    finally:
        server.end()


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until the element has the focus, as somebody without a pointer does."""
    for _ in range(200):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Escape")  # leaves the editor, in which Tab writes spaces
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached by Tab")
