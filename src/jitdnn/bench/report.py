"""Rows as lines for people and for programs, and what a whole run comes to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from jitdnn.bench.driver import PeerResult, Row
from jitdnn.bench.timing import geometric_mean


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


def write_json(rows: Iterable[Row], stream: TextIO) -> None:
    """One JSON object a line."""
    for row in rows:
        stream.write(json.dumps(row.as_json()) + "\n")


def read_json(lines: Iterable[str]) -> list[Row]:
    """The rows that `write_json` wrote."""
    rows = []
    for line in filter(str.strip, lines):
        fields = json.loads(line)
        fields["peers"] = {name: PeerResult(**values) for name, values in fields["peers"].items()}
        rows.append(Row(**fields))
    return rows
