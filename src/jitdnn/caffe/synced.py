"""An array that is in host memory, on a GPU, or on both: Caffe's SyncedMemory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe.device import NetDevice, view_shape
from jitdnn.ops.tensor_ops import fill
from jitdnn.tensor import DeviceArray

Array = NDArray[Any]


class Synced:
    """Zeros at first. `host` and `device` hand out the array there, up to date and to be written: the other copy is
    out of date from then on, and is brought up to date when it is asked for. Memory is taken when it is needed.
    """

    __slots__ = (
        "__weakref__", "_device", "_dtype", "_host", "_is_channels_last", "_is_device_valid", "_is_host_valid",
        "_shape", "_staged", "_was_same", "where",
    )  # fmt: skip

    def __init__(
        self,
        where: NetDevice,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        is_streamed: bool = False,
        is_channels_last: bool = False,
    ) -> None:
        """With `is_streamed` the host fills it anew for every pass: copies to the GPU run ahead of their use. With
        `is_channels_last` the GPU's array of four axes lies as (N, H, W, C); the host's is packed in any case.
        """
        self._is_channels_last = is_channels_last and len(shape) == 4 and not is_streamed
        self.where = where
        self._shape, self._dtype = shape, dtype
        self._host: Array | None = None
        self._device: DeviceArray | None = None
        # a copy that is valid and not there is zeros
        self._is_host_valid = self._is_device_valid = True
        self._was_same = False
        size = math.prod(shape) * dtype.itemsize
        self._staged = where.staged_copy(size) if is_streamed else None
        if self._staged is not None:
            self._host = self._staged.bytes.view(dtype).reshape(shape)
            self._host.fill(0)

    @classmethod
    def over(
        cls, where: NetDevice, shape: tuple[int, ...], memory: DeviceArray, is_channels_last: bool = False
    ) -> Synced:
        """An array whose copy on the GPU is `memory`, packed and of one axis, as it is now."""
        if is_channels_last and len(shape) == 4:
            n, c, h, w = shape
            array = memory.reshape(n, h, w, c).transpose(0, 3, 1, 2)
        else:
            array = memory.reshape(view_shape(shape))
        return cls.of(where, shape, array, is_channels_last)

    @classmethod
    def of(
        cls, where: NetDevice, shape: tuple[int, ...], array: DeviceArray, is_channels_last: bool = False
    ) -> Synced:
        """An array whose copy on the GPU is `array`, as `NetDevice.empty` makes it, as it is now."""
        made = cls(where, shape, array.dtype, is_channels_last=is_channels_last)
        made._device, made._is_host_valid = array, False
        return made

    def host(self) -> Array:
        """The host's array, to be read and written."""
        array = self.read()
        if self._staged is not None:
            self._staged.wait()
        self._was_same, self._is_device_valid = self._was_same or self._is_device_valid, False
        return array

    def read(self) -> Array:
        """The host's array, only to be read: both copies are valid."""
        if self._host is None:
            zeros = self._is_host_valid
            self._host = np.zeros(self._shape, self._dtype) if zeros else np.empty(self._shape, self._dtype)
        if not self._is_host_valid:
            assert self._device is not None
            if self._is_channels_last:
                n, c, h, w = self._shape
                lying = np.empty((n, h, w, c), self._dtype)
                self.where.download(self._device, lying)
                np.copyto(self._host, lying.transpose(0, 3, 1, 2))
            else:
                self.where.download(self._device, self._host)
            self._is_host_valid = True
        return self._host

    def device(self) -> DeviceArray:
        """The GPU's array, to be read and written."""
        if self._device is None:
            self._device = self.where.empty(self._shape, self._dtype, self._is_channels_last)
            if self._is_device_valid and self._device.size:
                with self.where.handle:
                    fill(self._device, 0.0)
        if not self._is_device_valid:
            assert self._host is not None
            if self._staged is not None:
                self._device.used_on(self.where.stream, writes=True)
                self._staged.send(self._device.pointer, self.where.stream)
            elif self._is_channels_last:
                self.where.upload(self._device, np.ascontiguousarray(self._host.transpose(0, 2, 3, 1)))
            else:
                self.where.upload(self._device, self._host)
            self._is_device_valid = True
        self._is_host_valid = False
        return self._device

    def lay_channels_last(self) -> None:
        """Have the GPU's array lie as (N, H, W, C) from now on, if it has four axes."""
        if self._is_channels_last or len(self._shape) != 4 or self._staged is not None:
            return
        if self._device is not None:
            self.host()
            self._device = None
        self._is_channels_last = True

    def overwrite_host(self) -> None:
        """The host is about to write all of it: what the GPU has need not come down."""
        self._is_host_valid = True

    def enter(self) -> None:
        """What was handed out so far may have been written: `leave` is about what is handed out from here on."""
        self._was_same = False

    def leave(self) -> None:
        """What `host` handed out since `enter` was not written."""
        if self._was_same:
            self._is_device_valid = True

    @property
    def is_host_valid(self) -> bool:
        """Whether the host has the values without a copy."""
        return self._is_host_valid
