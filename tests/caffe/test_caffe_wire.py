"""The binary format of protocol buffers, against Google's protobuf."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caffe_protobuf
from caffe_messages import messages
from jitdnn import limits
from jitdnn.caffe import parse, schema, schema_layers
from jitdnn.caffe.blob_proto import blob_parts, read_blob
from jitdnn.caffe.message import Message
from jitdnn.caffe.schema import NetParameter, SolverParameter
from jitdnn.caffe.wire import Reader, decode, encode, key, prefixed, varint
from jitdnn.errors import InvalidArgument, JitdnnError
from paths import SHARED

FILES = sorted((SHARED / "prototxt").rglob("*.prototxt"))
# fields of forks that have no number of their own
TEXT_ONLY = {"interp_param"}


def same(ours: Any, theirs: Any) -> None:
    """Whether Google's message has what ours has, to single precision."""
    for field, value in ours.present():
        if field.name not in ours.numbers:
            continue
        found = getattr(theirs, field.name)
        for mine, other in zip(
            value if field.is_repeated else [value], found if field.is_repeated else [found], strict=True
        ):
            if isinstance(mine, Message):
                same(mine, other)
            elif field.kind == "enum":
                assert field.values[mine] == other
            elif field.kind == "real":
                np.testing.assert_array_equal(np.float32(mine), np.float32(other))
            else:
                assert mine == other, field.name
    known = {field.name for field, _ in ours.present()}
    assert {descriptor.name for descriptor, _ in theirs.ListFields()} <= known


def numbered(message: Message) -> Message:
    """Without what a binary file cannot hold, and with single precision."""
    for field, value in list(message.present()):
        if field.name not in message.numbers:
            message.clear(field.name)
        elif field.message is not None:
            for entry in value if field.is_repeated else [value]:
                numbered(entry)
        elif field.kind == "real":
            single = [float(np.float32(entry)) for entry in (value if field.is_repeated else [value])]
            setattr(message, field.name, single if field.is_repeated else single[0])
    return message


@settings(deadline=None, max_examples=60)
@given(st.one_of(messages(NetParameter), messages(SolverParameter)))
def test_messages_are_those_of_protobuf_both_ways(message: Message) -> None:
    content = encode(message)
    theirs = caffe_protobuf.classes()[type(message).__name__].FromString(content)
    same(message, theirs)
    back = decode(memoryview(theirs.SerializeToString()), type(message), Reader("theirs"))
    assert back == numbered(message)
    assert content == theirs.SerializeToString()


@pytest.mark.skipif(not FILES, reason="no folder ../shared/prototxt beside this checkout")
def test_real_files() -> None:
    for path in FILES:
        kind: type[Message] = SolverParameter if "solver" in path.name else NetParameter
        message = parse(path.read_text(), kind)  # type: ignore[type-var]
        content = encode(message)
        same(message, caffe_protobuf.classes()[kind.__name__].FromString(content))
        assert decode(memoryview(content), kind, Reader("ours")) == numbered(message)


def test_every_field_of_caffe_has_a_number_of_its_own() -> None:
    for module in (schema, schema_layers):
        for name, kind in vars(module).items():
            numbers = getattr(kind, "numbers", None)
            if not numbers:
                continue
            assert len(set(numbers.values())) == len(numbers), name
            missing = set(kind.fields) - set(numbers)
            if name == "V1LayerParameter":  # younger layers have no place in it
                missing -= set(schema.LayerFields.fields)
            missing.discard("ceil_mode")  # forks give it the number of round_mode
            missing -= {
                "ema_decay",
                "warmup_iter",
                "warmup_start_lr",
            }  # no field of Caffe's: text files alone have them
            assert name in ("LayerFields", "LayerParameter") or not missing, (name, missing)


def blob(content: bytes) -> Any:
    return read_blob(memoryview(content), Reader("a file"), "a blob")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 1, 5), (1, 1, 1, 1, 1, 2)])
