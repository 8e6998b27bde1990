"""A net as layers and blobs: what it shows to those that plan its memory or move its weights, and which layers a
backward pass visits, with the gradients that they compute there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer


@dataclass
class Node:
    """A layer in its net: its blobs, the loss weights of its tops, and its part in the backward pass."""

    layer: Layer
    bottom: list[Blob]
    top: list[Blob]
    loss_weights: list[float]
    needs_backward: bool = False
    propagate: list[bool] = field(default_factory=list)  # for each bottom, whether its gradient is computed
    # set by fusion.py: whether another layer's forward pass computes its result, and another's backward its gradients
    is_absorbed: bool = False
    has_no_backward: bool = False
    # set by backward_fusion.py: of tops, by number, what their gradients are read from in place of their own, and the
    # bottoms whose gradients are not filled, since they are read so
    gradient_sources: dict[int, Blob] = field(default_factory=dict)
    unfilled: frozenset[int] = frozenset()

    @property
    def backward_top(self) -> list[Blob]:
        """The tops as a backward pass reads them."""
        sources = self.gradient_sources
        return [sources.get(index, blob) for index, blob in enumerate(self.top)] if sources else self.top

    @property
    def fills(self) -> list[bool]:
        """For each bottom, whether the backward pass fills its gradient."""
        if not self.unfilled:
            return self.propagate
        return [is_wanted and index not in self.unfilled for index, is_wanted in enumerate(self.propagate)]


@dataclass
class Parameter:
    """A trained weight: `name` is LAYER/INDEX of the layer that owns it; the multipliers scale rate and decay."""

    name: str
    blob: Blob
    lr_mult: float = 1.0
    decay_mult: float = 1.0


Observer = Callable[[Layer, str, float], None]
"""Called after each layer with the layer, "forward" or "backward", and the seconds that it took."""


class LayerGraph(Protocol):
    """The layers of a net and their blobs: `Net` (net.py) is one, and explains each attribute."""

    nodes: list[Node]
    blobs: dict[str, Blob]
    inputs: list[str]
    outputs: list[str]
    parameters: list[Parameter]
    observer: Observer | None
    after_backward: Callable[[int], None] | None

    @property
    def layers(self) -> list[Layer]: ...

    def redirected(self) -> AbstractContextManager[None]: ...

    @property
    def weights(self) -> dict[str, list[Blob]]: ...


def check_count(layer: Layer, what: str, count: int, limits: tuple[int, int | None]) -> None:
    """Raise InvalidArgument if a layer has fewer or more blobs than it can have."""
    low, high = limits
    if count < low or (high is not None and count > high):
        needed = f"{low}" if low == high else f"at least {low}" if high is None else f"{low} to {high}"
        raise layer.invalid(f"it has {count} {what}s and needs {needed}")


def loss_weights(layer: Layer) -> list[float]:
    """Return the loss weight of each top: those of the file, or 1 for the first of a loss."""
    given = layer.parameter.loss_weight
    tops = len(layer.parameter.top)
    if given:
        if len(given) != tops:
            raise layer.invalid(f"{len(given)} loss_weight for {tops} tops: give one each, or none")
        return list(given)
    return [1.0 if layer.is_loss and index == 0 else 0.0 for index in range(tops)]


def plan_gradients(nodes: list[Node], is_forced: bool, outputs: Sequence[str] = ()) -> None:
    """Set `needs_backward` and `propagate` of each node, and `top_has_gradient` of its layer.

    Forward: a gradient is needed where a trained weight is upstream (or `propagate_down` of the layer says
    so). Backward: only where a loss is downstream. With `is_forced` (force_backward) every layer goes
    backward and every bottom that can have a gradient gets one; then the gradients of the `outputs` are what their
    `diff` holds, which the caller may have filled.
    """
    needed: set[str] = set()
    for node in nodes:
        layer = node.layer
        wanted = list(layer.parameter.propagate_down) or [blob.name in needed for blob in node.bottom]
        node.propagate = wanted
        node.needs_backward = any(layer.weight_needs_gradient) or any(
            is_wanted or blob.name in needed for is_wanted, blob in zip(wanted, node.bottom, strict=True)
        )
        for blob in node.top:
            # by name: a layer in place makes a new version of a blob, which may need a gradient where the old
            # did not
            needed.discard(blob.name)
            if node.needs_backward:
                needed.add(blob.name)

    under_loss: set[str] = set()
    without_gradient: set[str] = set()
    for node in reversed(nodes):
        layer = node.layer
        layer.top_has_gradient = [
            blob.name in under_loss or weight != 0
            for blob, weight in zip(node.top, node.loss_weights, strict=True)
        ]
        contributes = any(layer.top_has_gradient)
        is_skipped = all(
            blob.name in without_gradient
            for blob, has in zip(node.top, layer.top_has_gradient, strict=True)
            if has
        )
        if is_skipped or not contributes:
            node.needs_backward = False
            node.propagate = [False] * len(node.bottom)
        for index, blob in enumerate(node.bottom):
            if contributes:
                under_loss.add(blob.name)
            if not node.propagate[index]:
                without_gradient.add(blob.name)
            else:
                without_gradient.discard(blob.name)
    if is_forced:
        _force(nodes, outputs)


def _force(nodes: list[Node], outputs: Sequence[str]) -> None:
    with_gradient = set(outputs)
    for node in reversed(nodes):
        layer = node.layer
        layer.top_has_gradient = [
            blob.name in with_gradient or weight != 0
            for blob, weight in zip(node.top, node.loss_weights, strict=True)
        ]
        node.needs_backward = True
        node.propagate = [layer.may_force_backward(index) for index in range(len(node.bottom))]
        layer.weight_needs_gradient = [True] * len(layer.weights)
        for blob, is_computed in zip(node.bottom, node.propagate, strict=True):
            (with_gradient.add if is_computed else with_gradient.discard)(blob.name)
