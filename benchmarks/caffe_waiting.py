"""How long a net in training waits for its data: CaffeNet, GoogLeNet or ResNet-50 on images from a database.

    python benchmarks/caffe_waiting.py [--net caffenet] [--batch 256] [--device cuda] [--math tf32] [--iterations 60]
        [--images 2048] [--form raw jpg] [--workers 4 16] [--processes 0 16]

Makes images of 256 x 256 and writes them into an LMDB database, as bytes and as JPEG, in a temporary folder. Each row
trains by a solver, with crops of 227 or 224, mirrored, less a mean; the first displays are not counted. A row has the
milliseconds of an iteration, those with the same net on constant images, which waits for nothing, and the share of the
time that the net stood still for data, as the solver's log shows it. Images of files are also decoded by so many
`--processes`.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

from caffe_data import make_images

import jitdnn as jd
from caffe_nets import NETS
from jitdnn.caffe import load_solver
from jitdnn.caffe.datasets import convert_imageset
from jitdnn.caffe.events import Event, WaitedForData
from jitdnn.settings import available_cores

SOLVER = (
    'base_lr: 0.0001 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 max_iter: 1000000 random_seed: 1 '
    "snapshot_after_train: false display: 10 "
)


def on_database(text: str, database: Path, batch: int) -> str:
    """The net's text with a Data layer in the place of its constant images."""
    side = re.search(r"dim: 3 dim: (\d+)", text)
    assert side is not None
    first, rest = text.split("\n", 1)
    assert "DummyData" in first
    return (
        f'layer {{ name: "data" type: "Data" top: "data" top: "label" data_param {{ source: "{database}" '
        f"batch_size: {batch} backend: LMDB }} transform_param {{ crop_size: {side[1]} mirror: true "
        f"mean_value: 104 mean_value: 117 mean_value: 123 }} }}\n{rest}"
    )


def measure(text: str, options: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds of an iteration, and the share of the time that was waited for data."""
    told: list[Event] = []
    with jd.settings(math=options.math):
        solver = load_solver(f"net_param {{ {text} }} {SOLVER}", device=options.device, listener=told.append)
        solver.step(20)
        float(solver._losses[-1])
        told.clear()
        start = perf_counter()
        solver.step(options.iterations)
        float(solver._losses[-1])
        took = (perf_counter() - start) / options.iterations
    waits: list[Any] = [event for event in told if isinstance(event, WaitedForData)]
    elapsed = sum(event.elapsed for event in waits)
    return 1e3 * took, sum(event.seconds for event in waits) / elapsed if elapsed else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", choices=NETS, default="caffenet")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--math", default="tf32")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--form", nargs="+", choices=("raw", "jpg"), default=["raw", "jpg"])
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({4, available_cores()}))
    parser.add_argument("--processes", type=int, nargs="+", default=sorted({0, available_cores()}))
    options = parser.parse_args()
    text = NETS[options.net](options.batch)
    constant, _ = measure(text, options)
    print(
        f"{options.net} N={options.batch} {options.device} {options.math}, constant images: {constant:.2f} ms"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, options.images)
        databases = {"jpg": folder / "db", "raw": folder / "raw"}
        convert_imageset(folder / "list.txt", f"{folder}/", databases["raw"])
        for form in options.form:
            for workers in options.workers:
                for processes in options.processes if form == "jpg" else [0]:
                    with (
                        mock.patch("jitdnn.caffe.pipeline.available_cores", return_value=workers),
                        jd.settings(data_processes=processes),
                    ):
                        took, share = measure(on_database(text, databases[form], options.batch), options)
                    by = f"{processes} processes" if processes else f"{workers} threads"
                    print(
                        f"{form}, {by} decode: {took:.2f} ms ({took / constant:.2f} of constant images), "
                        f"{1e3 * options.batch / took:.0f} images/s, waited {share:.1%}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
