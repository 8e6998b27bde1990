"""Images a second of ImageData and of an LMDB database, beside plain pillow: JPEGs of 256 x 256, cropped to 227.

    python benchmarks/caffe_data.py [--images 1000] [--batch 64] [--repeat 5] [--workers 1 2 4]

Makes its images in a temporary folder. Each row is the median of the repetitions, with the least and the most, and the
milliseconds of processor time that an image takes. Plain pillow decodes to an array in RGB, on one thread, and neither
crops nor converts. With `processes` each thread has a process that decodes for it (the setting `data_processes`).
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

import jitdnn as jd
from jitdnn.caffe import load_net
from jitdnn.caffe.datasets import convert_imageset
from jitdnn.settings import available_cores

TRANSFORM = "crop_size: 227 mirror: true mean_value: 104 mean_value: 117 mean_value: 123"


def make_images(folder: Path, count: int) -> None:
    """Smooth images with some noise, about 23 KB each as JPEG of quality 90, their list, and a database."""
    random = np.random.default_rng(0)
    lines = []
    for index in range(count):
        small = Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8))
        pixels = np.asarray(small.resize((256, 256), Image.Resampling.BICUBIC)).astype(int)
        pixels += random.integers(-12, 13, pixels.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.jpg", quality=90)
        lines.append(f"{index}.jpg {index % 10}\n")
    (folder / "list.txt").write_text("".join(lines))
    convert_imageset(folder / "list.txt", f"{folder}/", folder / "db", is_encoded=True)


def measure(name: str, run: Callable[[], int], repeat: int) -> None:
    """Print images a second of `run`, which returns how many it did."""
    run()
    speeds, costs = [], []
    for _ in range(repeat):
        start, processor = time.perf_counter(), time.process_time()
        count = run()
        speeds.append(count / (time.perf_counter() - start))
        costs.append((time.process_time() - processor) / count * 1e3)
    middle = statistics.median(speeds)
    print(
        f"{name:28} {middle:8.0f} images/s ({min(speeds):.0f} .. {max(speeds):.0f}) "
        f"{statistics.median(costs):.3f} ms of processor"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=sorted({1, 2, available_cores()}))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, chosen.images)
        contents = [(folder / f"{index}.jpg").read_bytes() for index in range(chosen.images)]

        def plain() -> int:
            for content in contents:
                np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
            return len(contents)

        print(f"{available_cores()} cores, load {os.getloadavg()[0]:.1f}")
        measure("pillow, one thread", plain, chosen.repeat)
        layers = {
            "ImageData": f'image_data_param {{ source: "{folder}/list.txt" root_folder: "{folder}/" ',
            "Data": f'data_param {{ source: "{folder}/db" backend: LMDB ',
        }
        for workers in chosen.workers:
            for kind, source in layers.items():
                for processes in (0, workers):
                    with (
                        mock.patch("jitdnn.caffe.pipeline.available_cores", return_value=workers),
                        jd.settings(data_processes=processes),
                    ):
                        net = load_net(
                            f'layer {{ name: "d" type: "{kind}" top: "data" top: "label" {source} '
                            f"batch_size: {chosen.batch} }} transform_param {{ {TRANSFORM} }} }}",
                            "TRAIN",
                            seed=1,
                        )

                        def batches(net: object = net) -> int:
                            count = -(-chosen.images // chosen.batch)
                            for _ in range(count):
                                net.forward()  # type: ignore[attr-defined]
                            return count * chosen.batch

                        by = f"{workers} processes" if processes else f"{workers} threads"
                        measure(f"{kind}, {by} decode", batches, chosen.repeat)
                        del net, batches


if __name__ == "__main__":
    main()
