"""The plan of a net: what runs each layer, what it comes to, and its tables for a reader and as JSON's types."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from jitdnn.planner import workspace as policies
from jitdnn.planner.division import Partition
from jitdnn.planner.fronts import Point
from jitdnn.planner.plan import Candidate, Request, format_seconds
from jitdnn.problems.problem import Problem
from jitdnn.settings import format_bytes

COLUMNS = (
    "layer", "choice", "time", "workspace", "undivided", "faster", "alternatives", "why",
)  # fmt: skip
RIGHT = "llrrrrll"
# as good as the fastest
_EVEN = 1.005


@dataclass(frozen=True)
class Partitions:
    """The partitions of a problem within a request; `what` of each point is a `Partition`, workspace ascends.

    `front`: those worth having; `whole`: of those that do not divide the problem; `unlimited`: the fastest of these
    with any workspace; `candidates`: every algorithm for the whole problem, with its reason where it is refused.
    """

    front: tuple[Point, ...]
    whole: tuple[Point, ...]
    unlimited: Point
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class LayerPlan:
    """One layer: its partitions, and the one taken.

    `allowed`: bytes of workspace of which the partition taken is the fastest use, those of its arena or its limit;
    None for any number. `undivided`: the fastest whole algorithm in as much, None if there is none.
    """

    name: str
    problem: Problem
    partitions: Partitions
    chosen: Point
    allowed: int | None
    undivided: Point | None

    @property
    def front(self) -> tuple[Point, ...]:
        """The front of the partitions, by workspace."""
        return self.partitions.front

    @property
    def partition(self) -> Partition:
        partition: Partition = self.chosen.what
        return partition

    @property
    def fastest(self) -> Point:
        """What would run with any workspace."""
        return min(self.front[-1], self.partitions.unlimited, key=lambda point: point.seconds)


@dataclass(frozen=True)
class NetPlan:
    """How the layers of a net run, in seconds and bytes of workspace.

    `limit`: what each layer may use; `total`: what all may use together; None for no such limit. `streams`: what runs
    the layers, one entry each; layers of one stream share their memory. None if each layer has memory of its own.
    `undivided`: the best points of all layers under the same limits if none is divided, None if they do not fit so.
    """

    layers: tuple[LayerPlan, ...]
    device_name: str
    request: Request
    total: int | None
    streams: tuple[Hashable, ...] | None
    undivided: tuple[Point, ...] | None

    @property
    def limit(self) -> int | None:
        return self.request.workspace_limit

    @property
    def seconds(self) -> float:
        """The sum of all layers."""
        return sum(layer.chosen.seconds for layer in self.layers)

    @property
    def undivided_seconds(self) -> float | None:
        """The sum if no layer was divided, None if they do not fit so."""
        return None if self.undivided is None else sum(point.seconds for point in self.undivided)

    @property
    def fastest_seconds(self) -> float:
        """The sum with any workspace."""
        return sum(layer.fastest.seconds for layer in self.layers)

    @property
    def arenas(self) -> dict[Hashable, int]:
        """Bytes of each arena, by stream, or by the layer's number where each has its own."""
        return arenas_of([layer.chosen for layer in self.layers], self.streams)

    @property
    def workspace(self) -> int:
        """The bytes of all arenas together."""
        return sum(self.arenas.values())

    def explain(self) -> str:
        """A table of the layers: what runs, how long, in how much, and what else could; and what it comes to."""
        return table(self)


def arenas_of(points: Sequence[Point], streams: Sequence[Hashable] | None) -> dict[Hashable, int]:
    arenas: dict[Hashable, int] = {}
    for stream, point in zip(streams or range(len(points)), points, strict=True):
        arenas[stream] = max(arenas.get(stream, 0), point.workspace)
    return arenas


def table(plan: NetPlan) -> str:
    """The rows and the summary as lines of text."""
    lines = [COLUMNS, *rows(plan)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    text = [
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, RIGHT, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*text, "", *summary(plan)])


def grouped(layers: Sequence[LayerPlan]) -> list[tuple[LayerPlan, int]]:
    """Layers of one name and problem that run alike, once each with their number."""
    counts: dict[tuple[Any, ...], int] = {}
    firsts: dict[tuple[Any, ...], LayerPlan] = {}
    for layer in layers:
        key = (layer.name, layer.problem, layer.chosen.seconds, layer.chosen.workspace)
        counts[key] = counts.get(key, 0) + 1
        firsts.setdefault(key, layer)
    return [(layer, counts[key]) for key, layer in firsts.items()]


def rows(plan: NetPlan) -> list[tuple[str, ...]]:
    """The cells of each layer; those that are equal and run alike stand in one row, with their number."""
    return [_row(layer, count) for layer, count in grouped(plan.layers)]


def _row(layer: LayerPlan, count: int) -> tuple[str, ...]:
    other = layer.undivided
    return (
        layer.name if count == 1 else f"{layer.name} *{count}",
        layer.partition.summary.name,
        format_seconds(layer.chosen.seconds),
        format_bytes(layer.chosen.workspace),
        format_seconds(other.seconds) if other else "-",
        _times(other.seconds / layer.chosen.seconds) if other else "-",
        _alternatives(layer),
        _why(layer),
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:.0f}x"


def _alternatives(layer: LayerPlan) -> str:
    """Some of the other partitions, as time at workspace: the smallest, the largest, the neighbours."""
    at, last = _place(layer), len(layer.front) - 1
    shown = sorted({0, at - 1, at + 1, last} & (set(range(last + 1)) - {at}))
    words = [
        f"{format_seconds(p.seconds)} at {format_bytes(p.workspace)}"
        for p in map(layer.front.__getitem__, shown)
    ]
    words += [f"{last - len(shown)} more"] if last > len(shown) else []
    return ", ".join(words) or "none"


