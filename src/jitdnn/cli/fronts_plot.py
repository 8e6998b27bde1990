"""Time against workspace of every layer of a net, and how a budget is divided among them, as a PNG."""

from __future__ import annotations

import math
from collections.abc import Hashable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jitdnn.errors import InvalidArgument
from jitdnn.planner.fronts import Point
from jitdnn.planner.net_plan import LayerPlan, NetPlan, grouped
from jitdnn.planner.plan import format_seconds
from jitdnn.problems.convolution import Convolution
from jitdnn.settings import format_bytes

# Okabe and Ito's colours, which can be told apart with any kind of colour vision
_COLOURS = {"fwd": "#0072B2", "bwd_data": "#D55E00", "bwd_filter": "#009E73", "": "#CC79A7"}
_TICKS = [0, *(2**power for power in range(0, 60, 2))]
_MOST_PANELS = 200
# inches of the bar: from which on a piece has its name in it, and what a letter of that takes
_LABELLED = 0.6
_LETTER = 0.065


def require() -> None:
    """Raise InvalidArgument, naming the extra, if plots cannot be drawn: before the planning, not after."""
    if find_spec("matplotlib") is None:
        raise InvalidArgument("plots need matplotlib, which is not installed: pip install 'jitdnn[plot]'")


def save_png(plan: NetPlan, path: Path, title: str = "") -> None:
    """Draw a panel for each different layer, and a bar of the arenas, to a PNG.

    In a panel the line is the least time for every size of workspace, the dashed one that without dividing. Raises
    InvalidArgument if matplotlib is missing, there are too many layers, or the file cannot be written.
    """
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers = grouped(plan.layers)
    if len(layers) > _MOST_PANELS:
        raise InvalidArgument(
            f"{path}: {len(layers)} different layers are too many for a plot: plan some of them"
        )
    columns = _columns(len(layers))
    rows = math.ceil(len(layers) / columns)
    is_dense = len(layers) > 20
    size = 7.0 if is_dense else 8.0
    panel = (1.75, 1.3) if is_dense else (2.6, 1.9) if len(layers) > 4 else (3.6, 2.7)
    width = max(7.5, columns * panel[0] + 0.8)
    parts: Any
    handles = _legend(plan)
    per_line = len(handles) if width > 9.5 else math.ceil(len(handles) / 2)
    head = 0.55 + 0.2 * math.ceil(len(handles) / per_line)
    heights = (head, rows * panel[1] + 0.3, 1.15)
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    parts = figure.subfigures(3, 1, height_ratios=heights)
    above, top, bottom = parts
    above.suptitle(_heading(plan, title), fontsize=10, y=0.97, va="top")
    above.legend(
        handles=handles, loc="lower center", ncols=per_line, fontsize=8, frameon=False, borderaxespad=0.0
    )
    grid = top.subplots(rows, columns, squeeze=False, sharex=True)
    unit, scale = _unit(plan)
    limits = _limits(plan)
    for number, axes in enumerate(grid.flat):
        if number >= len(layers):
            axes.set_visible(False)
            continue
        layer, count = layers[number]
        _panel(axes, layer, count, scale, limits, size, 4.0 if len(layers) <= 4 else 2.5)
        if number + columns >= len(layers):  # the last of its column
            axes.tick_params(labelbottom=True)
    top.supxlabel("workspace", fontsize=9)
    top.supylabel(f"time of one call ({unit})", fontsize=9)
    _bar(bottom.subplots(), plan, width)
    try:
        figure.savefig(path, format="png", dpi=130)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None


def _columns(panels: int) -> int:
    """About as wide as a page: panels are wider than high."""
    return panels if panels <= 3 else min(8, math.ceil(math.sqrt(1.4 * panels)))


def _heading(plan: NetPlan, title: str) -> str:
    words = [title] if title else []
    words.append(f"{len(plan.layers)} layer{'s' if len(plan.layers) > 1 else ''} on {plan.device_name}")
    words.append(f"{format_seconds(plan.seconds)} in {format_bytes(plan.workspace)} of workspace")
    if plan.undivided_seconds is not None:
        words.append(f"undivided {format_seconds(plan.undivided_seconds)}")
    return ", ".join(words[:-2]) + "\n" + ", ".join(words[-2:]) if len(words) > 2 else ", ".join(words)


def _unit(plan: NetPlan) -> tuple[str, float]:
    """One unit of time for all panels."""
    longest = max(layer.chosen.seconds for layer in plan.layers)
    return ("ms", 1e3) if longest >= 2e-4 else ("us", 1e6)


