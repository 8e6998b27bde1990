"""Records become images of a batch: decoded, cropped and transformed, or cut out as the bytes they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.raw_images import RawBatch, not_bytes
from jitdnn.caffe.sources import Source
from jitdnn.caffe.transform import Draw, Transform, Transformer
from jitdnn.errors import JitdnnError


@dataclass
class Batch:
    """Images and labels, and what comes behind them: the next place, and the state of the generator.

    The images are in `images`, transformed, or where that is None in `raw`, as bytes (raw_images.py). `refusal` says
    why they could not be the latter.
    """

    images: Array | None
    labels: Array
    next_place: int
    random_state: dict[str, Any]
    raw: RawBatch | None = None
    refusal: str = ""
    parts: list[Part] = field(default_factory=list)
    waiting: int = 0  # parts that are not made yet
    errors: dict[int, BaseException] = field(default_factory=dict)  # of its parts, by their first image
    decoded: int = 0  # of its images, those that did not lie in memory as they are


@dataclass
class Part:
    """Some records of a batch, for one thread: `first` is the place of the first of them in it."""

    batch: Batch
    first: int
    records: list[Any]
    draws: list[Draw | None]
    is_decoded: bool = False  # whether its images did not lie in memory as they are

    @property
    def rows(self) -> slice:
        """Its place in the batch."""
        return slice(self.first, self.first + len(self.records))


def label_shape(source: Source, transformer: Transform) -> Shape:
    """The shape of a label in a batch: masks are as large as their images, behind the crop."""
    return transformer.shape[1:] if source.has_masks else source.label_shape


def make(source: Source, transformer: Transform, part: Part) -> str | None:
    """Make some images of a batch, as bytes where it has a place for those. Raises what is wrong with a record, naming
    it; says why images cannot stay bytes, None if they can.
    """
    batch = part.batch
    if batch.raw is None or batch.images is not None:
        _make_numbers(source, transformer, part)
        return None
    assert isinstance(transformer, Transformer)
    return _make_bytes(source, transformer, part, batch.raw)


def _make_bytes(source: Source, transformer: Transformer, part: Part, raw: RawBatch) -> str | None:
    """Decode records and cut their images out, as bytes."""
    batch, rows = part.batch, part.rows
    block = source.block(part.records)
    if block is not None and block[0][0].shape == transformer.image:
        images = block[0]
        if images[0].dtype != np.uint8:
            return not_bytes(images[0])
        batch.labels[rows] = block[1]
        raw.fill(rows, images, transformer.places(transformer.image, part.draws), transformer.crop)
        return None
    part.is_decoded = True
    for index, (record, draw) in enumerate(zip(part.records, part.draws, strict=True), start=part.first):
        image, label = source.decode(record)
        try:
            if image.dtype != np.uint8:
                transformer.check(image.shape)
                return not_bytes(image)
            batch.labels[index] = transformer.window(label, draw) if source.has_masks else label
            raw.table[index] = transformer.cut(image, raw.images[index], draw)
        except JitdnnError as error:
            raise type(error)(f"{source.name_of(record)}: {error}") from None
    return None


def _make_numbers(source: Source, transformer: Transform, part: Part) -> None:
    """Decode and transform records."""
    batch = part.batch
    assert batch.images is not None
    block = source.block(part.records)
    if block is not None and isinstance(transformer, Transformer) and block[0][0].shape == transformer.image:
        images, batch.labels[part.rows] = block
        transformer.apply_drawn(images, batch.images[part.rows], part.draws)
        return
    part.is_decoded = True
    for index, (record, draw) in enumerate(zip(part.records, part.draws, strict=True), start=part.first):
        image, label = source.decode(record)
        try:
            if source.has_masks:
                assert isinstance(transformer, Transformer)
                label = transformer.window(label, draw)
            batch.labels[index] = label
            transformer.apply_one(image, batch.images[index], draw)
        except JitdnnError as error:
            raise type(error)(f"{source.name_of(record)}: {error}") from None
