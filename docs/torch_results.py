"""Models of PyTorch by each way to run them, as measured: pictures and a table of docs/pytorch_graphs.md.

    python benchmarks/torch_models.py --threads 2 --batch 1 8 --json docs/torch_results.jsonl
    python benchmarks/torch_training.py --threads 2 --json docs/torch_results.jsonl
    python docs/torch_results.py            # the pictures in docs/plots; needs matplotlib (jitdnn[plot])
    python docs/generate.py                 # the table

A row is a line of JSON as `benchmarks/torch_peers.py` writes it: what was measured ("what": inference or training), the
model, images, threads and side, the machine, and milliseconds by peer.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROWS = HERE / "torch_results.jsonl"
#: what is measured -> peers of PyTorch's own, and ours, in the order of columns
PEERS = {
    "inference": (
        ("eager", "eager_last", "compile", "freezing"),
        ("fused", "backend", "compile_ours", "freezing_ours"),
    ),
    "training": (("eager", "eager_last", "compile"), ("converted", "converted_last", "compile_ours")),
}  # fmt: skip
NAMES = {
    "eager": "eager",
    "eager_last": "eager, channels last",
    "compile": "`torch.compile`",
    "freezing": "`torch.compile`, frozen",
    "fused": "`jt.fuse`",
    "backend": '`backend="jitdnn"`',
    "compile_ours": "compiled, our pass",
    "freezing_ours": "frozen, our pass",
    "converted": "`jt.convert`",
    "converted_last": "`jt.convert`, channels last",
}
Row = dict[str, Any]


def rows(path: Path = ROWS) -> list[Row]:
    """The kept rows, by what was measured, threads, images and model; none where nothing is kept.

    Raises ValueError for a line that is no row.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(line)
        missing = [key for key in ("what", "model", "batch", "threads", "machine", "torch") if key not in row]
        if missing or row["what"] not in PEERS:
            raise ValueError(f"{path}:{number}: a row needs what (one of {', '.join(PEERS)}), and {missing}")
        found.append(row)
    return sorted(
        found, key=lambda row: (list(PEERS).index(row["what"]), row["threads"], row["batch"], row["model"])
    )


def best(row: Row, peers: Iterable[str]) -> float | None:
    """The least of the milliseconds of peers; None where none of them ran."""
    return min((row[peer] for peer in peers if row.get(peer) is not None), default=None)


def groups(found: Sequence[Row]) -> dict[tuple[str, int, int], list[Row]]:
    """Rows of one picture: what was measured, threads and images."""
    made: dict[tuple[str, int, int], list[Row]] = {}
    for row in found:
        made.setdefault((row["what"], row["threads"], row["batch"]), []).append(row)
    return made


def picture(what: str) -> Path:
    """Where the picture of what was measured is."""
    return HERE / "plots" / f"torch_{what}.png"


def table(path: Path = ROWS) -> str:
    """Pictures and tables in Markdown, with geometric means of torch's times over the best of ours."""
    parts = []
    for (what, threads, batch), members in groups(rows(path)).items():
        stock, ours = PEERS[what]
        shown = [peer for peer in (*stock, *ours) if any(row.get(peer) is not None for row in members)]
        lines = [
            textwrap.fill(f"{_title(what, threads, batch)}, milliseconds ({_where(members)}):", 120) + "\n",
            f"| model | {' | '.join(NAMES[peer] for peer in shown)} | PyTorch's best / ours |",
            f"| --- |{' --: |' * (len(shown) + 1)}",
        ]
        for row in members:
            mine, theirs = best(row, ours), best(row, stock)
            ratio = f"{theirs / mine:.2f}" if mine is not None and theirs is not None else "-"
            lines.append(f"| {row['model']} | {' | '.join(_ms(row.get(peer)) for peer in shown)} | {ratio} |")
        means = [_mean(members, (peer,), ours) for peer in shown]
        overall = _mean(members, stock, ours)
        lines.append(
            f"| geometric mean of the time over the best of ours | {' | '.join(means)} | {overall} |"
        )
        parts.append("\n".join(lines) + "\n")
    if not parts:
        return "Nothing is kept at present: `docs/torch_results.py` says how it is measured.\n"
    drawn = dict.fromkeys(what for what, _, _ in groups(rows(path)))
    links = [f"![{what}: speed by model](plots/{picture(what).name})\n" for what in drawn]
    return "\n".join([*links, *parts])


