"""Multi-head attention in cuDNN's names, against the definition in PyTorch, float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import jitdnn.cudnn as c
from cudnn_programs import Program

rng = np.random.default_rng(13)
BATCH, BEAM, QUERIES, KEYS, HEADS = 2, 2, 4, 5, 3
SIZES = {"q": 6, "k": 5, "v": 7}
PROJECTED = {"q": 4, "k": 4, "v": 2, "o": 6}


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def described(extents: tuple[int, int, int, int], lengths: list[int], order: str) -> Any:
    """`extents`: time, batch, beam, vector; `order`: of the axes in memory."""
    names = {"t": 0, "n": 1, "b": 2, "v": 3}
    made = c.cudnnCreateSeqDataDescriptor()
    axes = [names[letter] for letter in order]
    c.cudnnSetSeqDataDescriptor(made, c.CUDNN_DATA_FLOAT, 4, extents, axes, len(lengths), lengths, None)
    assert c.cudnnGetSeqDataDescriptor(made, 4, 99)[1:6] == (
        4,
        extents,
        tuple(axes),
        len(lengths),
        tuple(lengths),
    )
    return made


def logical(x: Any, order: str) -> Any:
    """(batch, beam, time, vector)."""
    return x.transpose([order.index(letter) for letter in "nbtv"])


@pytest.mark.parametrize("own_keys", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_forward_and_gradients(p: Program, own_keys: bool, biased: bool) -> None:
    beams = BEAM if own_keys else 1
    mode = (c.CUDNN_ATTN_QUERYMAP_ONE_TO_ONE if own_keys else c.CUDNN_ATTN_QUERYMAP_ALL_TO_ONE) | (
        c.CUDNN_ATTN_ENABLE_PROJ_BIASES if biased else 0
    )
    attn = c.cudnnCreateAttnDescriptor()
    set_to = (
        mode, HEADS, 0.7, c.CUDNN_DATA_FLOAT, c.CUDNN_DATA_FLOAT, c.CUDNN_DEFAULT_MATH, None, None, *SIZES.values(),
        *PROJECTED.values(), QUERIES, KEYS + 1, BATCH, BEAM,
    )  # fmt: skip
    c.cudnnSetAttnDescriptor(attn, *set_to)
    assert c.cudnnGetAttnDescriptor(attn) == set_to
    q, k, v = normal(QUERIES, BATCH, BEAM, 6), normal(BATCH, beams, KEYS, 5), normal(BATCH, KEYS, beams, 7)
    orders = {"q": "tnbv", "k": "nbtv", "v": "ntbv", "o": "nbtv"}
    query_ends = [4, 3, 4, 2]
    ends = [5, 3, 4, 2] if own_keys else [5, 3]
    q_desc = described((QUERIES, BATCH, BEAM, 6), query_ends, orders["q"])
    k_desc = described((KEYS, BATCH, beams, 5), ends, orders["k"])
    v_desc = described((KEYS, BATCH, beams, 7), ends, orders["v"])
    o_desc = described((QUERIES, BATCH, BEAM, 6), query_ends, orders["o"])
    size, work, reserve = c.cudnnGetMultiHeadAttnBuffers(p.handle, attn)
    weights, kept = normal(size // 4), p.space(reserve)
    assert work == 0
    parts: dict[str, Any] = {}
    for number, name in enumerate(("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")):
        w_desc = c.cudnnCreateTensorDescriptor()
        part = c.cudnnGetMultiHeadAttnWeights(p.handle, attn, number, size, weights, w_desc)
        if part is None:
            assert not biased
            assert name.startswith("b")
            continue
        _, _, extents, strides = c.cudnnGetTensorNdDescriptor(w_desc, 3)
        # by the descriptor: (heads, projected, size)
        seen = np.lib.stride_tricks.as_strided(part, extents, [4 * step for step in strides])
        parts[name] = torch.tensor(seen.copy(), dtype=torch.float64, requires_grad=True)
    lo, hi = [0, 0, 1, 0], [5, 2, 4, 5]
    residual, dout = normal(QUERIES, BATCH, BEAM, 6), normal(BATCH, BEAM, QUERIES, 6)
    out = np.full((BATCH, BEAM, QUERIES, 6), np.nan, np.float32)
    c.cudnnMultiHeadAttnForward(
        p.handle, attn, -1, lo, hi, np.array(query_ends, np.int32), np.array(ends, np.int32), q_desc, q, residual,
        k_desc, k,
        v_desc, v, o_desc, out, size, weights, 0, None, reserve, kept,
    )  # fmt: skip

    leaves = {
        name: torch.tensor(logical(x, orders[name]).copy(), dtype=torch.float64, requires_grad=True)
        for name, x in (("q", q), ("k", k), ("v", v))
    }
    wide = {name: x.expand(BATCH, BEAM, *x.shape[2:]) for name, x in leaves.items()}
    heads = {}
    for name in "qkv":
        heads[name] = torch.einsum("nbtv,hpv->nbhtp", wide[name], parts["w" + name])
        if biased:
            heads[name] = heads[name] + parts["b" + name].reshape(HEADS, 1, -1)
    scores = 0.7 * heads["q"] @ heads["k"].transpose(-1, -2)
    places = torch.arange(KEYS)
    key_ends = torch.tensor(ends).reshape(BATCH, beams).expand(BATCH, BEAM)
    sees = (places >= torch.tensor(lo)[:, None]) & (places < torch.tensor(hi)[:, None])
    sees = sees & (places < key_ends[:, :, None, None])
    scores = scores.masked_fill(~sees[:, :, None], -np.inf)
    joined = torch.nan_to_num(torch.softmax(scores, -1)) @ heads["v"]
    result = torch.einsum("nbhtp,hop->nbto", joined, parts["wo"])
    if biased:
        result = result + parts["bo"].reshape(-1)
    alive = (torch.arange(QUERIES) < torch.tensor(query_ends).reshape(BATCH, BEAM, 1))[..., None]
    result = torch.where(alive, result, 0.0)
    expected = result.detach().numpy() + logical(residual, orders["q"])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=2e-5)

    (result * torch.tensor(dout, dtype=torch.float64)).sum().backward()
    dq, dk, dv, dw = (np.full_like(x, np.nan) for x in (q, k, v, weights))
    c.cudnnMultiHeadAttnBackwardData(
        p.handle, attn, lo, hi, None, None, o_desc, dout, q_desc, dq, q, k_desc, dk, k, v_desc, dv, v, size, weights, 0,
        None, reserve, kept,
    )  # fmt: skip
    rest = (q_desc, q, k_desc, k, v_desc, v, o_desc, dout, size, weights, dw, 0, None, reserve, kept)
    c.cudnnMultiHeadAttnBackwardWeights(p.handle, attn, c.CUDNN_WGRAD_MODE_SET, *rest)
    for name, found in (("q", dq), ("k", dk), ("v", dv)):
        gradient = leaves[name].grad
        assert gradient is not None
        np.testing.assert_allclose(logical(found, orders[name]), gradient.numpy(), rtol=1e-3, atol=1e-4)
    for number, name in enumerate(("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")):
        if name in parts:
            w_desc = c.cudnnCreateTensorDescriptor()
            part = c.cudnnGetMultiHeadAttnWeights(p.handle, attn, number, size, dw, w_desc)
            _, _, extents, strides = c.cudnnGetTensorNdDescriptor(w_desc, 3)
            seen = np.lib.stride_tricks.as_strided(part, extents, [4 * step for step in strides])
            np.testing.assert_allclose(seen, parts[name].grad.numpy(), rtol=1e-3, atol=2e-4)
    once = dw.copy()
    c.cudnnMultiHeadAttnBackwardWeights(p.handle, attn, c.CUDNN_WGRAD_MODE_ADD, *rest)
    np.testing.assert_allclose(dw, 2 * once, rtol=1e-5)

    # one time alone, as in decoding
    alone = np.full_like(out, 5)
    c.cudnnMultiHeadAttnForward(
        p.handle, attn, 1, lo, hi, None, None, q_desc, q, residual, k_desc, k, v_desc, v, o_desc, alone, size,
        weights, 0,
        None, 0, None,
    )  # fmt: skip
    np.testing.assert_allclose(alone[:, :, 1], out[:, :, 1], rtol=1e-4, atol=1e-5)
    assert (alone[:, :, [0, 2, 3]] == 5).all()


def test_what_is_refused(p: Program) -> None:
    attn = c.cudnnCreateAttnDescriptor()
    sizes = (6, 6, 6, 0, 0, 0, 0, 4, 4, 1, 1)
    with pytest.raises(c.CudnnNotSupported, match="projection"):
        c.cudnnSetAttnDescriptor(attn, 0, 2, 1.0, 0, 0, 0, None, None, *sizes)
    with pytest.raises(c.CudnnBadParam, match="equal"):
        c.cudnnSetAttnDescriptor(attn, 0, 1, 1.0, 0, 0, 0, None, None, 6, 5, *sizes[2:])
    c.cudnnSetAttnDescriptor(attn, 0, 1, 1.0, 0, 0, 0, None, None, *sizes)
    assert c.cudnnGetMultiHeadAttnBuffers(p.handle, attn)[0] == 0
    q = normal(4, 1, 1, 6)
    desc, out = described((4, 1, 1, 6), [4], "tnbv"), np.empty_like(q)
    rest = (0, None, 0, None, 0, None)
    c.cudnnMultiHeadAttnForward(
        p.handle, attn, -1, None, None, None, None, desc, q, None, desc, q, desc, q, desc, out, *rest
    )
    scores = q[:, 0, 0].astype(np.float64) @ q[:, 0, 0].T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) @ q[:, 0, 0]
    np.testing.assert_allclose(out[:, 0, 0], expected, rtol=1e-4, atol=1e-5)
    large = described((5, 1, 1, 6), [5], "tnbv")
    wide = normal(5, 1, 1, 6)
    with pytest.raises(c.CudnnBadParam, match="allows"):
        c.cudnnMultiHeadAttnForward(
            p.handle,
            attn,
            -1,
            None,
            None,
            None,
            None,
            large,
            wide,
            None,
            large,
            wide,
            large,
            wide,
            large,
            wide,
            *rest,
        )
