"""Multi-head attention over arrays on GPUs: as in host memory, where other tests hold it against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.errors import InvalidShape

HEADS = 2


def arrays(biased: bool) -> dict[str, Any]:
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    found = {"wq": normal(6, 5), "wk": normal(6, 4), "wv": normal(8, 3), "wo": normal(7, 8)}
    if biased:
        found |= {"bq": normal(6), "bk": normal(6), "bv": normal(8), "bo": normal(7)}
    return found | {"q": normal(3, 9, 5), "k": normal(3, 11, 4), "v": normal(3, 11, 3), "dy": normal(3, 9, 7)}


@pytest.mark.parametrize("biased", [True, False])
def test_as_in_host_memory(device: Any, biased: bool) -> None:
    host = arrays(biased)
    there = {name: jd.to_device(x, device.target) for name, x in host.items()}
    lengths = np.array([11, 4, 0], np.int32)
    results = []
    for given, ends in ((host, lengths), (there, jd.to_device(lengths, device.target))):
        rest = dict(given)
        q, k, v, dy = (rest.pop(name) for name in ("q", "k", "v", "dy"))
        y, saved = jd.multi_head_attention(q, k, v, HEADS, lengths=ends, return_saved=True, **rest)
        found = jd.multi_head_attention_backward(dy, q, k, v, saved, HEADS, lengths=ends, **rest)
        results.append([y, *(x for x in found if x is not None)])
    assert len(results[0]) == len(results[1])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(np.asarray(other), one, rtol=2e-4, atol=2e-4)


def test_without_projections(device: Any) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((2, 5, 8)).astype(np.float32)
    there = jd.to_device(np.ascontiguousarray(x.transpose(1, 0, 2)), device.target).transpose(1, 0, 2)
    y, saved = jd.multi_head_attention(there, there, there, 4, causal=True, return_saved=True)
    expected, kept = jd.multi_head_attention(x, x, x, 4, causal=True, return_saved=True)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    found = jd.multi_head_attention_backward(there, there, there, there, saved, 4, causal=True)
    wanted = jd.multi_head_attention_backward(x, x, x, x, kept, 4, causal=True)
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(getattr(found, name).numpy(), getattr(wanted, name), rtol=1e-3, atol=1e-4)
    with pytest.raises(InvalidShape, match="features"):
        jd.multi_head_attention(there[0], there, there, 4)