def _place(layer: LayerPlan) -> int:
    """Where the partition taken stands in the front."""
    return next(n for n, point in enumerate(layer.front) if point.workspace == layer.chosen.workspace)


def _why(layer: LayerPlan) -> str:
    """What would be faster, and what speaks against it."""
    chosen, best = layer.chosen, layer.fastest
    words = []
    if best.seconds * _EVEN >= chosen.seconds:
        words.append("as fast as with any workspace")
    else:
        words.append(
            f"{best.what.summary.name} is {_times(chosen.seconds / best.seconds)} as fast in "
            f"{format_bytes(best.workspace)}"
        )
    for candidate in layer.partitions.candidates:
        is_too_large = candidate.workspace is not None and policies.refuse(candidate.workspace, layer.allowed)
        if (
            candidate.refused
            and candidate.seconds
            and not is_too_large
            and candidate.seconds < chosen.seconds
        ):
            words.append(f"{candidate.name} refused: {candidate.refused}")
    return "; ".join(words)


def summary(plan: NetPlan) -> list[str]:
    """What it comes to: sums of time and workspace, beside those undivided and with any workspace."""
    arenas = list(plan.arenas.values())
    number = len(plan.layers)
    layers = "1 layer" if number == 1 else f"{number} layers"
    limits = [policies.describe(plan.limit) if plan.limit is not None or plan.total is None else ""]
    limits += [f"{format_bytes(plan.total)} for all together"] if plan.total is not None else []
    lines = [f"{layers} on {plan.device_name}: {', '.join(filter(None, limits))}"]
    if plan.streams is None:
        kept = "each with memory of its own"
    else:
        kept = f"in {len(arenas)} arenas, one for each stream" if len(arenas) > 1 else "in one arena"
        if len(arenas) > 1:
            sizes = (f"{stream}: {format_bytes(size)}" for stream, size in plan.arenas.items())
            kept += f" ({', '.join(sizes)})"
    lines.append(
        f"together {format_seconds(plan.seconds)} in {format_bytes(plan.workspace)} of workspace, {kept}"
    )
    if plan.undivided_seconds is None:
        lines.append("undivided: some layer cannot run within these limits")
    else:
        divided = sum(layer.partition.is_divided for layer in plan.layers)
        gain = _times(plan.undivided_seconds / plan.seconds)
        lines.append(
            f"undivided {format_seconds(plan.undivided_seconds)} under the same limits: dividing {divided} of {layers} "
            f"makes it {gain} as fast"
        )
    needed = sum(_unlimited_arenas(plan))
    lines.append(
        f"with any workspace {format_seconds(plan.fastest_seconds)} in {format_bytes(needed)}: "
        f"{100 * plan.fastest_seconds / plan.seconds:.0f} % of that speed is reached"
    )
    sources: dict[str, int] = {}
    for layer in plan.layers:
        source = layer.partition.summary.source
        sources[source] = sources.get(source, 0) + 1
    words = {"estimate": "estimated, at least in part", "stored": "measured", "measured": "measured"}
    told: dict[str, int] = {}
    for source, count in sources.items():
        told[words.get(source, source)] = told.get(words.get(source, source), 0) + count
    lines.append("times: " + ", ".join(f"{count} {text}" for text, count in told.items()))
    return lines


def _unlimited_arenas(plan: NetPlan) -> list[int]:
    arenas: dict[Any, int] = {}
    for stream, layer in zip(plan.streams or range(len(plan.layers)), plan.layers, strict=True):
        arenas[stream] = max(arenas.get(stream, 0), layer.fastest.workspace)
    return list(arenas.values())


def as_json(plan: NetPlan) -> dict[str, Any]:
    """All of it: seconds, and bytes."""
    return {
        "device": plan.device_name,
        "request": str(plan.request),
        "workspace_limit": plan.limit,
        "total": plan.total,
        "seconds": plan.seconds,
        "undivided_seconds": plan.undivided_seconds,
        "unlimited_seconds": plan.fastest_seconds,
        "workspace": plan.workspace,
        "arenas": [{"stream": str(stream), "bytes": size} for stream, size in plan.arenas.items()],
        "layers": [_layer(layer) for layer in plan.layers],
    }


def _layer(layer: LayerPlan) -> dict[str, Any]:
    return {
        "name": layer.name,
        "problem": str(layer.problem),
        "chosen": {
            **_point(layer.chosen),
            "source": layer.partition.summary.source,
            "error_bound": layer.partition.summary.error_bound,
            "deterministic": layer.partition.summary.deterministic,
            "parts": [
                {"problem": str(step.piece.problem), "algorithm": step.algorithm.name, "added": step.piece.is_added}
                for step in layer.partition.steps
            ],
        },
        "undivided": None if layer.undivided is None else _point(layer.undivided),
        "unlimited": _point(layer.fastest),
        "front": _points(layer.front),
        "undivided_front": _points(layer.partitions.whole),
        "refused": {c.name: c.refused for c in layer.partitions.candidates if c.refused is not None},
    }  # fmt: skip


def _points(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [_point(point) for point in points]


def _point(point: Point) -> dict[str, Any]:
    return {
        "algorithm": point.what.summary.name,
        "seconds": point.seconds,
        "workspace": point.workspace,
    }
