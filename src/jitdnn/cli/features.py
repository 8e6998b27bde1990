"""`jitdnn extract-features`: blobs of a trained net over its data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jitdnn.caffe import load_net
from jitdnn.caffe.features import extract, extract_to_databases
from jitdnn.cli.console import progress, say
from jitdnn.cli.train import needs_data, on_gpu, using_threads


def run_extract(
    net_file: str,
    weights: Sequence[str],
    blobs: Sequence[str],
    out: str,
    iterations: int,
    backend: str | None,
    gpu: Sequence[str],
    threads: int | None,
) -> None:
    """Write the blobs of so many batches to a file; with a `backend` to databases, a folder for each between commas."""
    with using_threads(threads):
        net = load_net(net_file, "TEST", seed=0, **on_gpu(gpu))
        needs_data(net, net_file, "features are extracted from")
        for file in weights:
            net.load_weights(file)
        with progress(iterations, "extracting") as advance:
            if backend is None:
                shapes = extract(net, blobs, Path(out), iterations, lambda done: advance(done, ""))
                found = {name: " x ".join(map(str, shape)) for name, shape in shapes.items()}
            else:
                folders = [Path(part.strip()) for part in out.split(",")]
                counts = extract_to_databases(
                    net, blobs, folders, iterations, backend, lambda done: advance(done, "")
                )
                found = {name: f"{count} records" for name, count in counts.items()}
    for name, what in found.items():
        say(f"{name}: {what}")
    say(f"wrote {out}")
