"""`jitdnn extract-features`: blobs of a trained net over its data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jitdnn.caffe import load_net
from jitdnn.caffe.features import extract
from jitdnn.cli.console import progress, say
from jitdnn.cli.train import needs_data, using_threads


def run_extract(
    net_file: str,
    weights: Sequence[str],
    blobs: Sequence[str],
    out: Path,
    iterations: int,
    threads: int | None,
) -> None:
    """Write the blobs of so many batches to a file."""
    with using_threads(threads):
        net = load_net(net_file, "TEST", seed=0)
        needs_data(net, net_file, "features are extracted from")
        for file in weights:
            net.load_weights(file)
        with progress(iterations, "extracting") as advance:
            shapes = extract(net, blobs, out, iterations, lambda done: advance(done, ""))
    for name, shape in shapes.items():
        say(f"{name}: {' x '.join(map(str, shape))}")
    say(f"wrote {out}")
