"""`torch.nn.functional.scaled_dot_product_attention` by ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, is_taken
from jitdnn.ops.attention import attention, attention_backward


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    causal, scale, _ = settings
    q, k, v, mask = tensors
    found = attention(q, k, v, mask, causal, scale, return_lse=is_training, handle=handle)
    return ((found[0],), (found[1],)) if is_training else ((found,), ())


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    causal, scale, _ = settings
    q, k, v, mask = tensors
    given = (grads[0], q, k, v, outputs[0], saved[0], mask)
    return (*attention_backward(*given, causal=causal, scale=scale, handle=handle), None)


def _stock(settings: Any, tensors: Any) -> Any:
    causal, scale, is_grouped = settings
    q, k, v, mask = tensors
    more = {"enable_gqa": True} if is_grouped else {}
    # the one of torch's ways that has second derivatives
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return (F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, **more),)


_EAGER = Eager(_forward, _backward, _stock)


def route(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *, options: str = "",
) -> Any:  # fmt: skip
    """Of tensors (N, H, T, D) without dropout, with a mask that wants no gradient.

    On a GPU torch's own kernels are left to it: of cuDNN's and its flash ones each is faster (docs/performance_gpu.md).
    """
    if (
        query.is_cuda
        or dropout_p
        or not query.dim() == key.dim() == value.dim() == 4
        or not is_taken(query, key, value)
    ):
        return NotImplemented
    heads, groups = query.shape[1], key.shape[1]
    is_one = query.shape[0] == key.shape[0] == value.shape[0] and value.shape[1] == groups
    if not is_one or key.shape[2] != value.shape[2] or query.shape[3] != key.shape[3]:
        return NotImplemented
    if heads != groups and (not enable_gqa or heads % groups):
        return NotImplemented
    if attn_mask is not None:
        if is_causal or attn_mask.requires_grad or attn_mask.dtype not in (torch.bool, query.dtype):
            return NotImplemented
        if type(attn_mask) is not Tensor or attn_mask.device != query.device or attn_mask.dim() > 4:
            return NotImplemented
    return _EAGER(options, (is_causal, scale, enable_gqa), query, key, value, attn_mask)[0]
