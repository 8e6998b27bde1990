"""Options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

Names = Annotated[
    list[str] | None,
    typer.Argument(help="Problem strings, suites or networks (bench --list), .txt, .csv or .prototxt files."),
]
Host = Annotated[
    str, typer.Option(help="Address to listen at; with another than loopback, others can reach it.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any free one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Limit = Annotated[
    str | None,
    typer.Option(
        "--workspace-limit", metavar="SIZE", help="Most workspace: 64MiB, 0 for none, `none` for any."
    ),
]
Find = Annotated[bool, typer.Option("--find", help="Measure the algorithms instead of estimating.")]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Most workspace of all layers together: 512MiB."),
]
Batch = Annotated[int | None, typer.Option(min=1, help="Images in a batch, in place of the suite's.")]


class Vendor(StrEnum):
    """Whose algorithms are looked at on NVIDIA's GPUs."""

    off = "off"
    also = "also"
    only = "only"


class Division(StrEnum):
    """Sizes of the parts that a convolution is divided into."""

    undivided = "undivided"
    power_of_two = "power_of_two"
    all = "all"


UseVendor = Annotated[
    Vendor | None, typer.Option(help="NVIDIA's cuDNN: not at all, beside our algorithms, or alone.")
]
Divide = Annotated[
    Division | None,
    typer.Option(help="Sizes of parts, where the fastest algorithm needs too much workspace."),
]


class Direction(StrEnum):
    """Directions of a convolution on the command line; `given` is the one the problem names."""

    given = "given"
    fwd = "fwd"
    bwd_data = "bwd_data"
    bwd_filter = "bwd_filter"
    all = "all"


NetDirection = Annotated[
    Direction | None,
    typer.Option(help="Direction of the convolutions. (default: all for nets, as given for problem strings)"),
]
