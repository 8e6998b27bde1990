"""Images that stay bytes: records read without their fields, windows that are copied, tables of the transform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from examples import examples
from jitdnn.caffe.database_writers import new_database
from jitdnn.caffe.databases import open_database
from jitdnn.caffe.datum import RawRecords, datum_image, encoded_datum, image_datum, read_datum
from jitdnn.caffe.images import encode_image
from jitdnn.caffe.raw_images import RawForm
from jitdnn.caffe.schema_layers import TransformationParameter
from jitdnn.caffe.sources import DatabaseSource
from jitdnn.caffe.transform import Transformer
from jitdnn.caffe.wire import VARINT, key, varint
from jitdnn.errors import InvalidShape, JitdnnError

Array = np.ndarray[Any, Any]


def record(shape: tuple[int, int, int], label: int, kind: str, rng: np.random.Generator) -> bytes:
    """A record of a database, as it is or with something unusual in it."""
    image = rng.integers(0, 256, shape, np.uint8)
    plain = image_datum(image, label)
    return {
        "plain": plain,
        "floats": image_datum(image.astype(np.float32), label),
        "encoded": encoded_datum(encode_image(image[:1], "png"), label),
        "label in front": key(5, VARINT) + varint(label) + image_datum(image, 3),
        "label twice": plain + key(5, VARINT) + varint(label + 1),
        "pixels twice": plain + image_datum(image, label),
        "cut off": plain[:-1],
        "other shape": plain + key(1, VARINT) + varint(shape[0] + 1),
        "unknown field": plain + key(99, VARINT) + varint(7),
    }[kind]


KINDS = (
    "plain", "floats", "encoded", "label in front", "label twice", "pixels twice", "cut off", "other shape",
    "unknown field",
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(
    kinds=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 300), st.integers(1, 3)), min_size=1, max_size=12
    ),
    seed=st.integers(0, 99),
)
@example([("plain", 1, 2), ("cut off", 1, 2), ("plain", 2, 2), ("plain", 1, 2)], 0)
def test_records_say_the_same_as_their_fields(kinds: list[tuple[str, int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = RawRecords()
    for kind, label, extent in kinds * 2:
        content = record((extent, 2, 3), label, kind, rng)
        for form in (content, memoryview(content)):
            found = known.read(form)
            try:
                datum = read_datum(form, "a record")
                image = datum_image(datum, "a record", None)
            except JitdnnError:
                assert found is None, kind
                continue
            if found is not None:
                np.testing.assert_array_equal(found[0], image)
                assert (found[0].dtype, found[1]) == (image.dtype, datum.label)
            known.learn(form, datum)
            if kind == "plain":
                assert known.read(form) is not None


def test_a_record_that_ends_within_its_pixels_is_read_by_its_fields() -> None:
    rng = np.random.default_rng(0)
    content = record((1, 2, 3), 5, "plain", rng)
    known = RawRecords()
    known.learn(content, read_datum(content, "a record"))
    for length in range(len(content)):
        assert known.read(content[:length]) is None


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_windows_are_copied_as_they_are(data: st.DataObject) -> None:
    """Whatever the order of the axes in the source, that of the form, and the sizes."""
    shape = tuple(data.draw(st.sampled_from([1, 2, 3, 8])) for _ in range(3))
    crop = data.draw(st.sampled_from([0, *range(1, min(shape[1:]) + 1)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    count = data.draw(st.integers(1, 4))
    images = lying(rng.integers(0, 256, (count, *shape), np.uint8), data)
    other = lying(images, data) if data.draw(st.booleans()) else images
    window = (shape[0], crop, crop) if crop else shape
    memory = np.full(4096, 7, np.uint8)
    form = RawForm.like(other[0], window, lambda size: memory[:size])
    batch = form.new(count)
    table = np.zeros((count, 3), np.int32)
    if crop:
        table[:, 0] = rng.integers(0, shape[1] - crop + 1, count)
        table[:, 1] = rng.integers(0, shape[2] - crop + 1, count)
    first = data.draw(st.integers(0, count - 1))
    rows = slice(first, data.draw(st.integers(first, count)))
    given_images = images[rows] if data.draw(st.booleans()) else list(images[rows])
    batch.fill(rows, given_images, table[rows], crop)
    np.testing.assert_array_equal(batch.table[rows], table[rows])
    for place in range(count):
        top, left, _ = table[place]
        wanted = images[place][:, top : top + crop, left : left + crop] if crop else images[place]
        inside = rows.start <= place < rows.stop
        np.testing.assert_array_equal(batch.images[place], wanted if inside else np.full(window, 7))
    assert (memory[batch.memory.size :] == 7).all()
    assert batch.images.nbytes + batch.table.nbytes <= batch.memory.nbytes


def lying(images: Array, data: st.DataObject) -> Array:
    """The same images with their axes in another order in memory, some of them backwards, and with gaps."""
    order = data.draw(st.permutations([1, 2, 3]))
    back = data.draw(st.lists(st.sampled_from([1, 2, 3]), unique=True))
    gaps = data.draw(st.lists(st.sampled_from([1, 2, 3]), unique=True, max_size=1))
    extents = [images.shape[axis] + (2 if axis in gaps else 0) for axis in order]
    memory = np.zeros((len(images), *extents), np.uint8)
    view = memory.transpose(0, *(1 + order.index(axis) for axis in (1, 2, 3)))
    view = view[tuple(slice(0, extent) for extent in images.shape)]
    for axis in back:
        view = np.flip(view, axis)
    view[...] = images
    return view


@settings(max_examples=examples(60), deadline=None)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    crop=st.integers(0, 9),
    is_mirrored=st.booleans(),
    phase=st.sampled_from(["TRAIN", "TEST"]),
    seed=st.integers(0, 99),
)
def test_tables_say_what_the_transform_does(
    size: tuple[int, int], crop: int, is_mirrored: bool, phase: str, seed: int
) -> None:
    shape = (3, *size)
    parameter = TransformationParameter(crop_size=crop, mirror=is_mirrored)
    try:
        transformer = Transformer(parameter, None, phase, shape, np.dtype(np.float32))
    except InvalidShape:
        assert crop > min(size)
        return
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (6, *shape), np.uint8)
    draws = transformer.draw(rng, len(images))
    wanted = np.empty((6, *transformer.shape), np.float32)
    transformer.apply_drawn(list(images), wanted, draws)
    table = transformer.places(shape, draws)
    cut = np.empty(wanted.shape, np.uint8)
    for image, draw, out, row in zip(images, draws, cut, table, strict=True):
        assert transformer.cut(image, out, draw) == tuple(row)
        if row[2]:
            out[...] = out[..., ::-1].copy()
    np.testing.assert_array_equal(cut, wanted)


def test_words_at_the_ends_of_their_range() -> None:
    parameter = TransformationParameter(crop_size=2, mirror=True)
    transformer = Transformer(parameter, None, "TRAIN", (1, 5, 7), np.dtype(np.float32))
    most = (1 << 32) - 1
    draws: list[tuple[int, int, int] | None] = [(0, 0, 0), (most, most, most), ((1 << 31) - 1, most, 0)]
    assert transformer.places((1, 5, 7), draws).tolist() == [[0, 0, 0], [3, 5, 1], [3, 0, 0]]


def test_records_are_lent_only_to_who_asks(tmp_path: Path) -> None:
    with new_database(tmp_path / "db", "lmdb") as writer:
        for number in range(3):
            writer.put(f"{number}".encode(), image_datum(np.full((1, 2, 2), number, np.uint8), number))
    kept = list(open_database(tmp_path / "db").records())
    assert [type(value) for _, value in kept] == [bytes] * 3
    source = DatabaseSource(tmp_path / "db", None)
    walk = source.records(0)
    records = [next(walk).record for _ in range(5)]
    assert [type(value) for _, value in records] == [memoryview] * 5
    for number, one in enumerate(records):
        image, label = source.decode(one)
        assert label == number % 3
        assert (image == number % 3).all()
    images, labels = source.block(records)  # type: ignore[misc]
    assert labels == [0, 1, 2, 0, 1]
    assert [image[0, 0, 0] for image in images] == [0, 1, 2, 0, 1]


def test_a_block_of_records_has_one_shape(tmp_path: Path) -> None:
    with new_database(tmp_path / "db", "lmdb") as writer:
        for number in range(4):
            image = np.zeros((1, 2, 2 + number // 2), np.uint8)
            writer.put(f"{number}".encode(), image_datum(image, number))
    source = DatabaseSource(tmp_path / "db", None)
    walk = source.records(0)
    records = [next(walk).record for _ in range(4)]
    assert source.block(records) is None
    for one in records:
        source.decode(one)
    assert source.block(records) is None
    assert source.block(records[2:]) is not None


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 5), (3, 1, 1), (1, 1, 1)])
def test_forms_are_packed(shape: tuple[int, int, int]) -> None:
    image = np.zeros(shape, np.uint8)
    for like in (image, np.zeros(shape[1:] + shape[:1], np.uint8).transpose(2, 0, 1)[::-1]):
        form = RawForm.like(like, shape, lambda size: np.zeros(size, np.uint8))
        batch = form.new(2)
        batch.images[...] = 1
        assert (batch.memory[: batch.images.size] == 1).all()
        assert form.new(0).images.shape == (0, *shape)