def _limits(plan: NetPlan) -> tuple[int, int]:
    """Bytes: up to which the axis is linear, and where it ends."""
    sizes = [p.workspace for layer in plan.layers for p in _drawn(layer)]
    positive = [size for size in sizes if size > 0] or [1]
    return max(1, min(positive) // 2), 2 * max(positive)


def _drawn(layer: LayerPlan) -> list[Point]:
    return [*layer.front, *layer.partitions.whole, layer.partitions.unlimited]


def _direction(layer: LayerPlan) -> str:
    return layer.problem.direction if isinstance(layer.problem, Convolution) else ""


def _colour(layer: LayerPlan) -> str:
    return _COLOURS[_direction(layer)]


def _panel(
    axes: Any,
    layer: LayerPlan,
    count: int,
    scale: float,
    limits: tuple[int, int],
    size: float,
    headroom: float,
) -> None:
    linear, end = limits
    colour = _colour(layer)
    for points, style in (
        (layer.partitions.whole, {"color": "0.55", "linestyle": (0, (3, 2))}),
        (layer.front, {"color": colour}),
    ):
        if points:
            x = [p.workspace for p in points]
            y = [scale * p.seconds for p in points]
            axes.plot([*x, end], [*y, y[-1]], drawstyle="steps-post", linewidth=1.1, **style)
    axes.plot(
        [p.workspace for p in layer.front],
        [scale * p.seconds for p in layer.front],
        ".",
        markersize=3.5,
        color=colour,
    )
    best = layer.partitions.unlimited
    axes.plot(best.workspace, scale * best.seconds, "*", markersize=6, color="0.35", zorder=3)
    if layer.undivided is not None:
        axes.plot(
            layer.undivided.workspace, scale * layer.undivided.seconds, "s", markersize=5.5, markerfacecolor="white",
            markeredgecolor="black", zorder=4,
        )  # fmt: skip
    axes.plot(
        layer.chosen.workspace, scale * layer.chosen.seconds, "o", markersize=6, color=colour,
        markeredgecolor="black", markeredgewidth=0.8, zorder=5,
    )  # fmt: skip
    axes.set_xscale("symlog", linthresh=linear, linscale=min(0.3, 0.12 * math.log10(end / linear)))
    axes.set_xlim(-0.35 * linear, end)
    # what is far above the rest would press it flat
    most = max(p.seconds for p in _drawn(layer))
    usual = max(layer.chosen.seconds, layer.undivided.seconds if layer.undivided else 0.0)
    axes.set_ylim(0.0, scale * min(1.12 * most, headroom * usual))
    ticks = [0, *_ticks(linear, end, 3 if size < 8 else 4)]
    axes.set_xticks(ticks, [format_bytes(tick).replace(".0", "") for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.tick_params(labelsize=size - 1.5, length=2, pad=1.5)
    axes.tick_params(axis="x", labelrotation=0)
    axes.locator_params(axis="y", nbins=4)
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    letters = 26 if size < 8 else 34 if headroom < 4 else 60
    axes.set_title(_counted(_shortened(layer.name, letters), count), fontsize=size, pad=3)


def _ticks(linear: int, end: int, most: int) -> list[int]:
    """At most so many sizes that are powers of 4, as far apart as the axis is long."""
    inside = [tick for tick in _TICKS if 2 * linear <= tick <= end]
    step = max(1, math.ceil(len(inside) / most))
    return inside[::-1][::step][::-1]


def _legend(plan: NetPlan) -> list[Any]:
    """What the marks mean."""
    from matplotlib.lines import Line2D

    directions = dict.fromkeys(_direction(layer) for layer in plan.layers)
    handles = [
        Line2D([], [], color=_COLOURS[each], marker=".", label=f"{each or 'other'}: least time")
        for each in directions
    ]
    handles += [
        Line2D([], [], color="0.55", linestyle=(0, (3, 2)), label="undivided"),
        Line2D([], [], color="0.5", marker="o", markeredgecolor="black", linestyle="", label="chosen"),
        Line2D(
            [],
            [],
            color="white",
            marker="s",
            markeredgecolor="black",
            linestyle="",
            label="undivided, in as much",
        ),
        Line2D(
            [], [], color="0.35", marker="*", linestyle="", markersize=8, label="undivided, any workspace"
        ),
    ]
    return handles


def _segments(plan: NetPlan) -> list[tuple[int, str, str]]:
    """Bytes, name and colour of what lies beside each other in the budget, the largest first; equal layers together."""
    if plan.streams is None:
        layers = grouped(plan.layers)
        found = [
            # the colour says the direction
            (
                count * layer.chosen.workspace,
                _counted(layer.name.removesuffix(_direction(layer)).strip(), count),
                _colour(layer),
            )
            for layer, count in layers
        ]
    else:
        owners: dict[Hashable, list[LayerPlan]] = {}
        for stream, layer in zip(plan.streams, plan.layers, strict=True):
            owners.setdefault(stream, []).append(layer)
        found = []
        for stream, size in plan.arenas.items():
            largest = max(owners[stream], key=lambda layer: layer.chosen.workspace)
            found.append((size, f"{stream}, for {largest.name}", _colour(largest)))
    return sorted((each for each in found if each[0]), key=lambda each: -each[0])


def _counted(name: str, count: int) -> str:
    return name if count == 1 else f"{name} \u00d7{count}"


def _shortened(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}\u2026"


def _bar(axes: Any, plan: NetPlan, width: float) -> None:
    """The arenas beside each other, the largest first, and what is left of the total; `width` in inches."""
    whole = max(plan.total or 0, plan.workspace, 1)
    left = 0
    for size, name, colour in _segments(plan):
        axes.barh(0, size, left=left, height=0.8, color=colour, edgecolor="white", linewidth=0.6)
        inches = width * size / whole
        if inches >= _LABELLED:
            text = f"{_shortened(name, int(inches / _LETTER))}\n{format_bytes(size)}"
            axes.text(left + size / 2, 0, text, ha="center", va="center", fontsize=6.5, color="white")
        left += size
    free = (plan.total or 0) - left
    if free > 0:
        axes.barh(0, free, left=left, height=0.8, color="0.93", edgecolor="0.7", hatch="////", linewidth=0.6)
        if width * free / whole >= _LABELLED:
            axes.text(
                left + free / 2, 0, f"free\n{format_bytes(free)}", ha="center", va="center", fontsize=6.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )  # fmt: skip
    axes.set_xlim(0, whole)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([])
    ticks = [whole * part // 4 for part in range(5)]
    axes.set_xticks(ticks, [format_bytes(tick) for tick in ticks])
    axes.tick_params(labelsize=7)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    what = "workspace of each layer" if plan.streams is None else "workspace of each stream"
    of = f" of {format_bytes(plan.total)}" if plan.total is not None else ""
    axes.set_title(f"{what}: {format_bytes(plan.workspace)}{of}", fontsize=8, loc="left")
