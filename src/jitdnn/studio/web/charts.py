"""Which charts a run has, from the names of its series, and each as SVG for a page without script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jitdnn.studio import texts
from jitdnn.studio.work.gpu_load import BUSY, DEGREES, MEMORY

#: weights that smoothing offers, by the places of a slider
SMOOTHING: Final = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
#: colours of series beyond those that have their own
_OTHERS: Final = ("val", "rate", "accuracy", "train")
#: charts of series that the studio does not know
MOST_OTHERS: Final = 24
_WIDTH, _HEIGHT = 600, 200
Curve = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Line:
    """A series in a chart. `kind` is the class of its colour; `unit` is "%" for shares of one."""

    name: str
    kind: str
    title: str
    is_smoothed: bool = False


@dataclass(frozen=True)
class Chart:
    """One axis: only series of the same quantity share a chart."""

    key: str
    title: str
    lines: tuple[Line, ...]
    is_share: bool = False

    @property
    def names(self) -> list[str]:
        """The series that it shows, each once."""
        return list(dict.fromkeys(line.name for line in self.lines))


def charts(names: Sequence[str], task: str | None) -> list[Chart]:
    """The charts of a run: loss, what its tests say beside the loss, learning rate, and norms of gradients, times and
    the load of its GPU if there are any.

    A run that has told nothing yet has those that its task will have.
    """
    losses = [name for name in names if name.startswith("val ") and _is_loss(name)]
    losses = losses or ["val loss"]
    loss = [Line("loss", "raw", texts.text("train, each")), Line("loss", "train", texts.text("train"), True)]
    for at, name in enumerate(losses):
        title = texts.text("test") if len(losses) == 1 else name.removeprefix("val ")
        loss.append(Line(name, "val" if at == 0 else _OTHERS[at % len(_OTHERS)], title))
    found = [Chart("loss", texts.text("Loss"), tuple(loss))]
    scores = [name for name in names if name.startswith("val ") and not _is_loss(name)]
    if not scores and task in (None, "classification", "segmentation"):
        scores = ["val accuracy"]
    shares = [name for name in scores if "accuracy" in name or "iou" in name or "top" in name]
    if shares:
        found.append(Chart("accuracy", texts.text("Accuracy"), _scores(shares), is_share=True))
    for name in scores:
        if name not in shares:
            title = name.removeprefix("val ")
            found.append(Chart(title, title[:1].upper() + title[1:], _scores([name])))
    found.append(Chart("rate", texts.text("Learning rate"), (Line("lr", "rate", ""),)))
    if "gradient norm" in names:
        found.append(Chart("norm", texts.text("Gradient norm"), (Line("gradient norm", "val", ""),)))
    times = [name for name in names if name.startswith("time/")]
    if times:
        lines = [
            Line(n, _OTHERS[at % len(_OTHERS)], n.removeprefix("time/")) for at, n in enumerate(times[:8])
        ]
        found.append(Chart("time", texts.text("Seconds"), tuple(lines)))
    loads = [name for name in (BUSY, MEMORY) if name in names]
    if loads:
        kinds = {BUSY: "train", MEMORY: "val"}
        lines = [Line(name, kinds[name], name.removeprefix("gpu/")) for name in loads]
        found.append(Chart("gpu", texts.text("GPU"), tuple(lines), is_share=True))
    if DEGREES in names:
        found.append(Chart("degrees", texts.text("GPU, degrees Celsius"), (Line(DEGREES, "rate", ""),)))
    shown = {name for chart in found for name in chart.names} | set(times)
    for name in [each for each in names if each not in shown][:MOST_OTHERS]:  # of runs from elsewhere
        found.append(Chart(name, name[:1].upper() + name[1:], (Line(name, "train", ""),)))
    return found


def _is_loss(name: str) -> bool:
    return "loss" in name.lower()


def _scores(names: Sequence[str]) -> tuple[Line, ...]:
    colours = ("accuracy", "rate", "val", "train")
    titles = [texts.text("test")] if len(names) == 1 else [name.removeprefix("val ") for name in names]
    return tuple(
        Line(name, colours[at % 4], title) for at, (name, title) in enumerate(zip(names, titles, strict=True))
    )


def drawing(chart: Chart, curves: Mapping[str, Curve], end: int) -> dict[str, Any]:
    """A chart as paths of an SVG of 600 x 200, with the values at its edges; empty where there is nothing to draw."""
    drawn = [line for line in chart.lines if line.kind != "raw"]
    values = [y for line in drawn for y in curves.get(line.name, ((), ()))[1] if y is not None]
    if not values:
        return {}
    values.sort()
    top = values[-1] if chart.is_share else values[min(len(values) - 1, round(len(values) * 0.98))]
    low = values[0] if chart.is_share else 0.0
    span, end = (top - low) or 1.0, max(end, 1)
    paths = []
    for line in drawn:
        xs, ys = curves.get(line.name, ((), ()))
        points = [
            f"{x * _WIDTH / end:.1f},{_HEIGHT - _HEIGHT * min(max((y - low) / span, 0), 1):.1f}"
            for x, y in zip(xs, ys, strict=True)
            if y is not None
        ]
        if points:
            paths.append({"kind": line.kind, "d": "M" + "L".join(points)})
    return {"paths": paths, "top": top, "low": low, "end": end}
