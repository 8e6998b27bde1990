"""A kernel around a few lines of CUDA C++, run over arrays of the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.devices.gpu import Launch, Source

HEAD = "(const u8 *x, const u8 *w, u8 *y, u8 *workspace, SCALE alpha, SCALE beta, i64 n)"


def run(
    device: Any,
    body: str,
    *arrays: np.ndarray,
    threads: int = 32,
    groups: int | tuple[int, ...] = 1,
    shared: int = 0,
    n: int = 0,
    before: str = "",
    dialect: str = "cuda",
) -> None:
    """Run `body`, whose lines count from 1, over up to three arrays: the last is y, which is copied back.

    The text of `before` comes before the kernel and has no line of its own.
    """
    text = f"{before.replace(chr(10), ' ')}KERNEL({threads}) void body{HEAD} {{ {body} }}"
    kernel = device.kernel(
        Source("body", text, dialect=dialect), [Launch("body", groups, threads, shared)], 3, [n]
    )
    given = [*(np.zeros(1, np.float32) for _ in range(3 - len(arrays))), *arrays]
    memories = [device.allocate(array.nbytes) for array in given]
    for memory, array in zip(memories, given, strict=True):
        device.write(memory.pointer, array)
    kernel(None, [memory.pointer for memory in memories], 1.0, 0.0, 0)
    device.read(given[-1], memories[-1].pointer)
