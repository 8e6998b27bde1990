"""What pages look like, compared with kept pictures tile by tile, and what they cost to fetch.

With JITDNN_STUDIO_PICTURES=FOLDER pictures of pages are written there as people see them, with `pages.txt`, a line for
each page and what it took; `FOLDER/small` has what is compared: a quarter of the size, with all that differs from run
to run (curves, numbers, times) covered.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from studio_browser import findings

#: what another run of the same net changes: covered by the browser before it is compared
VARYING = (
    "[data-chart], .legend, .stats dd, .spark, .marks, .files, #status .line, progress, .matrix, .errors, "
    "#verdict ~ *, .slots, #machine p, .small-only"
)
#: and texts whose length moves what is beside them: they become the same, and are put back
_SAME = """() => {
  const same = {"td.num": "0", ".pill": "<i></i>a state", ".legend": "train and test", "[name=weights] option": "some"};
  window.kept = [];
  for (const [which, text] of Object.entries(same))
    for (const each of document.querySelectorAll(which)) {
      window.kept.push([each, each.innerHTML]);
      each.innerHTML = text;
    }
}"""
_BACK = "() => { for (const [each, text] of window.kept) each.innerHTML = text; }"
#: sides of a tile, of pixels of a kept picture, and the mean difference that it may have, of 255
TILE, TOLERANCE = 15, 16.0


def folder() -> Path | None:
    """Where pictures are to be written, None for nowhere."""
    found = os.environ.get("JITDNN_STUDIO_PICTURES")
    if not found:
        return None
    (Path(found) / "small").mkdir(parents=True, exist_ok=True)
    return Path(found)


def picture(page: Any, name: str, kept: Path) -> None:
    """Take a picture, write it if it is wanted, and compare it with `kept`/NAME.png."""
    as_seen = page.screenshot(animations="disabled")
    page.evaluate(_SAME)
    taken = page.screenshot(animations="disabled", mask=[page.locator(VARYING)], mask_color="#7f7f7f")
    page.evaluate(_BACK)
    small = Image.open(io.BytesIO(taken)).convert("RGB").reduce(4)
    small = small.quantize(64, dither=Image.Dither.NONE)  # on both sides of the comparison
    if there := folder():
        (there / f"{name}.png").write_bytes(as_seen)
        small.save(there / "small" / f"{name}.png", optimize=True)
    assert (kept / f"{name}.png").exists(), (
        f"{name}.png is not kept: take that of JITDNN_STUDIO_PICTURES/small"
    )
    before = Image.open(kept / f"{name}.png").convert("RGB")
    at, most = worst_tile(np.asarray(before, float), np.asarray(small.convert("RGB"), float))
    tell(f"{name}: worst tile {most:.1f} of 255")
    assert most < TOLERANCE, (
        f"{name} looks other than {kept / name}.png around pixel {4 * at[0]}, {4 * at[1]} (a difference of "
        f"{most:.0f} of 255): if it is meant to, keep what JITDNN_STUDIO_PICTURES writes to small/"
    )


def shown(page: Any, kept: Path, name: str = "") -> None:
    """Axe finds nothing on the page in light, and no lack of contrast in dark, where nothing but colours differs; with
    a name, it looks as in the folder `kept`."""
    for scheme, rules in (("light", ()), ("dark", ("color-contrast",))):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # nothing fades: no time to wait for
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert findings(page, rules) == []
        if name:
            picture(page, f"{name}-{scheme}", kept)
    page.emulate_media(color_scheme="light")


def worst_tile(before: np.ndarray, now: np.ndarray) -> tuple[tuple[int, int], float]:
    """The left upper pixel (x, y) of the tile that differs most, and its mean difference. Tiles overlap by a half, so
    that what lies on the edge of one is in the middle of another."""
    assert before.shape == now.shape, (before.shape, now.shape)
    difference = np.abs(before - now).mean(axis=2)
    sums = np.pad(difference.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    ys = range(0, max(1, difference.shape[0] - TILE + 1), TILE // 2)
    xs = range(0, max(1, difference.shape[1] - TILE + 1), TILE // 2)
    found = {
        (x, y): (sums[y + TILE, x + TILE] - sums[y, x + TILE] - sums[y + TILE, x] + sums[y, x]) / TILE**2
        for y in ys
        for x in xs
    }
    at = max(found, key=lambda each: found[each])
    return at, float(found[at])


def tell(line: str) -> None:
    """Note a line about a page."""
    if there := folder():
        with open(there / "pages.txt", "a") as file:
            file.write(f"{line}\n")


@contextlib.contextmanager
def transfer(page: Any) -> Iterator[dict[str, float]]:
    """Bytes that a page fetches while the block runs, as they are sent, with nothing in the cache: `bytes` of all, and
    of them `images`."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    kinds: dict[str, str] = {}
    found = {"bytes": 0.0, "images": 0.0}

    def finished(event: dict[str, Any]) -> None:
        found["bytes"] += event["encodedDataLength"]
        if kinds.get(event["requestId"]) == "Image":
            found["images"] += event["encodedDataLength"]

    session.on("Network.responseReceived", lambda event: kinds.update({event["requestId"]: event["type"]}))
    session.on("Network.loadingFinished", finished)
    try:
        yield found
    finally:
        session.send("Network.setCacheDisabled", {"cacheDisabled": False})
        session.detach()
