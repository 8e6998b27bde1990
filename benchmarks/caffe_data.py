"""Images a second of ImageData and of an LMDB database, beside plain pillow: JPEGs of 256 x 256, cropped to 227.

    python benchmarks/caffe_data.py [--images 1000] [--batch 64] [--repeat 5] [--workers 1 2 4]

Makes its images in a temporary folder. Each row is the median of the repetitions, with the least and the most, and the
milliseconds of processor time that an image takes. Plain pillow decodes to an array in RGB, on one thread, and neither
crops nor converts. `processes` are what ImageData would do with as many processes in the place of its threads: they
read, decode, crop and convert by the same functions, into memory that they share with this one, and the batch is copied
out.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from jitdnn.caffe import load_net
from jitdnn.caffe.datasets import convert_imageset
from jitdnn.caffe.images import read_image
from jitdnn.caffe.schema_layers import TransformationParameter
from jitdnn.caffe.transform import Transformer
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


class Processes:
    """Makes batches of a folder's images by processes: each a part of a batch, `depth` batches ahead."""

    def __init__(self, folder: Path, images: int, batch: int, workers: int, depth: int = 4) -> None:
        self.images, self.batch, self.workers, self.depth = images, batch, workers, depth
        self.size = batch * 3 * 227 * 227
        self.memory = shared_memory.SharedMemory(create=True, size=4 * self.size * depth)
        self.slots = np.ndarray((depth, batch, 3, 227, 227), np.float32, buffer=self.memory.buf)
        context = multiprocessing.get_context("spawn")
        self.orders, self.done = context.SimpleQueue(), context.SimpleQueue()
        self.processes = [
            context.Process(
                target=_serve, args=(str(folder), self.memory.name, batch, depth, self.orders, self.done)
            )
            for _ in range(workers)
        ]
        for process in self.processes:
            process.start()
        self.next, self.out = 0, np.empty((batch, 3, 227, 227), np.float32)
        self.waiting = [0] * depth
        for slot in range(depth):
            self._order(slot)

    def _order(self, slot: int) -> None:
        """Have a batch made."""
        step = max(1, self.batch // (2 * self.workers))
        for first in range(0, self.batch, step):
            numbers = [(self.next + i) % self.images for i in range(first, min(first + step, self.batch))]
            self.orders.put((slot, first, numbers))
            self.waiting[slot] += 1
        self.next += self.batch

    def run(self, batches: int) -> int:
        """Take so many batches."""
        for number in range(batches):
            slot = number % self.depth
            while self.waiting[slot]:
                self.waiting[self.done.get()] -= 1
            np.copyto(self.out, self.slots[slot])
            self._order(slot)
        return batches * self.batch

    def close(self) -> None:
        """End the processes."""
        for _ in self.processes:
            self.orders.put(None)
        for process in self.processes:
            process.join()
        del self.slots
        self.memory.close()
        self.memory.unlink()


def _serve(folder: str, name: str, batch: int, depth: int, orders: Any, done: Any) -> None:
    """Make parts of batches, in a process of its own."""
    memory = shared_memory.SharedMemory(name=name)
    slots = np.ndarray((depth, batch, 3, 227, 227), np.float32, buffer=memory.buf)
    parameter = TransformationParameter(crop_size=227, mirror=True, mean_value=[104.0, 117.0, 123.0])
    transformer = Transformer(parameter, None, "TRAIN", (3, 256, 256), np.dtype(np.float32))
    random = np.random.default_rng(os.getpid())
    while (order := orders.get()) is not None:
        slot, first, numbers = order
        for index, (number, draw) in enumerate(
            zip(numbers, transformer.draw(random, len(numbers)), strict=True)
        ):
            image = read_image(Path(folder) / f"{number}.jpg", "RGB", None)
            transformer.apply_one(image, slots[slot, first + index], draw)
        done.put(slot)
    del slots
    memory.close()


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
                with mock.patch("jitdnn.caffe.pipeline.available_cores", return_value=workers):
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

                    measure(f"{kind}, {workers} threads decode", batches, chosen.repeat)
                    del net, batches
            made = Processes(folder, chosen.images, chosen.batch, workers)
            # a multiple of the slots, so that each run finds them in turn
            count = -(-chosen.images // (chosen.batch * made.depth)) * made.depth
            measure(f"{workers} processes", lambda made=made, count=count: made.run(count), chosen.repeat)
            made.close()


if __name__ == "__main__":
    main()
