"""Problems over the random words of their elements (`problems/philox.py`): what generators of all targets share.

The elements are those of a box, of which every position stands for one block of four words and so for one element
in each part of the tensor. Where the extent is no multiple of the parts, the last ones are short: the box is then cut
in two regions, in each of which every part that takes part is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from jitdnn.kernels.algorithm import Device, Kernel
from jitdnn.kernels.formulas.loop_nest import Nest
from jitdnn.problems.dropout import Dropout
from jitdnn.problems.random import Random
from jitdnn.tensor import TensorDescriptor, packed_strides

#: tensors of one shape with their operand numbers: an input or none, then what is saved, the principal output last
Numbered = Sequence[tuple[int, TensorDescriptor]]


class PhiloxGenerator(Protocol):
    """What makes kernels over random words for a target. `state` is the operand number of the generator's state."""

    def refuse(self, tensors: Sequence[TensorDescriptor], device: Device) -> str | None:
        """Why a device cannot work through such tensors; None if it can."""

    def estimate(self, tensors: Sequence[TensorDescriptor], parts: int, device: Device) -> float:
        """Expected seconds, where a block of words serves so many parts."""

    def dropout(self, problem: Dropout, tensors: Numbered, state: int, device: Device) -> Kernel:
        """The kernel of a dropout."""

    def fill(self, problem: Random, tensors: Numbered, state: int, device: Device) -> Kernel:
        """The kernel that draws from a distribution."""


@dataclass(frozen=True)
class Region:
    """One box of blocks, and the parts that have all of it.

    The numbers of the blocks are a tensor of their own in the nest, the last but one.
    """

    nest: Nest
    active: int


def regions(tensors: Sequence[TensorDescriptor], axis: int, part: int) -> list[Region]:
    """The box of blocks, so many along an axis, in pieces for which every part is there as a whole or not at all."""
    shape = tensors[-1].shape
    box = (*shape[:axis], part, *shape[axis + 1 :])
    if 0 in box:
        return []
    blocks = TensorDescriptor(box, packed_strides(box), "i64")
    whole, rest = divmod(shape[axis], part)
    found = []
    for start, stop, active in ((0, rest, whole + 1), (rest, part, whole)):
        if start == stop:
            continue
        piece = (*box[:axis], stop - start, *box[axis + 1 :])
        views = [TensorDescriptor(piece, t.strides, t.dtype) for t in (*tensors[:-1], blocks, tensors[-1])]
        nest = Nest.of(views)
        bases = [base + start * t.strides[axis] for base, t in zip(nest.bases, views, strict=True)]
        found.append(Region(replace(nest, bases=tuple(bases)), active))
    return found