def test_blobs_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.asarray(np.random.default_rng(1).standard_normal(shape).astype(dtype))
    content = b"".join(blob_parts(values, 2 * values))
    theirs = caffe_protobuf.classes()["BlobProto"].FromString(content)
    assert tuple(theirs.shape.dim) == shape
    name = "data" if dtype == "f4" else "double_data"
    np.testing.assert_array_equal(np.array(getattr(theirs, name), dtype).reshape(shape), values)
    diff = "diff" if dtype == "f4" else "double_diff"
    np.testing.assert_array_equal(np.array(getattr(theirs, diff), dtype).reshape(shape), 2 * values)
    back = blob(theirs.SerializeToString())
    assert back.data.dtype == values.dtype or not values.size  # protobuf does not write an empty list
    assert not back.is_legacy
    np.testing.assert_array_equal(back.data, values)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 63, 500])
def test_lists_that_are_not_packed(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count).astype("f4")
    unpacked = b"".join(key(5, 5) + value.tobytes() for value in values)
    doubles = b"".join(key(8, 1) + value.tobytes() for value in values.astype("f8"))
    shape = prefixed(7, prefixed(1, varint(count)))
    np.testing.assert_array_equal(blob(shape + unpacked).data, values)
    np.testing.assert_array_equal(blob(doubles + shape).data, values.astype("f8"))
    half = count // 2  # in two packed pieces, with something unknown between them
    pieces = prefixed(5, values[:half].tobytes()) + prefixed(77, b"?") + prefixed(5, values[half:].tobytes())
    np.testing.assert_array_equal(blob(pieces + shape).data, values)


def test_the_shape_of_old_files() -> None:
    theirs = caffe_protobuf.classes()["BlobProto"](num=1, channels=1, height=2, width=3, data=range(6))
    found = blob(theirs.SerializeToString())
    assert found.is_legacy
    assert found.data.shape == (1, 1, 2, 3)
    for shape, fits in (
        ((2, 3), True),
        ((1, 2, 3), True),
        ((3, 2), False),
        ((6,), False),
        ((1, 1, 1, 2, 3), False),
    ):
        assert found.fits(shape) is fits


def test_what_is_unknown_is_skipped() -> None:
    group = (
        key(9, 3) + key(1, 0) + varint(5) + key(2, 2) + varint(2) + b"xy" + key(3, 3) + key(3, 4) + key(9, 4)
    )
    extra = group + key(99, 0) + varint(2**64 - 1) + key(98, 5) + b"abcd" + key(97, 1) + b"abcdefgh"
    layer = prefixed(
        100, extra + prefixed(1, b"c") + key(10, 0) + varint(7) + extra
    )  # a phase that does not exist
    found = decode(memoryview(extra + layer + extra), NetParameter, Reader("a file"))
    assert found == NetParameter(layer=[schema.LayerParameter(name="c")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80" * 11, "more than ten bytes"),
        (b"\x0a\x05abc", "5 bytes, and 3 are left"),
        (b"\x80", "ends inside of a number"),
        (b"\x0d\x00\x00", "ends inside of field 1"),
        (b"\x00\x01", "the number 0"),
        (b"\x0f", "wire type 7"),
        (b"\x0b" * 50, "group 1 does not end"),
        (b"\x0c", "wire type 4"),
        (prefixed(100, prefixed(1, b"\xff\xfe")), "UTF-8"),
    ],
)
def test_damage_is_named(content: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"the file .*{message}"):
        decode(memoryview(content), NetParameter, Reader("the file"))


def test_groups_inside_of_each_other_take_no_stack() -> None:
    depth = 200_000
    content = key(9, 3) * depth + key(9, 4) * depth
    assert decode(memoryview(content), NetParameter, Reader("a file")) == NetParameter()


def test_the_number_of_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WIRE_FIELDS", 100)
    decode(memoryview(prefixed(3, b"") * 100), NetParameter, Reader("a file"))
    with pytest.raises(InvalidArgument, match="more than 100 fields"):
        decode(memoryview(prefixed(3, b"") * 101), NetParameter, Reader("a file"))
    with pytest.raises(InvalidArgument, match="more than 100 fields"):
        decode(memoryview(prefixed(4, b"\x01" * 101)), NetParameter, Reader("a file"))


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_message_or_an_error_of_the_library(content: bytes) -> None:
    for read in (lambda: decode(memoryview(content), NetParameter, Reader("f")), lambda: blob(content)):
        with contextlib.suppress(JitdnnError):
            read()
