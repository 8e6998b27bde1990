"""The stand-in for NVIDIA's driver as tests see it: what was called, what shall fail, and arrays in its memory."""

from __future__ import annotations

import ctypes
import gc
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.devices import cuda_memory
from jitdnn.tensor import DeviceArray

FAKE = ctypes.CDLL("libcuda.so.1")
FAKE.fake_calls.restype = ctypes.c_long
FAKE.fake_bytes.restype = ctypes.c_long
FAKE.fake_launched.restype = ctypes.c_uint64
FAKE.fake_cluster.restype = ctypes.c_uint64
FAKE.fake_context.restype = ctypes.c_void_p
FAKE.fake_set_capturing.argtypes = (ctypes.c_void_p,)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is kept on disk, and no call fails that was not asked to."""
    gc.collect()
    for index in (0, 1):
        cuda_memory.trim(index)
    with jd.settings(cache=False):
        yield
    FAKE.fake_set_capturing(None)
    jd.current_handle().forget()


def calls(name: str) -> int:
    return int(FAKE.fake_calls(name.encode()))


def fail(name: str, status: int) -> None:
    FAKE.fake_fail(name.encode(), status)


def launched() -> tuple[int, ...]:
    """Stream, groups, threads, bytes of group memory, and the values of four arguments of the last launch."""
    return tuple(int(FAKE.fake_launched(n)) for n in range(8))


def on_gpu(shape: tuple[int, ...] = (1, 2, 8, 8), device: str = "cuda:0") -> DeviceArray:
    return jd.to_device(np.random.default_rng(0).standard_normal(shape).astype(np.float32), device)


class Interface:
    """An array of somebody else."""

    def __init__(self, array: DeviceArray, stream: int | None = None, **more: Any) -> None:
        about = dict(array.__cuda_array_interface__)
        self.array, self.__cuda_array_interface__ = array, about | {"stream": stream} | more


def stand_in_for_cupy() -> Any:
    """As much of CuPy as is used."""

    class ndarray:  # noqa: N801
        def __init__(self, shape: Any, dtype: Any, memory: Any, strides: Any) -> None:
            self.shape, self.dtype, self.strides, self.memory = shape, np.dtype(dtype), strides, memory
            self.data = types.SimpleNamespace(ptr=memory.pointer)
            self.device = types.SimpleNamespace(id=0)

    class Device:
        def __init__(self, index: int) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    module: Any = types.ModuleType("cupy")
    module.ndarray = ndarray
    module.cuda = types.SimpleNamespace(
        Device=Device,
        alloc=lambda size: jd.empty((size,), "u8", "cuda"),
        get_current_stream=lambda index: types.SimpleNamespace(ptr=0x60),
    )
    return module
