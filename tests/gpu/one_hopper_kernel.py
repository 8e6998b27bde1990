"""A kernel of the "hopper" dialect around a few lines, run over three arrays of the host."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from jitdnn.devices.gpu import Launch, Source
from jitdnn.devices.tensor_map import Tables, TensorMap

DTYPES = {
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i8": np.int8,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
HEAD = "(TABLES(Tables, tables), const u8 *x, const u8 *w, u8 *y, u8 *workspace, SCALE alpha, SCALE beta)"
BEGIN = """
    extern __shared__ __align__(ALIGNMENT) u8 storage[];
    const u32 shared = smem_address(storage);
"""


def run(
    device: Any, body: str, x: np.ndarray, w: np.ndarray, y: np.ndarray, maps: tuple[TensorMap, ...],
    threads: int = 128, shared: int = 65536, numbers: tuple[int, ...] = (1,), alignment: int = 1024,
    blocks: int = 1, cluster: int = 1, is_early: bool = False,
) -> None:  # fmt: skip
    """Run `body`, whose lines count from 1, over three arrays: y is copied back. `blocks` are in clusters."""
    begin = BEGIN.replace("\n", " ").replace("ALIGNMENT", str(alignment))
    tables = f"struct Tables {{ TensorMap maps[{len(maps)}]; i64 numbers[{len(numbers)}]; }}; "
    kind = "KERNEL_OF_CLUSTERS" if cluster > 1 else "KERNEL2"
    text = f"{tables}{kind}({threads}, {cluster}) void body{HEAD} {{ {begin} {body} }}"
    source = Source("body", text, dialect="hopper")
    launch = Launch("body", blocks, threads, shared, cluster=cluster, is_early=is_early)
    kernel = device.kernel(source, [launch], 3, tables=Tables(maps, numbers))
    memories = [device.allocate(array.nbytes) for array in (x, w, y)]
    for memory, array in zip(memories, (x, w, y), strict=True):
        device.write(memory.pointer, array)
    kernel(None, [memory.pointer for memory in memories], 1.0, 0.0, 0)
    device.read(y, memories[-1].pointer)


def unswizzled(y: np.ndarray, row: int) -> np.ndarray:
    """Rows of 128, 64 or 32 bytes as they were before their pieces were permuted, and the other way."""
    pieces = y.view(np.uint8).reshape(-1, row // 16, 16)
    rows = np.arange(len(pieces))[:, None]
    permuted: np.ndarray = pieces[rows, np.arange(row // 16) ^ rows * row // 128 % (row // 16)]
    return permuted.reshape(-1, row).view(y.dtype)


def row_major(
    operand: int, x: np.ndarray, box: tuple[int, ...], extents: tuple[int, ...] = (), **more: Any
) -> TensorMap:
    """The map of an array, of which `extents` (innermost first) may be less than it has room for."""
    dtype = next(name for name, dtype in DTYPES.items() if x.dtype == dtype)
    extents = extents or x.shape[::-1]
    more.setdefault("steps", (1,) * x.ndim)
    return TensorMap(operand, 0, dtype, extents, x.strides[-2::-1], box, **more)
