"""Multi-head attention in cuDNN's names over arrays on GPUs: as in host memory, where it is held against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
import jitdnn.cudnn as c

BATCH, BEAM, QUERIES, KEYS, HEADS = 2, 2, 4, 5, 3
LO, HI = [0, 0, 1, 0], [5, 2, 4, 5]


def sequences(extents: tuple[int, int, int, int], axes: list[int], lengths: list[int]) -> Any:
    made = c.cudnnCreateSeqDataDescriptor()
    c.cudnnSetSeqDataDescriptor(made, c.CUDNN_DATA_FLOAT, 4, extents, axes, len(lengths), lengths, None)
    return made


def program(target: str, own_keys: bool, moved: Callable[[Any], Any]) -> list[Any]:
    """What all calls write, in host memory."""
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    beams = BEAM if own_keys else 1
    queried = c.CUDNN_ATTN_QUERYMAP_ONE_TO_ONE if own_keys else c.CUDNN_ATTN_QUERYMAP_ALL_TO_ONE
    attn = c.cudnnCreateAttnDescriptor()
    c.cudnnSetAttnDescriptor(
        attn, queried | c.CUDNN_ATTN_ENABLE_PROJ_BIASES, HEADS, 0.7, c.CUDNN_DATA_FLOAT, c.CUDNN_DATA_FLOAT,
        c.CUDNN_DEFAULT_MATH, None, None, 6, 5, 7, 4, 4, 2, 6, QUERIES, KEYS + 1, BATCH, BEAM,
    )  # fmt: skip
    ends = [5, 3, 4, 2] if own_keys else [5, 3]
    q_desc = sequences((QUERIES, BATCH, BEAM, 6), [0, 1, 2, 3], [4, 3, 4, 2])
    k_desc = sequences((KEYS, BATCH, beams, 5), [1, 2, 0, 3], ends)
    v_desc = sequences((KEYS, BATCH, beams, 7), [1, 0, 2, 3], ends)
    o_desc = sequences((QUERIES, BATCH, BEAM, 6), [1, 2, 0, 3], [4, 3, 4, 2])
    handle = c.cudnnCreate(target)
    size, _, reserve = c.cudnnGetMultiHeadAttnBuffers(handle, attn)
    given = (
        normal(QUERIES, BATCH, BEAM, 6), normal(BATCH, beams, KEYS, 5), normal(BATCH, KEYS, beams, 7),
        normal(size // 4), normal(QUERIES, BATCH, BEAM, 6), normal(BATCH, BEAM, QUERIES, 6),
    )  # fmt: skip
    q, k, v, weights, residuals, dout = map(moved, given)
    kept = moved(np.zeros(reserve, np.uint8))
    out, alone = (moved(np.full((BATCH, BEAM, QUERIES, 6), 5, np.float32)) for _ in range(2))
    dq, dk, dv, dw = (moved(np.full_like(x, np.nan)) for x in given[:4])
    inputs = (q_desc, q, residuals, k_desc, k, v_desc, v, o_desc)
    c.cudnnMultiHeadAttnForward(
        handle, attn, -1, LO, HI, None, None, *inputs, out, size, weights, 0, None, reserve, kept
    )
    c.cudnnMultiHeadAttnForward(
        handle, attn, 1, LO, HI, None, None, *inputs, alone, size, weights, 0, None, 0, None
    )
    c.cudnnMultiHeadAttnBackwardData(
        handle, attn, LO, HI, None, None, o_desc, dout, q_desc, dq, q, k_desc, dk, k, v_desc, dv, v, size, weights, 0,
        None, reserve, kept,
    )  # fmt: skip
    for mode in (c.CUDNN_WGRAD_MODE_SET, c.CUDNN_WGRAD_MODE_ADD):
        c.cudnnMultiHeadAttnBackwardWeights(
            handle,
            attn,
            mode,
            q_desc,
            q,
            k_desc,
            k,
            v_desc,
            v,
            o_desc,
            dout,
            size,
            weights,
            dw,
            0,
            None,
            reserve,
            kept,
        )
    return [np.asarray(x) for x in (out, alone, dq, dk, dv, dw)]


@pytest.mark.parametrize("own_keys", [False, True])
def test_as_in_host_memory(device: Any, own_keys: bool) -> None:
    expected = program("cpu", own_keys, lambda x: x.copy())
    found = program(device.target, own_keys, lambda x: jd.to_device(x, device.target))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * float(np.abs(other).max()))
