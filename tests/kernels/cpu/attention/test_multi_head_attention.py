"""Multi-head attention with projections: against PyTorch's module, and without some of its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.errors import InvalidArgument, InvalidShape

torch = pytest.importorskip("torch")
HEADS, FEATURES = 4, 24


def normal(generator: Any, *shape: int) -> Any:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("is_biased", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_torch_agrees(is_causal: bool, is_biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    module = torch.nn.MultiheadAttention(
        FEATURES, HEADS, bias=is_biased, batch_first=True, dtype=torch.float64
    )
    for parameter in module.parameters():
        parameter.data = normal(generator, *parameter.shape) / 4
    arrays = [normal(generator, 3, 9, FEATURES).requires_grad_() for _ in range(3)]
    q, k, v = arrays
    hidden = torch.triu(torch.ones(9, 9, dtype=torch.bool), 1) if is_causal else None
    expected, _ = module(*arrays, need_weights=False, attn_mask=hidden)
    dy = normal(generator, *expected.shape)
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(expected, [*arrays, *parameters], dy)
    named = dict(module.named_parameters())
    options: dict[str, Any] = dict(
        zip(("wq", "wk", "wv"), named["in_proj_weight"].detach().chunk(3), strict=True)
    )
    options["wo"] = named["out_proj.weight"].detach()
    if is_biased:
        options |= dict(zip(("bq", "bk", "bv"), named["in_proj_bias"].detach().chunk(3), strict=True))
        options["bo"] = named["out_proj.bias"].detach()
    options["causal"] = is_causal
    y, saved = jd.multi_head_attention(q, k, v, HEADS, return_saved=True, **options)
    assert isinstance(y, torch.Tensor)
    torch.testing.assert_close(y, expected.detach())
    torch.testing.assert_close(jd.multi_head_attention(q, k, v, HEADS, **options), y)
    found = jd.multi_head_attention_backward(dy, q, k, v, saved, HEADS, **options)
    by_name = dict(zip(("q", "k", "v", *named), gradients, strict=True))
    ours = {"q": found.q, "k": found.k, "v": found.v, "out_proj.weight": found.wo}
    ours["in_proj_weight"] = torch.cat([found.wq, found.wk, found.wv])
    if is_biased:
        ours |= {"in_proj_bias": torch.cat([found.bq, found.bk, found.bv]), "out_proj.bias": found.bo}
    else:
        assert found.bq is None
    assert ours.keys() == by_name.keys()
    for name, gradient in by_name.items():
        torch.testing.assert_close(ours[name], gradient)


def test_without_projections_it_is_attention() -> None:
    """Grouped heads side by side, nothing around them, results and gradients those of `attention`."""
    rng = np.random.default_rng(0)
    q, dy = (rng.standard_normal((2, 5, 12)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((2, 6, 6)).astype(np.float32) for _ in range(2))
    lengths = np.array([6, 2])

    def apart(x: Any, heads: int) -> Any:
        return x.reshape(*x.shape[:2], heads, 3).transpose(0, 2, 1, 3)

    def together(x: Any) -> Any:
        return x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1)

    views = apart(q, 4), apart(k, 2), apart(v, 2)
    plain, lse = jd.attention(*views, lengths=lengths, return_lse=True)
    y, saved = jd.multi_head_attention(q, k, v, 4, key_heads=2, lengths=lengths, return_saved=True)
    np.testing.assert_array_equal(y, together(plain))
    gradients = jd.attention_backward(apart(dy, 4), *views, plain, lse, lengths=lengths)
    found = jd.multi_head_attention_backward(dy, q, k, v, saved, 4, key_heads=2, lengths=lengths)
    for mine, expected in zip(found[:3], gradients, strict=True):
        np.testing.assert_array_equal(mine, together(expected))
    assert all(gradient is None for gradient in found[3:])


def test_errors() -> None:
    x, w = np.zeros((2, 5, 8), np.float32), np.zeros((12, 8), np.float32)
    with pytest.raises(InvalidShape, match=r"q has shape \(5, 8\)"):
        jd.multi_head_attention(x[0], x, x, 2)
    with pytest.raises(InvalidArgument, match=r"q has 8 features .* 3 heads"):
        jd.multi_head_attention(x, x, x, 3)
    with pytest.raises(InvalidArgument, match="heads is 0"):
        jd.multi_head_attention(x, x, x, 0)
    with pytest.raises(InvalidArgument, match="bq is given without wq"):
        jd.multi_head_attention(x, x, x, 2, bq=w[:, 0])
    with pytest.raises(InvalidShape, match="wq has shape"):
        jd.multi_head_attention(x, x, x, 2, wq=w.T)
    with pytest.raises(InvalidShape, match="bq has shape"):
        jd.multi_head_attention(x, x, x, 2, wq=w, bq=w[0])
    with pytest.raises(InvalidShape, match="k has shape"):
        jd.multi_head_attention(x, x, x, 2, wq=w)
