"""An evaluation as one HTML file: style and images inside, no script, nothing that is fetched from anywhere."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

from jitdnn import __version__
from jitdnn.studio.data.sheets import tile
from jitdnn.studio.look.pictures import data_url
from jitdnn.studio.png import png
from jitdnn.studio.store import original_text
from jitdnn.studio.web.context import STATIC, Studio
from jitdnn.studio.web.trained_runs import TrainedRun

#: errors that are shown, with their images of at most so many pixels a side
ERRORS: Final = 16
_SIDE: Final = 256
_STYLES: Final = ("tokens", "frame", "pieces", "look")
_FONT: Final = re.compile(r"@font-face\s*\{[^}]*\}")
# a page's links lead into the studio: their text stays
_LINK: Final = re.compile(r"<(/?)a\b[^>]*>")


def report(studio: Studio, found: TrainedRun, part: str, shown: Mapping[str, Any]) -> str:
    """The file's text, for what the page of the evaluation shows."""
    errors = shown["summary"].get("errors", [])[:ERRORS]
    images = {each["at"]: data_url(png(tile(found.data.images(part)[each["at"]], _SIDE))) for each in errors}
    body = studio.render(
        f"evaluation_{shown['summary']['task'].replace('-', '_')}.html",
        run=found.run, dataset=found.dataset, part=part, chosen=found.chosen, here="", query="", report=images, **shown,
    )  # fmt: skip
    given = {name: value for name, value in found.run["options"].items() if value not in ("", None, [], ())}
    return studio.render(
        "evaluation_report.html", body=_LINK.sub(r"<\1span>", body), style=_style(), run=found.run,
        dataset=found.dataset, part=part, chosen=found.chosen, options=given, version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        net=original_text(studio.store.folder(found.run["id"])),
    )  # fmt: skip


def _style() -> str:
    """The styles of the pages, without what they would fetch."""
    return "\n".join(_FONT.sub("", (STATIC / "css" / f"{name}.css").read_text("utf-8")) for name in _STYLES)
