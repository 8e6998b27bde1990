"""Operands of `wgmma` that begin some rows further on than copies: what taps of a line read of shared pixels."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from one_hopper_kernel import row_major, run

MULTIPLY = """
    const u32 barrier = shared + 2 * 72 * ROW, from = shared + 72 * ROW;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(barrier, 2 * 72 * ROW);
        tma_load_3d(shared, tables.maps[0], barrier, 0, 0, 0);
        tma_load_3d(from, tables.maps[1], barrier, 0, 0, 0);
    }
    mbarrier_wait(barrier, 0);
    f32 d[32];
    wgmma_fence();
    for (int k = 0; k < ROW / 32; ++k)
        wgmma_bf16<false, false>(d, wgmma_descriptor(shared + FIRST * ROW + k * 32, 16, ROW),
                                 wgmma_descriptor(from + SECOND * ROW + k * 32, 16, ROW), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    f32 *out = (f32 *)y + (16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4) * 64 + 2 * (threadIdx.x % 4);
    for (int i = 0; i < 32; ++i) out[i % 4 / 2 * 8 * 64 + i / 4 * 8 + i % 2] = d[i];
"""


ACROSS = """
    const u32 barrier = shared + 3 * 8192, from = shared + 8192;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(barrier, 3 * 8192);
        tma_load_3d(shared, tables.maps[0], barrier, 0, 0, 0);
        for (int n = 0; n < 4; ++n) tma_load_3d(from + n * 4096, tables.maps[1], barrier, n * 32, 0, 0);
    }
    mbarrier_wait(barrier, 0);
    f32 d[N / 2];
    wgmma_fence();
    for (int k = 0; k < 4; ++k)
        wgmma_bf16<false, true>(d, wgmma_descriptor(shared + k * 32), wgmma_descriptor(from + k * 1024, 4096, 64),
                                k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    f32 *out = (f32 *)y + (16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4) * N + 2 * (threadIdx.x % 4);
    for (int i = 0; i < N / 2; ++i) out[i % 4 / 2 * 8 * N + i / 4 * 8 + i % 2] = d[i];
"""


@pytest.mark.parametrize("n", [32, 96, 128])
def test_blocks_of_32_columns(hopper: Any, n: int) -> None:
    """B as rows of 64 bytes, each of 32 columns at one place of K."""
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-8, 9, (1, 64, extent)).astype(ml_dtypes.bfloat16) for extent in (64, 128))
    maps = row_major(0, a, (64, 64, 1)), row_major(1, b, (32, 64, 1))
    y = np.zeros((64, n), np.float32)
    run(hopper, re.sub(r"\bN\b", str(n), ACROSS), a, b, y, maps)
    np.testing.assert_array_equal(y, a[0].astype(np.float64) @ b[0, :, :n].astype(np.float64))


@pytest.mark.parametrize("row", [128, 64, 32])
def test_rows_further_on(hopper: Any, row: int) -> None:
    """64 rows of 72, of either operand, from each of the first nine on."""
    rng = np.random.default_rng(row)
    a, b = (rng.integers(-8, 9, (1, 72, row // 2)).astype(ml_dtypes.bfloat16) for _ in range(2))
    maps = tuple(row_major(n, one, (row // 2, 72, 1)) for n, one in enumerate((a, b)))
    for first, second in [(0, 0), (1, 0), (2, 3), (3, 1), (4, 0), (5, 7), (6, 2), (7, 8), (8, 5)]:
        body = MULTIPLY.replace("ROW", str(row)).replace("FIRST", str(first)).replace("SECOND", str(second))
        y = np.zeros((64, 64), np.float32)
        run(hopper, body, a, b, y, maps)
        rows, columns = (one[0, n : n + 64].astype(np.float64) for one, n in ((a, first), (b, second)))
        np.testing.assert_array_equal(y, rows @ columns.T)


@pytest.mark.parametrize("row", [128, 64, 32])
def test_groups_of_rows_at_any_distance(hopper: Any, row: int) -> None:
    """64 rows as eight groups of eight, whose first rows lie some rows apart: pixels of eight lines of an image."""
    rng = np.random.default_rng(row)
    a, b = (rng.integers(-8, 9, (1, 104, row // 2)).astype(ml_dtypes.bfloat16) for _ in range(2))
    maps = tuple(row_major(n, one, (row // 2, 104, 1)) for n, one in enumerate((a, b)))
    end = "FIRST * ROW + k * 32, 16, ROW)"
    for first, apart in [(0, 9), (5, 10), (1, 12)]:
        body = MULTIPLY.replace("72", "104").replace(end, f"{end} + ((u64)(({apart} - 8) * ROW / 16) << 32)")
        body = body.replace("ROW", str(row)).replace("FIRST", str(first)).replace("SECOND", "0")
        y = np.zeros((64, 64), np.float32)
        run(hopper, body, a, b, y, maps)
        rows = [first + n // 8 * apart + n % 8 for n in range(64)]
        np.testing.assert_array_equal(y, a[0, rows].astype(np.float64) @ b[0, :64].astype(np.float64).T)
