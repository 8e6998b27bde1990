"""Makes the pictures of docs/studio.md in docs/studio: trains four small nets, and looks at the pages by Chromium.

python docs/pictures.py [FOLDER]
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image
from playwright import sync_api as playwright

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "helpers"))

from jitdnn.studio import nets  # noqa: E402
from jitdnn.studio.client import Client  # noqa: E402
from studio_browser import Browser, Server, running  # noqa: E402

_SIZE = {"width": 1200, "height": 860}
_PATIENCE = 300_000  # milliseconds
#: name, net and options of the runs beside the first
_OTHERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Rate to zero", "lenet", {"epochs": 5, "rate": 0.02, "policy": "poly"}),
    ("Adam, small batches", "lenet", {"epochs": 4, "rate": 0.001, "batch": 32, "solver": "Adam", "policy": "cosine"}),
    ("Perceptron", "perceptron", {"epochs": 8, "rate": 0.05, "policy": "fixed"}),
)  # fmt: skip
#: a three, as points in the square of the pad
_STROKE = (
    (0.28, 0.22), (0.5, 0.14), (0.7, 0.26), (0.62, 0.42), (0.45, 0.48),
    (0.66, 0.54), (0.74, 0.7), (0.55, 0.84), (0.28, 0.78),
)  # fmt: skip


def main(folder: Path) -> None:
    """Write run.png, train.png, evaluation.png, classify.png and compare.png."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        running(Path(home)) as server,
        playwright.sync_playwright() as play,
    ):
        studio = Client(server.base, server.token)
        browser = Browser(play, server)
        _first(server)
        page = browser.page(viewport=_SIZE, color_scheme="dark")
        while (row := studio.run(1))["iteration"] < 0.62 * (row["max_iter"] or 1e9):
            time.sleep(0.2)
        page.goto(f"{server.base}/runs/1", wait_until="load")
        page.locator("[data-chart=accuracy] canvas").wait_for()
        page.wait_for_timeout(1500)
        _keep(page, folder / "run.png")
        page.context.close()

        texts = {net["key"]: net["text"] for net in nets.gallery("classification")}
        runs = [studio.start(1, texts[key], name=name, **options)["id"] for name, key, options in _OTHERS]
        for run in (1, *runs):
            studio.wait(run)
        studio.evaluate(1)
        page = browser.page(viewport=_SIZE)
        page.set_default_timeout(_PATIENCE)
        page.goto(f"{server.base}/train", wait_until="load")
        page.locator(".plan .algorithm").first.wait_for(timeout=120_000)
        page.locator(".preview img").wait_for(timeout=120_000)
        _keep(page, folder / "train.png")
        page.goto(f"{server.base}/runs/1/evaluation", wait_until="networkidle")
        _keep(page, folder / "evaluation.png")
        page.goto(
            f"{server.base}/compare?{'&'.join(f'run={run}' for run in (1, *runs))}", wait_until="networkidle"
        )
        _keep(page, folder / "compare.png")
        page.goto(f"{server.base}/runs/1/classify", wait_until="load")
        page.locator("#answer .best li").first.wait_for()
        _draw(page)
        _keep(page, folder / "classify.png")


def _first(server: Server) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    request = urllib.request.Request(f"{server.base}/first", b"", headers, method="POST")
    urllib.request.urlopen(request, timeout=120).close()


def _draw(page: Any) -> None:
    box = page.locator("#pad").bounding_box()
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in _STROKE]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=6)
    with page.expect_response(lambda answer: answer.url.endswith("/classify")):
        page.mouse.up()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)


def _keep(page: Any, path: Path) -> None:
    """A picture in the 256 colours that fit it best, without dithering: a fifth of the bytes."""
    taken = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    found = taken.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    found.save(path, optimize=True)
    sys.stdout.write(f"{path}: {path.stat().st_size // 1024} kB\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "studio")
