"""Caffe's messages for Google's protobuf, in a pool of their own: what our reader and writer are compared with."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from jitdnn.caffe import schema
from jitdnn.caffe.message import Message

# label, type, name, number, and whether packed; written out here, not taken from the library
BINARY = {
    "BlobProto": [
        ("optional", "int32", "num", 1, False),
        ("optional", "int32", "channels", 2, False),
        ("optional", "int32", "height", 3, False),
        ("optional", "int32", "width", 4, False),
        ("repeated", "float", "data", 5, True),
        ("repeated", "float", "diff", 6, True),
        ("optional", "BlobShape", "shape", 7, False),
        ("repeated", "double", "double_data", 8, True),
        ("repeated", "double", "double_diff", 9, True),
    ],
    "Datum": [
        ("optional", "int32", "channels", 1, False),
        ("optional", "int32", "height", 2, False),
        ("optional", "int32", "width", 3, False),
        ("optional", "bytes", "data", 4, False),
        ("optional", "int32", "label", 5, False),
        ("repeated", "float", "float_data", 6, False),
        ("optional", "bool", "encoded", 7, False),
    ],
    "SolverState": [
        ("optional", "int32", "iter", 1, False),
        ("optional", "string", "learned_net", 2, False),
        ("repeated", "BlobProto", "history", 3, False),
        ("optional", "int32", "current_step", 4, False),
    ],
}
BLOBS = {"LayerParameter": 7, "V1LayerParameter": 6, "V0LayerParameter": 50}
KINDS = {"integer": "int64", "real": "float", "boolean": "bool", "string": "string", "enum": "int32"}


@functools.cache
def classes() -> dict[str, Any]:
    """The message classes by name."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="ours.proto", package="ours", syntax="proto2")
    rows = dict(BINARY)
    waiting: list[type[Message]] = [schema.NetParameter, schema.SolverParameter]
    seen: set[str] = set()
    while waiting:
        kind = waiting.pop()
        name = kind.__name__
        if name in seen or name in BINARY:
            continue
        seen.add(name)
        rows[name] = []
        for field in kind.fields.values():
            if field.name not in kind.numbers:
                continue
            what = KINDS.get(field.kind) or field.message.__name__  # type: ignore[union-attr]
            label = "repeated" if field.is_repeated else "optional"
            rows[name].append((label, what, field.name, kind.numbers[field.name], name == "BlobShape"))
            if field.message is not None:
                waiting.append(field.message)
        if name in BLOBS:
            rows[name].append(("repeated", "BlobProto", "blobs", BLOBS[name], False))
    proto = descriptor_pb2.FieldDescriptorProto
    for name, entries in rows.items():
        message = file.message_type.add(name=name)
        for label, what, field_name, number, is_packed in entries:
            made = message.field.add(
                name=field_name, number=number, label=getattr(proto, f"LABEL_{label.upper()}")
            )
            if what in rows:
                made.type, made.type_name = proto.TYPE_MESSAGE, f".ours.{what}"
            else:
                made.type = getattr(proto, f"TYPE_{what.upper()}")
            made.options.packed = is_packed
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ours.{name}")) for name in rows
    }
