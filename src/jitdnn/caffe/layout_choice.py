"""Which blobs of a net on a GPU lie channels last in its memory, as (N, H, W, C).

Convolutions, and most layers between them, take blobs in any order; kernels for tensor cores read and write channels
last without copies. Shapes are Caffe's all the same, and what programs see (`Blob.data`, `diff`) is packed in the order
of the shape: the host's copy is transposed where one is made.

A blob may lie channels last if all layers that touch it take that (`Layer.layout_rule`). "any": its bottoms and tops
lie as each of them likes; "same": all of them alike; None: packed. So a net falls into groups of blobs, each of which
lies one way or the other. What a source fills, what the caller does or reads, and losses stay packed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.graph import Node


def lay_channels_last(nodes: Sequence[Node], ends: Sequence[Blob] = ()) -> list[str]:
    """Have the blobs of a net that is not run yet lie channels last where all layers take that; their names.

    Not its `ends`, inputs and outputs, nor what has a weight in the loss.
    """
    groups = _Groups()
    packed = {id(blob) for blob in ends}
    for node in nodes:
        packed |= {id(blob) for blob, weight in zip(node.top, node.loss_weights, strict=True) if weight}
        rule, blobs = node.layer.layout_rule(), [*node.bottom, *node.top]
        for blob in blobs:
            groups.join(blob, blob.owner)
            groups.join(blob, blob.gradient_owner)
            if rule is None or len(blob.shape) != 4 or blob.is_streamed:
                packed.add(id(blob))
        if rule == "same":
            for blob in blobs[1:]:
                groups.join(blobs[0], blob)
    packed = {groups.of(blob) for blob in packed}
    touched = [blob for node in nodes for blob in (*node.bottom, *node.top) if blob.device is not None]
    # a single channel lies both ways at once, but not to those who ask: it goes with the others of its group
    several = {groups.of(id(blob)) for blob in touched if len(blob.shape) == 4 and blob.shape[1] > 1}
    chosen = {blob.name: blob for blob in touched if groups.of(id(blob)) in several - packed}
    for node in nodes:
        for blob in node.layer.saved.values():
            if node.top and node.top[0].name in chosen and blob.shape == node.top[0].shape:
                chosen[blob.name] = blob
    for blob in (*chosen.values(), *_filters(nodes, set(chosen))):
        blob.lay_channels_last()
    return list(chosen)


def _filters(nodes: Sequence[Node], chosen: set[str]) -> list[Blob]:
    """The filters of layers that touch a blob that lies channels last, if only such layers have them."""
    found: dict[int, Blob] = {}
    others: set[int] = set()
    for node in nodes:
        touches = any(blob.name in chosen for blob in (*node.bottom, *node.top))
        is_filter = node.layer.layout_rule() == "any" and touches
        for blob in node.layer.weights:
            # one that is shared in another shape (PERMISSIVE) is a view, which memory in this order does not have
            is_whole = blob.shape == blob.owner.shape == blob.gradient_owner.shape
            is_worth_it = len(blob.shape) == 4 and blob.shape[1] > 1 and math.prod(blob.shape[2:]) > 1
            if is_filter and is_whole and is_worth_it:
                found |= {id(each): each for each in (blob, blob.owner, blob.gradient_owner)}
            else:
                others |= {id(blob), id(blob.owner), id(blob.gradient_owner)}
    return [blob for key, blob in found.items() if key not in others]


class _Groups:
    """Blobs that must lie alike."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def of(self, blob: int) -> int:
        """The number of a blob's group, by the blob's id."""
        while (above := self._above.setdefault(blob, blob)) != blob:
            blob = above
        return blob

    def join(self, one: Blob, other: Blob) -> None:
        """Make one group of two."""
        self._above[self.of(id(one))] = self.of(id(other))
