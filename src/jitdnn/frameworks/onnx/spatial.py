"""Padding as ONNX writes it, for convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.errors import InvalidArgument

Ints = Sequence[int]
Pairs = tuple[tuple[int, int], ...]


def ones(given: Ints | None, rank: int) -> tuple[int, ...]:
    """A number for every spatial axis, 1 where nothing is given."""
    return tuple(given) if given else (1,) * rank


def pad_pairs(pads: Ints | None, rank: int) -> Pairs:
    """(before, after) of each axis from ONNX's order: all that come before, then all that come after.

    Raises InvalidArgument for another number of them.
    """
    if not pads:
        return ((0, 0),) * rank
    if len(pads) != 2 * rank:
        raise InvalidArgument(f"pads is {list(pads)}: {rank} axes of space take {2 * rank} numbers")
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def padding(
    auto_pad: str, pads: Ints | None, space: Ints, window: Ints, stride: Ints, dilation: Ints
) -> Pairs:
    """(before, after) of each axis, where `auto_pad` may ask for an output extent of ceil(space / stride).

    Raises InvalidArgument for another word.
    """
    rank = len(space)
    if auto_pad in {"NOTSET", ""}:
        return pad_pairs(pads, rank)
    if auto_pad == "VALID":
        return ((0, 0),) * rank
    reach = [d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True)]
    totals = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(space, stride, reach, strict=True)]
    return halves(auto_pad, totals)


def halves(auto_pad: str, totals: Ints) -> Pairs:
    """Padding in two halves; the odd element comes after (SAME_UPPER) or before (SAME_LOWER)."""
    if auto_pad == "SAME_UPPER":
        return tuple((total // 2, total - total // 2) for total in totals)
    if auto_pad == "SAME_LOWER":
        return tuple((total - total // 2, total // 2) for total in totals)
    raise InvalidArgument(f"auto_pad is {auto_pad!r}: it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID")
