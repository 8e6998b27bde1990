"""First pictures of the studio's pages in a browser, with much to show: `benchmarks/studio.py pages` comes here."""

# ruff: noqa: T201

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import studio_trained
from jitdnn.studio.client import Client
from jitdnn.studio.data import Options, creation
from jitdnn.studio.store import Store
from studio_browser import Browser, chromium, running

_TIMES = 5
_MOST = 1500.0  # milliseconds to the first picture
_FIRST = """new Promise((tell) => new PerformanceObserver((seen) => {
  for (const each of seen.getEntries()) if (each.name === "first-contentful-paint") tell(each.startTime);
}).observe({ type: "paint", buffered: true }))"""
#: how many images were fetched, with those that are fetched when they come into view, and when the last was there
_IMAGES = """() => {
  const images = performance.getEntriesByType("resource").filter((each) => /png|image/.test(each.name));
  return [images.length, Math.max(0, ...images.map((each) => each.responseEnd))];
}"""


def pages(home: Path, count: int, runs: int = 1_000, images: int = 100_000) -> None:
    """First pictures of pages with a run of `count` points, so many runs, and a data set of so many images, by a tenth
    of which a net is evaluated."""
    if chromium() is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    from playwright import sync_api as playwright

    home.rmdir()
    shutil.copytree(studio_trained.digits().home, home)
    with Store(home) as store:
        many, long = _fill(store, count, runs, images)
    paths = (
        "/", f"/runs/{long}", f"/compare?run={long}&run={long + 1}", f"/data/{many}", f"/data/{many}?view=list",
        f"/data/{many}/about", f"/train?dataset={many}", "/queue", "/sweeps", "/settings",
        "/runs/1/evaluation", "/runs/1/classify?at=3", "/runs/1/inside?at=3",
    )  # fmt: skip
    with running(home) as server, playwright.sync_playwright() as play:
        browser = Browser(play, server)
        slow = []
        for path in paths:
            if "/inside" in path or "/evaluation" in path:
                print(_told(f"{path}, the first time", [_visit(browser, path)]), flush=True)
                Client(server.base, server.token).evaluate(1, part="test")
            found = [_visit(browser, path) for _ in range(_TIMES)]
            print(_told(path, found), flush=True)
            slow += [path] if np.median([each[0] for each in found]) > _MOST else []
        if slow:
            sys.exit(f"FAILED: over 1.5 s: {', '.join(slow)}")


def _visit(browser: Browser, path: str) -> tuple[float, int, float]:
    """Milliseconds to the first picture, images, and milliseconds to the last of those in view."""
    page: Any = browser.page()
    page.goto(browser.server.base + path, wait_until="load")
    first = float(page.evaluate(_FIRST))
    page.wait_for_load_state("networkidle", timeout=180_000)
    number, last = page.evaluate(_IMAGES)
    page.context.close()
    return first, int(number), float(last)


def _told(path: str, found: list[tuple[float, int, float]]) -> str:
    first, images, last = (float(each) for each in np.median(found, axis=0))
    worst = max(each[0] for each in found)
    drawn = f"; {images:.0f} images in view by {last:.0f} ms" if images else ""
    return f"{path}: first picture {first:.0f} ms (worst of {len(found)}: {worst:.0f}){drawn}"


def _fill(store: Store, count: int, runs: int, images: int) -> tuple[int, int]:
    """Numbers of a data set of so many images, by which run 1 is judged, and of a run of `count` points."""
    random = np.random.default_rng(0)
    file = store.home / "many.npz"
    data = random.integers(0, 256, (images, 1, 28, 28), np.uint8)
    np.savez(file, data=data, label=np.arange(images) % 10)
    number = creation.create(store, "many", str(file), Options(val=0, test=10))
    file.unlink()
    store.update("run", 1, dataset=number)
    long = store.insert("run", name="long", state="done", iteration=count, max_iter=count, dataset=number)
    values = np.exp(-np.arange(count) / (count / 3)) + 0.1 * random.standard_normal(count)
    for start in range(0, count, 10_000):
        points = values[start : start + 10_000].tolist()
        store.add_points(long, [("loss", at + 1, value) for at, value in enumerate(points, start)])
    for k in range(runs - 1):
        other = store.insert(
            "run", name=f"run {k}", state="done", dataset=number, max_iter=2000, iteration=2000
        )
        store.add_points(other, [("loss", 10 * at + 1, 1 / (at + 1)) for at in range(200)])
    return number, long
