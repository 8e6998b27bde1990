"""Numbers as people read them, and the catalogue of words that several pages use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitdnn.studio import tasks

NOTHING = "–"
THIN = "\u2009"
#: what a state is called on the pages
STATES = {
    "preparing": "being prepared",
    "queued": "waiting",
    "running": "running",
    "done": "finished",
    "stopped": "stopped early",
    "paused": "paused",
    "failed": "failed",
    "interrupted": "interrupted",
}
#: what the rows of tables are called
TABLES = {"dataset": "data set"}
#: what the tasks of data sets are called
TASKS = {name: task.title for name, task in tasks.TASKS.items()}


def seconds(value: float | None) -> str:
    """A duration: `293 ms`, `16.5 s`, `4 min 05 s`, `3 h 12 min`, `2 d 4 h`."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0 s"
    for limit, unit, scale in ((1e-3, "µs", 1e6), (1, "ms", 1e3), (59.5, "s", 1)):
        if value < limit:
            return f"{value * scale:.3g} {unit}"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(value: float | None) -> str:
    """Bytes: `0 B`, `5.8 MiB`, `118 GiB`."""
    if value is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share of one: `97.8 %`."""
    return NOTHING if value is None else f"{100 * value:.{digits}f} %"


def commas(value: float | None) -> str:
    """A whole number in groups of three digits."""
    return NOTHING if value is None else f"{round(value):,}".replace(",", THIN)


def number(value: float | None, digits: int = 4) -> str:
    """A number of any size in few digits: `0.0031`, `1.2e-07`."""
    return NOTHING if value is None else f"{value:.{digits}g}"


def best(run: Mapping[str, Any]) -> str:
    """The best test of a run: a share of right answers, or a loss."""
    return number(run["best"]) if run["best_of"] == "val loss" else percent(run["best"])


def ago(moment: float | None, now: float | None = None) -> str:
    """How long ago a time in seconds since 1970 was."""
    if moment is None:
        return NOTHING
    passed = max(0.0, (time.time() if now is None else now) - moment)
    for limit, unit in ((60, 1), (3600, 60), (86400, 3600)):
        if passed < limit:
            return "just now" if unit == 1 else f"{int(passed // unit)} {'min' if unit == 60 else 'h'} ago"
    return f"{int(passed // 86400)} d ago"


def path(values: Sequence[float], width: float = 120, height: float = 30, zero: bool = True) -> str:
    """The `d` of an SVG path through values at equal distances, from the top 1 to the bottom height - 1.

    What is not finite is left out.
    """
    held = [(at, value) for at, value in enumerate(values) if value is not None and abs(value) < float("inf")]
    if len(held) < 2:
        return ""
    top = max(value for _, value in held)
    bottom = min(value for _, value in held)
    bottom = min(0.0, bottom) if zero else bottom
    span = (top - bottom) or 1.0
    step = width / (len(values) - 1)
    return "M" + "L".join(
        f"{at * step:.1f},{1 + (height - 2) * (1 - (value - bottom) / span):.1f}" for at, value in held
    )


def left(run: Mapping[str, Any]) -> str:
    """How long a run will still take, from its images a second."""
    options = run["options"]
    images = (options.get("batch") or 0) * (
        options.get("accumulate") or 1
    ) or 1  # else the speed is in iterations
    if not run["speed"] or not run["iteration"] or not run["max_iter"]:
        return NOTHING
    return seconds(max(0, run["max_iter"] - run["iteration"]) * images / run["speed"])


def shape(text: str | Sequence[int] | None) -> str:
    """`1x28x28` or (1, 28, 28) as `1 × 28 × 28`."""
    parts = text.split("x") if isinstance(text, str) else [str(extent) for extent in text or ()]
    return " × ".join(parts) or NOTHING


def plural(count: int, one: str, many: str = "") -> str:
    """`1 run`, `2 runs`, `2 classes` with `many` given."""
    return f"{commas(count)} {one if count == 1 else many or one + 's'}"


def epochs(run: Mapping[str, Any]) -> str:
    """How many times a run has gone over its training images."""
    if not run["max_iter"] or "epochs" not in run["options"]:
        return NOTHING
    return f"{run['iteration'] / run['max_iter'] * run['options']['epochs']:.1f}"


def summary(dataset: Mapping[str, Any]) -> str:
    """`10 classes · 5 000 images · 1 × 28 × 28`."""
    images = sum(dataset[part] or 0 for part in ("train", "val", "test"))
    classes = len(dataset["classes"])
    kind = plural(classes, "class", "classes") if classes else TASKS.get(dataset["task"], dataset["task"])
    return f"{kind} · {plural(images, 'image')} · {shape(dataset['shape'])}"


FILTERS: dict[str, Callable[..., str]] = {
    each.__name__: each
    for each in (
        seconds,
        size,
        percent,
        commas,
        number,
        best,
        ago,
        path,
        left,
        shape,
        plural,
        epochs,
        summary,
    )
}
