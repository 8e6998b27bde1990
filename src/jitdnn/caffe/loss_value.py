"""The loss of a pass that a GPU may not have computed yet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.device import NetDevice
from jitdnn.groups import Group
from jitdnn.ops.reduce import reduce
from jitdnn.tensor import DeviceArray


class LossValue:
    """A number that `float` waits for, once; until then it is a number in the GPU's memory."""

    __slots__ = ("_arrays", "_device", "_value")

    def __init__(self, device: NetDevice, weighted: Sequence[tuple[Blob, float]]) -> None:
        """Sum up blobs times their loss weights, as the GPU has them after all calls so far."""
        self._device = device
        self._value: float | None = None
        self._arrays: list[DeviceArray] = []  # one for each pass
        with device.handle:
            for number, (blob, weight) in enumerate(weighted):
                if not number:
                    self._arrays.append(device.empty((1,), blob.dtype))
                beta = 1.0 if number else 0.0
                reduce(blob.values.reshape(-1), alpha=weight, beta=beta, out=self._arrays[0])

    @classmethod
    def mean(cls, losses: Sequence[LossValue]) -> LossValue:
        """The mean over several passes, each with its own."""
        made = cls(losses[0]._device, ())
        made._arrays = [array for loss in losses for array in loss._arrays]
        return made

    def add_up(self, group: Group) -> None:
        """Make it the sum over the processes of a group; nobody waits."""
        for array in self._arrays:
            group.sum(array)

    @property
    def is_known(self) -> bool:
        """Whether it was waited for already."""
        return self._value is not None

    def __float__(self) -> float:
        if self._value is None:
            found = np.zeros(len(self._arrays))
            for place, array in enumerate(self._arrays):
                one = np.empty((1,), array.dtype)
                self._device.download(array, one)
                found[place] = one[0]
            self._value = float(found.mean()) if self._arrays else 0.0
            self._arrays.clear()
        return self._value

    def __format__(self, specification: str) -> str:
        return format(float(self), specification)

    def __repr__(self) -> str:
        return f"LossValue({self._value})" if self.is_known else "LossValue(not waited for)"
