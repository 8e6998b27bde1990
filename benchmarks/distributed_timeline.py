"""Draws when kernels ran on a GPU that trains with others, from a file of `distributed_scaling.py --timeline FILE`:

    python benchmarks/distributed_timeline.py FILE [FILE ...] --plot docs/plots/distributed_timeline.png

A row of bars for the net's kernels and one for the exchange, of the last iteration in the file. It also prints how long
NCCL's kernels ran, for how long of that a kernel of the net ran too, and the time of which neither was true.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Span = tuple[float, float]


def iteration(file: Path) -> tuple[list[Span], list[Span]]:
    """The net's kernels and the exchange's, (begin, end) in ms from the first kernel of the last iteration."""
    events = sorted(json.loads(file.read_text()), key=lambda event: event[2])
    # an iteration ends with the update, behind its last sum; what weights cost at the beginning is not one's
    begin = max(at + length for _, name, at, length in events if "Broadcast" in name)
    events = [event for event in events if event[2] >= begin and "CatArray" not in event[1]]
    sums = [event for event in events if "AllReduce" in event[1]]
    half = len(sums) // 2
    middle = sums[half - 1][2] + sums[half - 1][3]
    updates = [event for event in events if event[2] >= middle and "nccl" not in event[1]]
    # the host's numbers are copied up where the next one begins
    first = next((event[2] for event in updates if "HtoD" in event[1]), updates[0][2])
    spans: tuple[list[Span], list[Span]] = ([], [])
    for _, name, at, length in events:
        if at >= first:
            spans["nccl" in name].append(((at - first) / 1e3, (at + length - first) / 1e3))
    return spans


def joined(spans: list[Span]) -> list[Span]:
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def length(spans: list[Span]) -> float:
    return sum(end - begin for begin, end in joined(spans))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--names", nargs="+", help="titles")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    found = [iteration(file) for file in options.files]
    names = options.names or [file.stem for file in options.files]
    for name, (net, exchange) in zip(names, found, strict=True):
        whole = max(end for _, end in net + exchange)
        both = length(net) + length(exchange) - length(net + exchange)
        print(
            f"{name}: {whole:.2f} ms, of them the net {length(net):.2f}, the exchange {length(exchange):.2f}, "
            f"beside the net's {both:.2f} ({both / length(exchange):.0%}), neither {whole - length(net + exchange):.2f}"
        )
    if options.plot:
        draw(options.plot, names, found)


def draw(file: Path, names: list[str], found: list[Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(found), 1, figsize=(9, 1.5 * len(found)), squeeze=False)
    for axis, name, (net, exchange) in zip(axes[:, 0], names, found, strict=True):
        for row, (spans, colour) in enumerate(((exchange, "tab:orange"), (net, "tab:blue"))):
            bars = [(begin, end - begin) for begin, end in spans]
            axis.broken_barh(bars, (row - 0.35, 0.7), facecolors=colour)
        axis.set_yticks([0, 1], ["exchange", "net"])
        axis.set_title(name, fontsize=9, loc="left")
        axis.set_xlim(left=0)
    axes[-1, 0].set_xlabel("ms")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