def _title(what: str, threads: int, batch: int) -> str:
    of = "Inference" if what == "inference" else "A training step"
    return f"{of}, {batch} image{'s' * (batch > 1)}, {threads} thread{'s' * (threads > 1)}"


def _where(members: Sequence[Row]) -> str:
    """Machine, version, sizes, and how busy the machine was, as the rows say."""
    words = {f"{row['machine']}, PyTorch {row['torch']}" for row in members}
    sides = sorted({row["side"] for row in members if "side" in row})
    loads = [row["load"] for row in members if "load" in row]
    clock = " of the processor" if any(row.get("clock") == "processor" for row in members) else ""
    said = "; ".join(sorted(words))
    if sides:
        said += f", {' and '.join(f'{side} x {side}' for side in sides)}"
    if loads:
        said += f", load {min(loads):.1f} to {max(loads):.1f}"
    return f"{said}{f', time{clock}' if clock else ''}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _mean(members: Sequence[Row], peers: Sequence[str], ours: Sequence[str]) -> str:
    pairs = [(best(row, peers), best(row, ours)) for row in members]
    ratios = [theirs / mine for theirs, mine in pairs if theirs is not None and mine is not None]
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"


def draw(path: Path = ROWS, into: Callable[[str], Path] = picture) -> list[Path]:
    """Draw what is kept: of each model the speed of its ways as a multiple of eager's best; returns the files."""
    from matplotlib.figure import Figure

    made = []
    by_what: dict[str, list[tuple[tuple[str, int, int], list[Row]]]] = {}
    for key, members in groups(rows(path)).items():
        by_what.setdefault(key[0], []).append((key, members))
    for what, pictures in by_what.items():
        stock, ours = PEERS[what]
        figure = Figure(figsize=(9, 3.2 * len(pictures)), layout="constrained")
        for place, (key, members) in enumerate(pictures):
            axes = figure.add_subplot(len(pictures), 1, place + 1)
            bars = [peer for peer in (*stock[2:], *ours) if any(row.get(peer) is not None for row in members)]
            width = 0.8 / max(1, len(bars))
            for number, peer in enumerate(bars):
                heights = [_speed(row, peer, stock[:2]) for row in members]
                places = [x + (number - (len(bars) - 1) / 2) * width for x in range(len(members))]
                color = f"C{ours.index(peer)}" if peer in ours else ("0.75", "0.55")[stock[2:].index(peer)]
                axes.bar(places, heights, width, label=NAMES[peer].replace("`", ""), color=color)
            axes.axhline(1.0, color="black", linewidth=0.8)
            axes.set_xticks(range(len(members)), [row["model"] for row in members])
            axes.set_ylabel("speed of the best eager way")
            axes.set_title(_title(*key), fontsize=10)
            if place == 0:
                axes.legend(fontsize=8, ncols=min(3, max(1, len(bars))))
        file = into(what)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=100, metadata={"Software": None})
        made.append(file)
    return made


def _speed(row: Row, peer: str, eager: Sequence[str]) -> float:
    """How many times as fast as eager a peer is; nothing where one of them did not run."""
    base, own = best(row, eager), row.get(peer)
    return math.nan if base is None or own is None else base / own


if __name__ == "__main__":
    for drawn in draw():
        sys.stdout.write(f"{drawn}: {drawn.stat().st_size // 1024} kB\n")
