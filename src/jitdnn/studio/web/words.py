"""Numbers as people read them, and the catalogue of words that several pages use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitdnn.studio import tasks, texts

NOTHING = "–"
THIN = "\u2009"
#: what a state is called on the pages
STATES = {
    "preparing": texts.mark("being prepared"),
    "queued": texts.mark("waiting"),
    "running": texts.mark("running"),
    "done": texts.mark("finished"),
    "stopped": texts.mark("stopped early"),
    "paused": texts.mark("paused"),
    "failed": texts.mark("failed"),
    "interrupted": texts.mark("interrupted"),
    "making": texts.mark("being made"),
    "ready": texts.mark("ready"),
    "cancelled": texts.mark("cancelled"),
}
#: what the rows of tables are called
TABLES = {"dataset": texts.mark("data set"), "run": texts.mark("run"), "place": texts.mark("place")}
#: what the parts of a data set are called
PARTS = {"train": texts.mark("training"), "val": texts.mark("validation"), "test": texts.mark("test")}
#: how images are fitted into a shape: what that is called, and what becomes of an image
MODES: dict[str, tuple[str, str]] = {
    "squash": (texts.mark("Squash"), texts.mark("all of it, out of shape")),
    "crop": (texts.mark("Crop"), texts.mark("the middle, cut to shape")),
    "fill": (texts.mark("Fill"), texts.mark("all of it, with bars")),
    "half": (texts.mark("Half"), texts.mark("half cropped, half filled")),
}
#: what is counted on the pages, one and several of it
NOUNS = {
    "change": texts.mark_counted("%(n)s change", "%(n)s changes"),
    "class": texts.mark_counted("%(n)s class", "%(n)s classes"),
    "data set": texts.mark_counted("%(n)s data set", "%(n)s data sets"),
    "epoch": texts.mark_counted("%(n)s epoch", "%(n)s epochs"),
    "file": texts.mark_counted("%(n)s file", "%(n)s files"),
    "hidden run": texts.mark_counted("%(n)s hidden run", "%(n)s hidden runs"),
    "image": texts.mark_counted("%(n)s image", "%(n)s images"),
    "iteration": texts.mark_counted("%(n)s iteration", "%(n)s iterations"),
    "result": texts.mark_counted("%(n)s result", "%(n)s results"),
    "row": texts.mark_counted("%(n)s row", "%(n)s rows"),
    "run": texts.mark_counted("%(n)s run", "%(n)s runs"),
    "run that waits": texts.mark_counted("%(n)s run waits", "%(n)s runs wait"),
    "training": texts.mark_counted("%(n)s training", "%(n)s trainings"),
    "weight": texts.mark_counted("%(n)s weight", "%(n)s weights"),
}

#: what the options of a training are called
OPTIONS = {
    "epochs": texts.mark("Epochs"),
    "batch": texts.mark("Batch"),
    "accumulate": texts.mark("Accumulate"),
    "rate": texts.mark("Learning rate"),
    "policy": texts.mark("Learning rate over time"),
    "gamma": texts.mark("Gamma"),
    "power": texts.mark("Power"),
    "step": texts.mark("Step"),
    "steps": texts.mark("Steps"),
    "warmup": texts.mark("Warmup"),
    "solver": texts.mark("Solver"),
    "momentum": texts.mark("Momentum"),
    "decay": texts.mark("Decay"),
    "clip": texts.mark("Clip"),
    "weight_average": texts.mark("Weight average"),
    "smoothing": texts.mark("Smoothing"),
    "class_weights": texts.mark("Class weights"),
    "patience": texts.mark("Patience"),
    "tests": texts.mark("Tests"),
    "snapshots": texts.mark("Snapshots"),
    "seed": texts.mark("Seed"),
    "math": texts.mark("Math"),
    "memory_limit": texts.mark("Memory limit"),
    "mirror": texts.mark("Mirror"),
    "crop": texts.mark("Crop"),
    "scale": texts.mark("Scale"),
    "mean": texts.mark("Mean"),
    "weights": texts.mark("Weights"),
    "freeze": texts.mark("Freeze"),
}
#: what the directions of a convolution are called in a plan, and what they compute
DIRECTIONS = {
    "forward": (texts.mark("forward"), texts.mark("forward")),
    "filter": (texts.mark("filter"), texts.mark("gradient of the filter")),
    "data": (texts.mark("data"), texts.mark("gradient of the data")),
}


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
    if passed < 60:
        return texts.text("just now")
    units = ((3600, 60, "min"), (86400, 3600, "h"), (float("inf"), 86400, "d"))
    unit, name = next((unit, name) for limit, unit, name in units if passed < limit)
    duration = f"{int(passed // unit)} {name}"
    return texts.text("%(duration)s ago", duration=duration)


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


def plural(count: int, noun: str) -> str:
    """`1 run`, `2 runs`: a count of something in NOUNS."""
    return texts.counted(*NOUNS[noun], count, n=commas(count))


def state(name: str) -> str:
    """What a state of a run or a data set is called."""
    return texts.said(STATES.get(name, name))


def task(name: str) -> str:
    """What a task is called."""
    found = tasks.TASKS.get(name)
    return texts.said(found.title) if found else name


def part(name: str) -> str:
    """What a part of a data set is called."""
    return texts.said(PARTS.get(name, name))


def mode(name: str) -> str:
    """What a way to fit images is called."""
    return texts.said(MODES[name][0]) if name in MODES else name


def option(name: str) -> str:
    """What an option of a training is called: `Learning rate`."""
    return texts.said(OPTIONS[name]) if name in OPTIONS else sentence(name.replace("_", " "))


def sentence(words: str) -> str:
    """With a capital letter at the beginning, and all others as they are."""
    return words[:1].upper() + words[1:]


def epochs(run: Mapping[str, Any]) -> str:
    """How many times a run has gone over its training images."""
    if not run["max_iter"] or "epochs" not in run["options"]:
        return NOTHING
    return f"{run['iteration'] / run['max_iter'] * run['options']['epochs']:.1f}"


def summary(dataset: Mapping[str, Any]) -> str:
    """`10 classes · 5 000 images · 1 × 28 × 28`."""
    images = sum(dataset[part] or 0 for part in ("train", "val", "test"))
    classes = len(dataset["classes"])
    kind = plural(classes, "class") if classes else task(dataset["task"])
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
        state,
        task,
        option,
        part,
        mode,
        sentence,
        texts.said,
        epochs,
        summary,
    )
}
