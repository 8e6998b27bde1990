"""Attention, forward and backward: masks, windows, lengths, groups of heads, every type and order in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from attention_cases import CASES, DIRECTIONS, SIZES, attention, inputs_for
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, unreached
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, NotSupported
from jitdnn.problems import Attention, Problem
from strategies import attentions

torch = pytest.importorskip("torch")


def check_attention(problem: Problem, **options: Any) -> set[str]:
    return check(problem, inputs=inputs_for(problem), **options)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SIZES)
def test_sizes(words: str, direction: str) -> None:
    check_attention(attention(words, direction))


@pytest.mark.parametrize(("direction", "words"), CASES)
def test_who_sees_what(words: str, direction: str) -> None:
    check_attention(attention(f"n2 h2 t37 s103 d9 kvh1 {words}", direction))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_types(dtype: str, direction: str) -> None:
    words = "addmask q=nthd k=nthd v=nthd lengths32"
    check_attention(attention(f"n1 h2 t35 s50 d18 e16 {words} {dtype}", direction))


@pytest.mark.parametrize(
    "arrangement", [name for name in ARRANGEMENTS if name not in ("repeated", "overlapping")]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str) -> None:
    check_attention(arranged(attention("n2 h2 t21 s18 d5 addmask lengths32", direction), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_narrower_instruction_sets(direction: str, cpu: str) -> None:
    check_attention(
        attention("n1 h2 t37 s70 d9 right0 past5 boolmask bf16", direction), cpu=cpu, threads=(1,)
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_is_reached(direction: str) -> None:
    assert unreached([attention(words, direction) for words in SIZES]) == set()


@settings(max_examples=4, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(attentions())
def test_any_attention(problem: Problem) -> None:
    check_attention(problem, threads=(2,))


# ---- the public functions, against torch


def arrays(n: int, h: int, g: int, t: int, s: int, d: int, e: int, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (n, h, t, d), (n, g, s, d), (n, g, s, e)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


CALLS: dict[str, tuple[Any, Any]] = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"is_causal": True}),
    "bool": ("bool", "bool"),
    "float": ("float", "float"),
}


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("name", CALLS)
def test_torch_agrees(name: str, heads: tuple[int, int]) -> None:
    q, k, v = arrays(2, *heads, 33, 45, 24, 20)
    ours, theirs = CALLS[name]
    if isinstance(ours, str):
        mask = torch.randn(2, 1, 33, 45, generator=torch.Generator().manual_seed(1))
        mask = mask > -0.5 if name == "bool" else mask
        ours, theirs = {"mask": mask}, {"attn_mask": mask}
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, enable_gqa=heads[0] != heads[1], **theirs
    )
    dy = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad(expected, (q, k, v), dy)
    y, lse = jd.attention(q, k, v, return_lse=True, **ours)
    assert isinstance(y, torch.Tensor)
    torch.testing.assert_close(y, expected.detach(), rtol=1e-5, atol=1e-6)
    for mine, theirs_ in zip(jd.attention_backward(dy, q, k, v, y, lse, **ours), gradients, strict=True):
        torch.testing.assert_close(mine, theirs_, rtol=1e-4, atol=1e-5)


def test_views_with_heads_inside() -> None:
    """(N, T, H, D) arrays come as transposed views, and the result lies in memory as q does."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 9, 3, 8)).astype(np.float32).transpose(0, 2, 1, 3) for _ in range(3))
    y = jd.attention(q, k, v)
    assert y.transpose(0, 2, 1, 3).flags.c_contiguous
    expected = Attention.make("fwd", q.shape, k.shape, v.shape).reference(q, k, v)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_padding_is_not_read() -> None:
    q, k, v = (x.detach().numpy().copy() for x in arrays(2, 2, 2, 5, 12, 8, 8))
    lengths = np.array([7, 0], np.int64)
    expected = jd.attention(q[:1], k[:1, :, :7], v[:1, :, :7])
    k[0, :, 7:], v[0, :, 7:], k[1], v[1] = np.nan, np.inf, np.nan, np.nan
    y, lse = jd.attention(q, k, v, lengths=lengths, return_lse=True)
    np.testing.assert_array_equal(y[:1], expected)
    np.testing.assert_array_equal(y[1], 0)  # sees nothing
    assert np.isneginf(lse[1]).all()
    dq, dk, dv = jd.attention_backward(np.ones_like(y), q, k, v, y, lse, lengths=lengths)
    assert np.isfinite(dq).all()
    for gradient in (dk, dv):
        assert (gradient[0, :, :7] != 0).any()
        np.testing.assert_array_equal(gradient[0, :, 7:], 0)
        np.testing.assert_array_equal(gradient[1], 0)


