"""One kernel that computes a formula for many lists of arrays at once ("multi-tensor apply", "foreach").

Each row has a formula's inputs and outputs, arrays of one length, which differs from row to row, or numbers. The kernel
reads their addresses from a table in the device's memory, of 64-bit integers:

    of each row:            the addresses of its inputs, then of its outputs, and their length
    of each thread block:   row · 2^32 + number of the piece of it that the thread block takes

So a table is made once for arrays that keep their addresses, and the launch is the same whatever their number. A thread
block processes its piece in vectors of 16 bytes, or element by element where an array does not begin at a multiple of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from jitdnn.devices.gpu import GpuDevice, Kernel, Launch, Source, read_text
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.gpu.elementwise.code import THREADS, packs, store_vector
from jitdnn.kernels.gpu.prelude.types import storage_type
from jitdnn.rtcg.c_source import c_function
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import DTYPES

_LEAST_PIECE, _MOST_PIECE = 1 << 10, 1 << 14  # elements of a thread block
_BLOCKS = 16  # thread blocks a multiprocessor should have before pieces are longer than the least


Table = Callable[[Sequence[Sequence[int]]], np.ndarray[tuple[int], np.dtype[np.int64]]]


def build_multi_tensor(
    expressions: Sequence[Expression],
    dtypes: Sequence[str],
    numbers: Sequence[int],
    lengths: Sequence[int],
    device: Device,
    computing: str,
) -> tuple[Kernel, Table]:
    """The kernel for rows of these lengths, whose one pointer is the table, and what makes the table of the rows'
    addresses.

    `dtypes`: of the inputs, then of the outputs; `numbers`: the positions of the inputs that are numbers. All outputs
    of an element are computed before one is stored: they may be inputs.
    """
    gpu = cast(GpuDevice, device)
    piece, blocks = _LEAST_PIECE, _BLOCKS * gpu.multiprocessors
    while piece < _MOST_PIECE and sum(lengths) >= 2 * piece * blocks:
        piece *= 2
    pieces = [
        np.arange(-(-length // piece), dtype=np.int64) + (row << 32) for row, length in enumerate(lengths)
    ]

    def table(rows: Sequence[Sequence[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        words = [(*addresses, length) for addresses, length in zip(rows, lengths, strict=True)]
        # addresses may have the highest bit
        return np.concatenate([np.array(words, np.uint64).astype(np.int64).reshape(-1), *pieces])

    source = Source("multi_tensor", _text(expressions, dtypes, frozenset(numbers), computing), spills=True)
    launch = Launch("multi_tensor", sum(map(len, pieces)), THREADS)
    return gpu.kernel(source, [launch], 1, [len(lengths), piece]), table


def _text(
    expressions: Sequence[Expression], dtypes: Sequence[str], numbers: frozenset[int], computing: str
) -> str:
    inputs = len(dtypes) - len(expressions)
    arrays = [t for t in range(len(dtypes)) if t not in numbers]
    vector = 16 // min(DTYPES[dtypes[t]] for t in arrays)
    functions = "".join(c_function(e, f"result{n}", computing) for n, e in enumerate(expressions))
    kinds = packs((dtypes[t], count) for t in arrays for count in (1, vector))
    width = len(dtypes) + 1
    lines = []
    for t, dtype in enumerate(dtypes):
        kind = f"GLOBAL {'const ' if t < inputs else ''}{storage_type(dtype)} *"
        if t in numbers:
            lines.append(f"  const {computing} q{t} = ({computing})number_{dtype}(*({kind})row[{t}]);\n")
        else:
            lines.append(f"  {kind}p{t} = ({kind})row[{t}] + first;\n")
    checks = " && ".join(f"IS_ALIGNED(p{t}, {min(16, vector * DTYPES[dtypes[t]])})" for t in arrays)

    def step(count: int) -> str:
        steps = []
        for t in arrays:
            if t >= inputs:
                continue
            loaded = f" = load_{dtypes[t]}_{count}(p{t} + at)" if count > 1 else f"; q{t}.items[0] = p{t}[at]"
            steps.append(f"      pack_{dtypes[t]}_{count} q{t}{loaded};\n")
        values = ", ".join(
            f"q{t}" if t in numbers else f"({computing})number_{dtypes[t]}(q{t}.items[j])"
            for t in range(inputs)
        )
        steps += [f"      {computing} r{n}[{count}];\n" for n in range(len(expressions))]
        steps.append(f"#pragma unroll\n      for (int j = 0; j < {count}; ++j) {{\n")
        steps += [f"        r{n}[j] = result{n}({values});\n" for n in range(len(expressions))]
        steps.append("      }\n")
        steps += [
            store_vector(
                computing, dtypes[inputs + n], f"r{n}", f"p{inputs + n} + at", count, "", count > 1, True
            )
            for n in range(len(expressions))
        ]
        return "".join(steps)

    return f"""{read_text("gpu/prelude", "vectors.h")}{functions}{kinds}
KERNEL({THREADS}) void multi_tensor(
    GLOBAL const i64 *table, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 rows, i64 piece) {{
  const i64 place = table[rows * {width} + BLOCK_ID(0)];
  GLOBAL const i64 *row = table + (place >> 32) * {width};
  const i64 first = (place & 0xffffffff) * piece, left = row[{width - 1}] - first;
  const int count = (int)(left < piece ? left : piece);
{"".join(lines)}  const int whole = {checks or 1} ? count / {vector} * {vector} : 0;
  for (int at = THREAD_ID * {vector}; at < whole; at += {THREADS * vector}) {{
{step(vector)}  }}
  for (int at = whole + THREAD_ID; at < count; at += {THREADS}) {{
{step(1)}  }}
}}
"""
