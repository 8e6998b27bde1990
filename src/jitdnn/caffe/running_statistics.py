"""The running statistics of a net's BatchNorm layers on a GPU, updated in one launch at the end of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.caffe.graph import Node
from jitdnn.caffe.layers.batch_norm import BatchNormLayer
from jitdnn.ops import multi_tensor
from jitdnn.ops.multi_tensor import MultiTensor, Row


class RunningStatistics:
    """Of the layers that leave their update to it, once it is switched on: those in training whose statistics of the
    batch are kept for the backward pass, on a device that takes all at once.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._layers = [
            node.layer
            for node in nodes
            if isinstance(node.layer, BatchNormLayer) and not node.layer.is_global and node.needs_backward
        ]
        device = self._layers[0].context.device if self._layers else None
        if device is None or not multi_tensor.reads_addresses(device.gpu):
            self._layers = []
        self._device = device
        self._step = MultiTensor("s, new, fraction: s * fraction + new", ("fraction",))
        self._one: Any = None
        self._is_on = False

    def switch(self, is_on: bool) -> None:
        """Have the layers leave the update to `update`, or do it themselves."""
        self._is_on = is_on
        for layer in self._layers:
            layer.leaves_statistics = is_on

    def update(self) -> None:
        """All layers have run."""
        if self._is_on and self._layers:
            self._step(self._rows())

    def settle(self) -> None:
        """Make what `update` needs before its call is captured."""
        if self._is_on and self._layers:
            self._step.settle(self._rows())

    def _rows(self) -> list[Row]:
        assert self._device is not None
        if self._one is None:
            dtype = self._layers[0].context.dtype
            self._one = self._device.empty((1,), dtype)
            self._device.upload(
                self._one, np.ones(1, dtype)
            )  # also where code is compiled ahead, and nothing runs
        rows: list[Row] = []
        for layer in self._layers:
            mean, variance = layer.batch_statistics()
            news = (mean, variance, self._one)
            sums = [blob.values for blob in layer.weights]
            rows += [((old, new, layer.fraction), (old,)) for old, new in zip(sums, news, strict=True)]
        return rows
