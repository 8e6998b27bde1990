"""What flows between layers: an array and, where it is needed, its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jitdnn.caffe.device import KERNEL_AXES, NetDevice, view_shape
from jitdnn.caffe.synced import Synced
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.settings import check_bytes

Array = NDArray[Any]
Shape = tuple[int, ...]
MAX_AXES = 32  # Caffe's


class Blob:
    """A packed array `data` and its gradient `diff` of the same shape, float32 or float64.

    On a GPU, `device`, both are in its memory too. `data` and `diff` are NumPy's arrays for programs: on a GPU asking
    for one copies down what is newer there, and what is written into it goes up with the next pass, so ask again after
    each. `values` and `gradient` are what layers compute with: the same arrays on the processor, DeviceArrays on a GPU,
    a scalar with shape (1,). `read` is `data` for those that do not write.

    Memory is taken, full of zeros, when it is first asked for, and kept, so that training allocates nothing in its
    steady state; under a limit on memory (memory.py) it is released where nobody needs it, and taken again, and what a
    solver trains may lie in memory that others have too (shared_memory.py). A blob can be a view of another one
    (`share`). One of `shapes_only` never has any.
    """

    __slots__ = (
        "_base", "_diff", "_diff_refusal", "_refusal", "_shape", "_source", "_synced", "_views", "data", "device",
        "dtype", "is_channels_last", "is_gradient_new", "is_streamed", "name",
        "shapes_only",
    )  # fmt: skip

    data: Array

    def __init__(
        self, name: str, dtype: DTypeLike, device: NetDevice | None = None, shapes_only: bool = False
    ) -> None:
        self.name = name
        self.shapes_only = shapes_only
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.device = device
        self._shape: Shape = (0,)
        self._synced: Synced | None = None  # of data, on a GPU
        self._diff: Any = None  # an array, or on a GPU a Synced
        self._base: Blob | None = None  # whose gradient this one views
        self._source: Blob | None = None  # whose data this one views
        # what those get who ask for data, or for the gradient, while others have its memory
        self._refusal: Refusal | None = None
        self._diff_refusal: Refusal | None = None
        # set by the net: whether the host fills data for every pass
        self.is_streamed = False
        # set by new_gradients.py: whether the gradient holds anything, and who adds to it first writes it
        self.is_gradient_new = False
        # whether an array of four axes lies as (N, H, W, C) in a GPU's memory (layouts.py)
        self.is_channels_last = False
        # of a view on a GPU: the arrays viewed last, and the views
        self._views: dict[str, tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        # Called only where a slot is empty: on a GPU always, and else data costs nothing once it is there.
        if name != "data":
            raise AttributeError(f"a Blob has no {name!r}")
        if self._source is not None:
            data = self._source.data.reshape(self._shape)
        else:
            self._check_memory()
            if self.device is not None:
                return self._memory().host()
            if self._refusal is not None:
                raise self._refusal(self)
            data = np.zeros(self._shape, self.dtype)
        if self.device is None:
            self.data = data
        return data

    @property
    def values(self) -> Any:
        """`data` where the net computes, up to date and to be read and written."""
        if self.device is None:
            data = self.data
            return data if 1 <= data.ndim <= KERNEL_AXES else data.reshape(-1)
        if self._source is not None:
            return self._viewed("values", self._source.values)
        return self._memory().device()

    @property
    def gradient(self) -> Any:
        """`diff` where the net computes, up to date and to be read and written."""
        if self.device is None:
            diff = self.diff
            return diff if 1 <= diff.ndim <= KERNEL_AXES else diff.reshape(-1)
        if self._base is not None:
            return self._viewed("gradient", self._base.gradient)
        return self._diff_memory().device()

    def read(self) -> Array:
        """`data` only to be read: on a GPU nothing is copied up again afterwards."""
        if self.device is None:
            return self.data
        if self._source is not None:
            return self._source.read().reshape(self._shape)
        return self._memory().read()

    @property
    def shape(self) -> Shape:
        """The extents, slowest first; () for a scalar."""
        return self._shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """The bytes of `data`, or of `diff`."""
        return self.size * self.dtype.itemsize

    @property
    def diff(self) -> Array:
        """The gradient by `data`."""
        if self.device is not None:
            if self._base is not None:
                return self._base.diff.reshape(self._shape)
            return self._diff_memory().host()
        if self._diff is None:
            self._check_memory()
            if self._base is not None:
                self._diff = self._base.diff.reshape(self._shape)
            else:
                if self._diff_refusal is not None:
                    raise self._diff_refusal(self)
                self._diff = np.zeros(self._shape, self.dtype)
        diff: Array = self._diff
        return diff

    @property
    def owner(self) -> Blob:
        """The blob whose memory `data` is."""
        return self if self._source is None else self._source.owner

    @property
    def gradient_owner(self) -> Blob:
        """The blob whose memory `diff` is."""
        return self if self._base is None else self._base.gradient_owner

    def reshape(self, shape: Shape) -> None:
        """Take this shape and memory of its own; contents are kept only if nothing changes."""
        if self._shape != shape:
            if not self.shapes_only:
                check_bytes(
                    f"blob {self.name!r} of shape {shape}",
                    math.prod(shape) * self.dtype.itemsize,
                    InvalidShape,
                )
            if len(shape) > MAX_AXES:
                raise InvalidShape(
                    f"blob {self.name!r} has {len(shape)} axes: at most {MAX_AXES} are allowed"
                )
        if self._shape != shape or self._source is not None or self._base is not None:
            self._forget()
            self._shape = shape
            self._diff = None
            self._base = self._source = None

    def share(self, other: Blob, shape: Shape | None = None) -> None:
        """Become a view of the data and gradient of `other`, in `shape` (of the same size) if given."""
        self._forget()
        self._shape = other.shape if shape is None else shape
        assert self.size == other.size, (self, other)
        self._diff = None
        self._base = self._source = other

    def share_data(self, other: Blob) -> None:
        """Become a view of the data of `other`, with a gradient of its own."""
        if self._source is not other or self._shape != other.shape or self._base is not None:
            self._diff = None
        self._forget()
        self._shape = other.shape
        self._source, self._base = other, None

    @property
    def memory(self) -> Any:
        """What stands for the memory of `data`: another object where that is taken anew."""
        return self.data if self.device is None else self.owner._memory()

    def settle(self) -> list[Any]:
        """Bring up to date what this blob has in the GPU's memory, and return those arrays."""
        memories = (self._synced, self._diff)
        return [] if self.device is None else [memory.device() for memory in memories if memory is not None]

    # ---- the two copies, for layers that compute on the host of a net on a GPU (net_run.py)

    def overwrite_host(self) -> None:
        """`data` is about to be written whole by the host: nothing need be copied down before."""
        owner = self.owner
        if owner.device is not None:
            owner._memory().overwrite_host()

    def enter(self, *, is_gradient: bool = False) -> None:
        """The host is about to be handed data or gradient: `leave` is about that, not about earlier writes."""
        if self.device is None:
            return
        memory = self.gradient_owner._diff if is_gradient else self.owner._synced
        if memory is not None:
            memory.enter()

    def leave(self, *, is_gradient: bool = False) -> None:
        """What the host was handed since `enter`, of data or gradient, was read and not written."""
        if self.device is None:
            return
        memory = self.gradient_owner._diff if is_gradient else self.owner._synced
        if memory is not None:
            memory.leave()

    @property
    def is_on_host(self) -> bool:
        """Whether the host has the values of `data` without a copy from a GPU."""
        owner = self.owner
        return owner.device is None or owner._synced is None or owner._synced.is_host_valid

    # ---- memory, for memory.py

    def release(self) -> None:
        """Give the memory of `data` back; until `take` or `lift` reading it is an error. Of a view: let go of it."""
        self.withhold(_limited)

    def ensure(self) -> None:
        """Have memory for `data`, zeros if there was none."""
        _ = self.values

    def take(self) -> None:
        """Have memory for `data`, with any contents."""
        if self._source is None and not self.has_data:
            if self.device is None:
                self.data = empty(self._shape, self.dtype)
            else:
                self._synced = Synced(self.device, self._shape, self.dtype)

    def lift(self) -> None:
        """Undo `release` and `withhold`: memory is taken when it is asked for."""
        self._refusal = None

    def lift_diff(self) -> None:
        """Undo `withhold_diff`: the gradient is zeros when it is asked for."""
        self._diff_refusal = None

    def withhold(self, refusal: Refusal) -> None:
        """Let go of the memory of `data`: who asks for it until `swap_data` or `lift` gets what `refusal` returns."""
        self._forget()
        self._refusal = refusal

    def withhold_diff(self, refusal: Refusal) -> None:
        """Let go of the memory of `diff` until `swap_diff` or `lift_diff`."""
        self._diff, self._diff_refusal = None, refusal

    def release_diff(self) -> None:
        """Give the memory of `diff` back; it is zeros when it is asked for again."""
        self._diff = None

    def swap_diff(self, diff: Any) -> Any:
        """Put other memory in the place of that of `diff`, and return what was there, if any; None makes it anew."""
        before, self._diff = self._diff, diff
        return before

    def swap_data(self, data: Any) -> None:
        """Put other memory in the place of that of `data`, which is nobody's view: an array, on a GPU a Synced."""
        self._forget()
        if self.device is None:
            self.data = data
        else:
            self._synced = data

    @property
    def has_data(self) -> bool:
        """Whether `data` has memory now."""
        if self.device is not None:
            return self._synced is not None if self._source is None else self._source.has_data
        try:
            object.__getattribute__(self, "data")
        except AttributeError:
            return False
        return True

    def like(self, what: str) -> Blob:
        """A blob of this shape, type and layout on this one's device, called NAME/what."""
        blob = Blob(f"{self.name}/{what}", self.dtype, self.device)
        blob.reshape(self.shape)
        if self.is_channels_last:
            blob.lay_channels_last()
        return blob

    def lay_channels_last(self) -> None:
        """Have data and gradient lie as (N, H, W, C) in the GPU's memory, where they have four axes."""
        self.is_channels_last = True
        for memory in (self._synced, self._diff):
            if isinstance(memory, Synced):
                memory.lay_channels_last()

    def _forget(self) -> None:
        if self.device is not None:
            self._synced = None
            self._views.clear()
        elif self.has_data:
            del self.data

    def _check_memory(self) -> None:
        if self.shapes_only:
            raise InvalidArgument(
                f"blob {self.name!r} has a shape and no numbers: its net was built with shapes_only, so that it can be "
                "looked at and not run"
            )

    def _memory(self) -> Synced:
        if self._synced is None:
            assert self.device is not None
            if self._refusal is not None:
                raise self._refusal(self)
            self._synced = Synced(
                self.device, self._shape, self.dtype, self.is_streamed, self.is_channels_last
            )
        return self._synced

    def _diff_memory(self) -> Synced:
        if self._diff is None:
            assert self.device is not None
            if self._diff_refusal is not None:
                raise self._diff_refusal(self)
            self._diff = Synced(self.device, self._shape, self.dtype, is_channels_last=self.is_channels_last)
        memory: Synced = self._diff
        return memory

    def _viewed(self, name: str, array: Any) -> Any:
        """The array of another blob in this one's shape; the view is kept, for it takes longer than a launch."""
        known = self._views.get(name)
        if known is None or known[0] is not array:
            shape = view_shape(self._shape)
            known = self._views[name] = (array, array if array.shape == shape else array.reshape(shape))
        return known[1]

    def __repr__(self) -> str:
        return f"Blob({self.name!r}, {self.shape})"


Refusal = Callable[[Blob], InvalidArgument]


def _limited(blob: Blob) -> InvalidArgument:
    return InvalidArgument(
        f"blob {blob.name!r} has no data now: the net runs under a limit on memory, which keeps only inputs "
        "and outputs after a pass; copy it in the net's observer, or call limit_memory(None)"
    )


def empty(shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return new memory of any contents."""
    return np.empty(shape, dtype)


def count(shape: Shape, start: int = 0, end: int | None = None) -> int:
    """Return the number of elements in the axes start .. end - 1."""
    return math.prod(shape[start:end])
