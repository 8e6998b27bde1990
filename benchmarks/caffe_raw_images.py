"""What an image costs the host: transformed there, or sent to a GPU as bytes. One thread, its processor time.

    python benchmarks/caffe_raw_images.py [--images 512] [--batch 64] [--turns 5]

Images of 256 x 256 from an LMDB database as bytes and as JPEG, cropped to 227 and mirrored, less a mean for each
channel; and memory-mapped ones of 227 x 227, mirrored. Both ways in turns: reading records, decoding, what the pipeline
makes of them, and for images that are transformed on the host the copy of the batch into the memory from which it goes
up. Needs no GPU: ordinary memory takes the place of page-locked memory. Prints the median of the turns, microseconds of
an image, images a second of one thread, and the bytes that go up.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import islice
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
from caffe_data import make_images

from jitdnn.caffe.datasets import convert_imageset
from jitdnn.caffe.pipeline import Batch, _Part, make_part, make_raw_part
from jitdnn.caffe.raw_images import RawForm
from jitdnn.caffe.schema_layers import TransformationParameter
from jitdnn.caffe.sources import DatabaseSource, MappedSource, Source
from jitdnn.caffe.transform import Transformer

MEAN = [104.0, 117.0, 123.0]
PART = 8  # records that a thread of the pipeline takes at a time


class Way:
    """Batches of one source, made one way."""

    def __init__(self, source: Source, crop: int, batch: int, is_raw: bool) -> None:
        image = source.first_image()
        parameter = TransformationParameter(crop_size=crop, mirror=True, mean_value=MEAN)
        self.source, self.batch, self.is_raw = source, batch, is_raw
        self.transformer = Transformer(parameter, None, "TRAIN", image.shape, np.dtype(np.float32))
        self.random = np.random.default_rng(0)
        shape = (batch, *self.transformer.shape)
        raw = RawForm.like(image, shape[1:], lambda size: np.zeros(size, np.uint8)).new(batch)
        images = None if is_raw else np.zeros(shape, np.float32)
        self.made = Batch(images, np.zeros(batch, np.float32), 0, {}, raw)
        self.sent = np.zeros(shape, np.float32)  # page-locked, beside a GPU
        self.bytes = raw.memory.nbytes if is_raw else self.sent.nbytes

    def seconds(self, images: int) -> float:
        """Of the processor, for so many images."""
        records = self.source.records(0)
        start = thread_time()
        for _ in range(images // self.batch):
            found = [record for record, _ in islice(records, self.batch)]
            draws = self.transformer.draw(self.random, self.batch)
            for first in range(0, self.batch, PART):
                last = first + PART
                part = _Part(self.made, first, found[first:last], draws[first:last])
                if self.is_raw:
                    assert self.made.raw is not None
                    refusal = make_raw_part(self.source, self.transformer, part, self.made.raw)
                    assert refusal is None
                else:
                    make_part(self.source, self.transformer, part)
            if self.made.images is not None:
                np.copyto(self.sent, self.made.images)
        return thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, options.images)
        convert_imageset(folder / "list.txt", f"{folder}/", folder / "raw")
        images = np.random.default_rng(0).integers(0, 256, (options.images, 3, 227, 227), np.uint8)
        np.save(folder / "data.npy", images)
        np.save(folder / "label.npy", np.arange(options.images) % 10)
        del images
        sources: dict[str, tuple[Source, int]] = {
            "LMDB, bytes": (DatabaseSource(folder / "raw", None), 227),
            "LMDB, JPEG": (DatabaseSource(folder / "db", None), 227),
            "mapped": (MappedSource(folder, ""), 0),
        }
        for what, (source, crop) in sources.items():
            ways = [Way(source, crop, options.batch, is_raw) for is_raw in (False, True)]
            taken: list[list[float]] = [[], []]
            for way in ways:
                way.seconds(options.images)
            for _ in range(options.turns):
                for way, times in zip(ways, taken, strict=True):
                    times.append(
                        way.seconds(options.images) / (options.images // options.batch * options.batch)
                    )
            medians: list[Any] = [statistics.median(times) for times in taken]
            for label, way, middle in zip(("on the host", "as bytes"), ways, medians, strict=True):
                print(
                    f"{what:12} {label:12} {1e6 * middle:7.1f} us an image, {1 / middle:7.0f} images/s, "
                    f"{way.bytes // options.batch:,} bytes of each go up"
                )
            ratios = sorted(one / two for one, two in zip(*taken, strict=True))
            print(
                f"{what:12} ratio {medians[0] / medians[1]:.2f} ({ratios[0]:.2f} .. {ratios[-1]:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