def test_rows_that_a_mask_hides_give_zeros() -> None:
    q, k, v = (x.detach().numpy() for x in arrays(1, 1, 1, 6, 9, 8, 8))
    mask = np.ones((6, 9), bool)
    mask[2] = False
    for given_mask in (mask, np.where(mask, 0, -np.inf).astype(np.float32)):
        y, lse = jd.attention(q, k, v, mask=given_mask, return_lse=True)
        np.testing.assert_array_equal(y[0, 0, 2], 0)
        assert np.isneginf(lse[0, 0, 2])
        assert np.isfinite(np.delete(lse, 2, axis=2)).all()
        gradients = jd.attention_backward(np.ones_like(y), q, k, v, y, lse, mask=given_mask)
        np.testing.assert_array_equal(gradients[0][0, 0, 2], 0)
        assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_extremes() -> None:
    """Scores of thousands stay in range; a NaN spoils its own row only."""
    q = np.array([[100.0], [-100.0], [np.nan], [0.0]], np.float32).reshape(1, 1, 4, 1)
    k = np.array([[50.0], [-50.0], [0.0]], np.float32).reshape(1, 1, 3, 1)
    v = np.array([[1.0], [2.0], [4.0]], np.float32).reshape(1, 1, 3, 1)
    y = jd.attention(q, k, v)
    np.testing.assert_allclose(y.ravel(), [1.0, 2.0, np.nan, 7.0 / 3.0], rtol=1e-6)


def test_windows_may_point_anywhere() -> None:
    """Indices are clipped: none leads outside of the keys."""
    q, k, v = (x.detach().numpy() for x in arrays(1, 1, 1, 4, 6, 8, 8))
    lo = np.array([-(2**62), 2, 5, 2**62], np.int64)
    hi = np.array([2**62, -5, 6, 3], np.int64)
    y = jd.attention(q, k, v, lo=lo, hi=hi)
    np.testing.assert_allclose(y[0, 0, 0], jd.attention(q[:, :, :1], k, v)[0, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(y[0, 0, [1, 3]], 0)
    np.testing.assert_allclose(y[0, 0, 2], v[0, 0, 5], rtol=1e-6)


def test_pieces_are_the_whole() -> None:
    """Causal queries of a later call, with `past`, see what they would have seen in one."""
    q, k, v = (x.detach().numpy() for x in arrays(1, 2, 2, 20, 20, 8, 8))
    whole = jd.attention(q, k, v, causal=True)
    late = jd.attention(q[:, :, 13:], k, v, causal=True, past=13)
    np.testing.assert_allclose(late, whole[:, :, 13:], rtol=1e-5, atol=1e-6)


def test_out_is_blended() -> None:
    q, k, v = (x.detach().numpy() for x in arrays(1, 1, 1, 4, 6, 8, 8))
    out = np.full((1, 1, 4, 8), 3.0, np.float32)
    result, lse = jd.attention(q, k, v, alpha=2.0, beta=-1.0, out=(out, None), return_lse=True)
    assert result is out
    plain, plain_lse = jd.attention(q, k, v, return_lse=True)
    np.testing.assert_allclose(out, 2 * plain - 3, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(lse, plain_lse)


def test_errors() -> None:
    q, k, v = (x.detach().numpy() for x in arrays(2, 4, 2, 5, 7, 8, 8))
    with pytest.raises(InvalidShape, match="batch, heads, length, size"):
        jd.attention(q[0], k, v)
    with pytest.raises(InvalidShape, match=r"k has shape \(2, 2, 7, 5\)"):
        jd.attention(q, k[..., :5], v)
    with pytest.raises(InvalidArgument, match="multiple"):
        jd.attention(q[:, :3], k, v)
    with pytest.raises(InvalidShape, match="mask"):
        jd.attention(q, k, v, mask=np.ones((5, 6), bool))
    with pytest.raises(InvalidType, match="mask is i32"):
        jd.attention(q, k, v, mask=np.ones((5, 7), np.int32))
    with pytest.raises(InvalidType, match="lengths is f32"):
        jd.attention(q, k, v, lengths=np.ones(2, np.float32))
    with pytest.raises(InvalidArgument, match="left is -1"):
        jd.attention(q, k, v, window=(-1, None))
    with pytest.raises(InvalidArgument, match="window is"):
        jd.attention(q, k, v, window=(1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="finite"):
        jd.attention(q, k, v, scale=float("nan"))
    with pytest.raises(NotSupported, match="dropout"):
        jd.attention(q, k, v, dropout=0.1)
    with pytest.raises(InvalidArgument, match="shares memory"):
        jd.attention(q, k, v, out=q)
