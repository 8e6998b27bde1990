"""Sequences of tensors, which are lists, and optional values, which are None where there is nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.views import whole


def empty(*, dtype: int = 1) -> list[Any]:
    return []


def construct(first: Any, /, *others: Any) -> list[Any]:
    return [first, *others]


def length(sequence: list[Any], /) -> Array:
    return np.array(len(sequence), np.int64)


def _place(position: Array | None, count: int, default: int, site: Site, last: int) -> int:
    """A position from 0 to `last`; negative ones count from the end."""
    place = default if position is None else int(position.item())
    if not -count <= place <= last:
        raise InvalidArgument(f"{site.operator}: position {place} is outside of a sequence of {count}")
    return place + count if place < 0 else place


def at(sequence: list[Any], position: Array, /, *, site: Site) -> Any:
    return sequence[_place(position, len(sequence), 0, site, len(sequence) - 1)]


def insert(sequence: list[Any], tensor: Any, position: Array | None = None, /, *, site: Site) -> list[Any]:
    place = _place(position, len(sequence), len(sequence), site, len(sequence))
    return [*sequence[:place], tensor, *sequence[place:]]


def erase(sequence: list[Any], position: Array | None = None, /, *, site: Site) -> list[Any]:
    place = _place(position, len(sequence), len(sequence) - 1, site, len(sequence) - 1)
    return [*sequence[:place], *sequence[place + 1 :]]


def split_to_sequence(
    x: Array, sizes: Array | None = None, /, *, axis: int = 0, keepdims: int = 1
) -> list[Any]:
    """Parts of the sizes given, or of one size where it is a single number; single elements without one."""
    extent = x.shape[axis]
    if sizes is not None and sizes.ndim:
        ends = np.cumsum(whole(sizes))[:-1].tolist()
    else:
        each = 1 if sizes is None else int(sizes.item())
        ends = list(range(each, extent, each))
    parts = np.split(x, ends, axis)
    return [part.squeeze(axis) for part in parts] if sizes is None and not keepdims else parts


def concat_from_sequence(sequence: list[Any], /, *, axis: int, new_axis: int = 0) -> Array:
    return np.stack(sequence, axis) if new_axis else np.concatenate(sequence, axis)


def optional(value: Any = None, /, *, type: Any = None) -> Any:
    return value


def has_element(value: Any = None, /) -> Array:
    return np.array(value is not None)


def get_element(value: Any, /, *, site: Site) -> Any:
    if value is None:
        raise InvalidArgument(f"{site.operator}: the optional value has no element")
    return value


OPERATORS = table(
    ConcatFromSequence=concat_from_sequence,
    Optional=optional,
    OptionalGetElement=get_element,
    OptionalHasElement=has_element,
    SequenceAt=at,
    SequenceConstruct=construct,
    SequenceEmpty=empty,
    SequenceErase=erase,
    SequenceInsert=insert,
    SequenceLength=length,
    SplitToSequence=split_to_sequence,
)
