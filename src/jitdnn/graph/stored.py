"""Constants that were made of bytes: which bytes an array of reals holds, and by which scales.

A front that computes `scale * (q - zero)` of a constant q says so here, and a pass that multiplies bytes finds q again.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

from jitdnn.graph.ir import AnyArray


@dataclass(frozen=True)
class Stored:
    """The bytes of an array (int8 or uint8), and their scale and zero, which broadcast to them."""

    integers: AnyArray
    scale: AnyArray
    zero: AnyArray


class _Entry(NamedTuple):
    owner: weakref.ref[Any]
    place: tuple[Any, ...]
    stored: Stored


# by the identity of what owns the memory, as long as that lives, so that views are found too
_entries: dict[int, _Entry] = {}


def remember(array: AnyArray, stored: Stored) -> None:
    """Note what an array was made of."""
    owner = _owner(array)
    key = id(owner)
    _entries[key] = _Entry(weakref.ref(owner, lambda _: _entries.pop(key, None)), _place(array), stored)


def stored_of(array: AnyArray) -> Stored | None:
    """What an array, or a matrix whose transpose it is, was made of; None where nobody said so."""
    entry = _entries.get(id(_owner(array)))
    if entry is None:
        return None
    if _place(array) == entry.place:
        return entry.stored
    if array.ndim == 2 and _place(array.T) == entry.place:
        integers, scale, zero = entry.stored.integers, entry.stored.scale, entry.stored.zero
        return Stored(integers.T, _turned(scale), _turned(zero))
    return None


def _owner(array: AnyArray) -> Any:
    return array if array.base is None else array.base


def _place(array: AnyArray) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides


def _turned(numbers: AnyArray) -> AnyArray:
    return numbers if numbers.ndim == 0 else numbers.reshape((1,) * (2 - numbers.ndim) + numbers.shape).T
