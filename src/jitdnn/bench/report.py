"""Rows as lines for people and for programs, and what a whole run comes to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TextIO

from jitdnn import limits
from jitdnn.bench.driver import PeerResult, Row
from jitdnn.bench.suites import transposed_direction
from jitdnn.bench.timing import geometric_mean
from jitdnn.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Summary:
    """Ours against one family of peers (of its members the fastest counts, layer by layer) in one direction.

    `mean` is the geometric mean of the ratios, every layer counted once; `total` the ratio of the summed
    times, every layer counted as often as its network has it. A ratio above 1 says that ours is faster."""

    kind: str
    family: str
    layers: int
    mean: float
    total: float
    worst: float
    worst_label: str
    slower: int

    def __str__(self) -> str:
        return (
            f"{self.kind} against {self.family}, {self.layers} layers: geometric mean x{self.mean:.2f}, "
            f"summed times x{self.total:.2f}, slower on {self.slower}, "
            f"worst x{self.worst:.2f} ({self.worst_label})"
        )


def of_family(row: Row, family: str) -> PeerResult | None:
    """The fastest of the members of a family that were measured beside `row`."""
    members = [result for name, result in row.peers.items() if name.split("_")[0] == family]
    return min(members, key=lambda result: result.seconds, default=None)


def families(rows: Iterable[Row]) -> list[str]:
    """The families of peers in the rows, in order of appearance."""
    return list(dict.fromkeys(name.split("_")[0] for row in rows for name in row.peers))


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """One summary for each kind of problem and family of peers; failed rows have no part in them."""
    found = []
    for kind in dict.fromkeys(row.problem.split()[0] for row in rows):
        of_kind = [row for row in rows if row.problem.split()[0] == kind]
        for family in families(of_kind):
            pairs = [(row, peer) for row in of_kind if (peer := of_family(row, family)) is not None]
            worst, peer = min(pairs, key=lambda pair: pair[1].ratio)
            ours = sum((row.seconds or 0.0) * row.count for row, _ in pairs)
            theirs = sum(result.seconds * row.count for row, result in pairs)
            found.append(
                Summary(
                    kind, family, len(pairs), geometric_mean([result.ratio for _, result in pairs]),
                    theirs / ours, peer.ratio,
                    f"{worst.network}:{worst.name}" if worst.name else worst.problem,
                    sum(result.ratio < 1.0 for _, result in pairs),
                )
            )  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class Line:
    """One network in one direction: every layer counted once. `mean` and `worst` are of the ratios against the fastest
    peer, NaN without one; `peak` is the median fraction of the multiply-add peak."""

    network: str
    direction: str
    layers: int
    mean: float
    worst: float
    worst_layer: str
    slower: int
    peak: float


def lines(rows: Sequence[Row]) -> list[Line]:
    """A line for each network and direction, then one for each direction of several networks; without failed rows."""
    done = [row for row in rows if row.seconds is not None]
    networks = list(dict.fromkeys(row.network for row in done))
    found = []
    for network in [*networks, *(["all"] if len(networks) > 1 else [])]:
        for direction in dict.fromkeys(direction_of(row) for row in done):
            group = [r for r in done if network in ("all", r.network) and direction_of(r) == direction]
            if group:
                found.append(_line(network or "-", direction, group))
    return found


def _line(network: str, direction: str, rows: Sequence[Row]) -> Line:
    ratios = [(row.ratio, row.name or row.problem) for row in rows if row.ratio is not None]
    worst, layer = min(ratios, default=(nan, "-"))
    return Line(
        network, direction, len(rows), geometric_mean([ratio for ratio, _ in ratios]), worst, layer,
        sum(ratio < 1.0 for ratio, _ in ratios), median([row.fraction or 0.0 for row in rows]),
    )  # fmt: skip


def direction_of(row: Row) -> str:
    """The direction that a row's problem has in its network: a transposed convolution's forward pass is a data gradient
    by its kind. What is no convolution has its kind as a direction."""
    kind = row.problem.split()[0]
    if not kind.startswith("conv_"):
        return kind
    direction = kind.removeprefix("conv_")
    return transposed_direction(direction) if row.name.startswith("convT_") else direction


def markdown(rows: Sequence[Row]) -> str:
    """The lines as a Markdown table."""
    table = [
        "| network | direction | layers | geometric mean | worst | worst layer | slower | median of peak |",
        "| --- | --- | --: | --: | --: | --- | --: | --: |",
    ]
    for line in lines(rows):
        ratios = ("-", "-") if isnan(line.mean) else (f"{line.mean:.2f}", f"{line.worst:.2f}")
        table.append(
            f"| {line.network} | {line.direction} | {line.layers} | {ratios[0]} | {ratios[1]} | {line.worst_layer} | "
            f"{line.slower} | {line.peak:.0%} |"
        )
    return "\n".join(table) + "\n"


def save_plot(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw the ratios of all layers, sorted, a curve for each direction, as a PNG.

    Raises InvalidArgument if that cannot be: matplotlib is missing, no row has a peer, or the file cannot be written.
    """
    if find_spec("matplotlib") is None:
        raise InvalidArgument("plots need matplotlib, which is not installed: pip install 'jitdnn[plot]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves: dict[str, list[float]] = {}
    for row in rows:
        if row.ratio is not None:
            curves.setdefault(direction_of(row), []).append(row.ratio)
    if not curves:
        raise InvalidArgument(f"{path}: no row has a peer beside it: measure with --peer torch")
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for direction, ratios in curves.items():
        places = [(i + 0.5) / len(ratios) for i in range(len(ratios))]
        label = f"{direction}: geometric mean {geometric_mean(ratios):.2f}, worst {min(ratios):.2f}"
        axes.plot(places, sorted(ratios), ".-", markersize=4, linewidth=0.8, label=label)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(0.0, 1.0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("layers, sorted")
    axes.set_ylabel("the peer's time / ours")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None


class JsonRow(Protocol):
    """What a benchmark measured, of whatever kind."""

    def as_json(self) -> dict[str, Any]: ...


def write_json(rows: Iterable[JsonRow], stream: TextIO) -> None:
    """One JSON object a line."""
    for row in rows:
        stream.write(json.dumps(row.as_json()) + "\n")


def read_json(lines: Iterable[str]) -> list[Row]:
    """The rows that `write_json` wrote. Raises InvalidArgument, with the line, for what is none."""
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            fields["peers"] = {name: PeerResult(**values) for name, values in fields["peers"].items()}
            rows.append(Row(**fields))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidArgument(f"line {number}: not a row of `jitdnn bench --json`: {error}") from None
    return rows


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. Raises InvalidArgument for one that cannot be read or is none of `write_json`."""
    try:
        text = limits.read_bounded(path, limits.SUITE_BYTES, "a file of rows").decode("utf-8")
        return read_json(text.splitlines())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path}: not the rows of `jitdnn bench --json`: {error}") from None
