"""Multi-head attention with its projections: products of matrices around `attention`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.arguments import flag, integer_number, shown
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, NotSupported
from jitdnn.handle import Handle
from jitdnn.ops.attention import Window, attention, attention_backward
from jitdnn.ops.call import require_room
from jitdnn.ops.matmul import matmul
from jitdnn.ops.reduce import reduce
from jitdnn.ops.transform import transform
from jitdnn.tensor import Array, TensorDescriptor, borrow, empty, maker_of


class MultiHeadSaved(NamedTuple):
    """What the gradients need of the forward pass: projected q, k, v (N, length, heads * size), the result of the heads
    before the last projection, and lse (N, H, T). On a GPU arrays of the library of q, else NumPy's."""

    q: Any
    k: Any
    v: Any
    y: Any
    lse: Any


class MultiHeadGradients(NamedTuple):
    """The gradients of `multi_head_attention`, of the shapes of what they belong to; None where there was nothing."""

    q: Any
    k: Any
    v: Any
    wq: Any
    wk: Any
    wv: Any
    wo: Any
    bq: Any
    bk: Any
    bv: Any
    bo: Any


def multi_head_attention(
    q: Any,
    k: Any,
    v: Any,
    heads: int,
    wq: Any = None,
    wk: Any = None,
    wv: Any = None,
    wo: Any = None,
    bq: Any = None,
    bk: Any = None,
    bv: Any = None,
    bo: Any = None,
    key_heads: int | None = None,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    past: int = 0,
    window: Window = (None, None),
    lengths: Any = None,
    lo: Any = None,
    hi: Any = None,
    return_saved: bool = False,
    handle: Handle | None = None,
) -> Any:
    """Return y (N, T, size of the output): q, k, v are projected, attend head by head, and are projected together.

    `q`: (N, T, Cq), `k`: (N, S, Ck), `v`: (N, S, Cv). Weights are (out, in), as PyTorch's: `wq` (heads * D, Cq), `wk`
    (key_heads * D, Ck), `wv` (key_heads * E, Cv), `wo` (size, heads * E); None leaves a projection out, and then the
    features are the heads side by side. Biases (out,) belong to a weight. `key_heads` is `heads` if None. The other
    arguments are those of `attention`; a mask is broadcast to (N, heads, T, S).

    `return_saved` returns (y, `MultiHeadSaved`), for `multi_head_attention_backward`. Everything is computed from
    products of matrices and `attention`, in the type of the arrays.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    is_saved = flag(return_saved, "return_saved")
    like = borrow(q, False, "q")
    arrays = [_rows(x, name, handle) for name, x in (("q", q), ("k", k), ("v", v))]
    own_q, own_k, own_v = (
        _project(x, w, b, name, handle)
        for name, x, w, b in zip("qkv", arrays, (wq, wk, wv), (bq, bk, bv), strict=True)
    )
    counts = _head_counts(heads, key_heads)
    views: Any = [_heads(x, n, name) for x, n, name in zip((own_q, own_k, own_v), counts, "qkv", strict=True)]
    options = _options(mask, causal, scale, past, window, lengths, lo, hi, handle)
    result, lse = attention(views[0], views[1], views[2], return_lse=True, **options)
    joined = _joined(result)
    features = joined.shape[2] if wo is None else _features(wo, "wo")
    owner = _made(
        like,
        (*joined.shape[:2], features),
        lambda out: _project(joined, wo, bo, "o", handle, out, is_kept=True),
    )
    return (owner, MultiHeadSaved(own_q, own_k, own_v, joined, lse)) if is_saved else owner


def multi_head_attention_backward(
    dy: Any,
    q: Any,
    k: Any,
    v: Any,
    saved: MultiHeadSaved,
    heads: int,
    wq: Any = None,
    wk: Any = None,
    wv: Any = None,
    wo: Any = None,
    bq: Any = None,
    bk: Any = None,
    bv: Any = None,
    bo: Any = None,
    key_heads: int | None = None,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    past: int = 0,
    window: Window = (None, None),
    lengths: Any = None,
    lo: Any = None,
    hi: Any = None,
    handle: Handle | None = None,
) -> MultiHeadGradients:
    """Return `MultiHeadGradients` of `multi_head_attention`, called with the same arguments and `return_saved`.

    Of the biases only whether they are there counts. Raises as it does.
    """
    if not isinstance(saved, MultiHeadSaved):
        raise InvalidType(
            f"saved is {shown(saved)}: it must be the MultiHeadSaved that the forward call returned"
        )
    slope = _rows(dy, "dy", handle)
    gradients: dict[str, Any] = dict.fromkeys(MultiHeadGradients._fields)
    inner = _project_backward(
        gradients, "o", slope, saved.y, wo, bo, borrow(dy, False, "dy"), handle, is_inner=True
    )
    counts = _head_counts(heads, key_heads)
    dy_heads, y_heads = _heads(inner, heads, "dy"), _heads(saved.y, heads, "y")
    views = [_heads(x, n, name) for x, n, name in zip(saved[:3], counts, "qkv", strict=True)]
    options = _options(mask, causal, scale, past, window, lengths, lo, hi, handle)
    found = attention_backward(dy_heads, views[0], views[1], views[2], y_heads, saved.lse, **options)
    for name, x, w, b, gradient in zip("qkv", (q, k, v), (wq, wk, wv), (bq, bk, bv), found, strict=True):
        like = borrow(x, False, name)
        rows = _rows(x, name, handle)
        gradients[name] = _project_backward(gradients, name, _joined(gradient), rows, w, b, like, handle)
    return MultiHeadGradients(**gradients)


def _options(
    mask: Any, causal: bool, scale: float | None, past: int, window: Window, lengths: Any, lo: Any, hi: Any,
    handle: Handle | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "mask": mask, "causal": causal, "scale": scale, "past": past, "window": window, "lengths": lengths,
        "lo": lo, "hi": hi, "handle": handle,
    }  # fmt: skip


def _head_counts(heads: int, key_heads: int | None) -> tuple[int, int, int]:
    key_heads = heads if key_heads is None else key_heads
    for name, count in (("heads", heads), ("key_heads", key_heads)):
        integer_number(count, name, 1)
    return heads, key_heads, key_heads


def _seen(x: Any, name: str) -> Any:
    """An array as NumPy sees it, or, on a GPU, as it is."""
    array = borrow(x, False, name)
    if array.device_id is None:
        return array.numpy()
    if not hasattr(x, "reshape") or not (hasattr(x, "permute") or hasattr(x, "transpose")):
        raise NotSupported(
            f"{name} is a {type(x).__name__} on a GPU: multi-head attention looks at arrays by reshape and "
            "transpose, as PyTorch's, CuPy's and jitdnn's have"
        )
    return x


def _turned(x: Any, axes: tuple[int, ...]) -> Any:
    """A view with its axes in another order."""
    return x.permute(axes) if hasattr(x, "permute") else x.transpose(axes)


def _rows(x: Any, name: str, handle: Handle | None) -> Any:
    """A dense array of three dims, so that its rows can be joined."""
    array = _seen(x, name)
    if len(array.shape) != 3:
        raise InvalidShape(f"{name} has shape {tuple(array.shape)}: it must be (N, length, features)")
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array)
    own = borrow(array, False, name)
    if own.descriptor == TensorDescriptor.packed(own.descriptor.shape, own.descriptor.dtype):
        return array
    return transform(array, "nchw", handle=handle)


def _matrix(w: Any, name: str) -> Any:
    array = _seen(w, name)
    if len(array.shape) != 2:
        raise InvalidShape(f"{name} has shape {tuple(array.shape)}: it must be (features out, features in)")
    return array


def _features(w: Any, name: str) -> int:
    return int(_matrix(w, name).shape[0])


def _heads(x: Any, heads: int, name: str) -> Any:
    """(N, length, heads * size) seen as (N, heads, length, size)."""
    n, length, features = x.shape
    if features % heads:
        raise InvalidArgument(
            f"{name} has {features} features after its projection: {heads} heads do not share them"
        )
    return _turned(x.reshape(n, length, heads, features // heads), (0, 2, 1, 3))


def _joined(x: Any) -> Any:
    """The other way round; the result of attention lies in memory as q does, so that nothing is copied."""
    n, heads, length, size = x.shape
    return _turned(x, (0, 2, 1, 3)).reshape(n, length, heads * size)


def _made(like: Array, shape: Sequence[int], compute: Callable[[Any], Any]) -> Any:
    """What `compute` puts into memory of the library of `like`; on a GPU, what it returns, which is of it."""
    if like.device_id is not None:
        return compute(None)
    require_room([("a result", TensorDescriptor.packed(shape, like.descriptor.dtype))])
    owner, array = empty(like, tuple(shape), like.descriptor.dtype)
    compute(array.numpy())
    make = maker_of(like.library)
    return make(owner) if make is not None and isinstance(owner, np.ndarray) else owner


def _flat(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


def _project(
    x: Any, w: Any, b: Any, name: str, handle: Handle | None, out: Any = None, is_kept: bool = False
) -> Any:
    """x w^T + b, in `out` if it is given; where there is no weight x itself, or if `is_kept` a copy."""
    if w is None:
        if b is not None:
            raise InvalidArgument(f"b{name} is given without w{name}: a bias belongs to a projection")
        return transform(x, out=out, handle=handle) if is_kept or out is not None else x
    weight = _matrix(w, f"w{name}")
    if weight.shape[1] != x.shape[2]:
        raise InvalidShape(
            f"w{name} has shape {tuple(weight.shape)}: it must take the {x.shape[2]} features of {name}, "
            f"(out, {x.shape[2]})"
        )
    operands = []
    if b is not None:
        bias = _seen(b, f"b{name}")
        if tuple(bias.shape) != tuple(weight.shape[:1]):
            raise InvalidShape(
                f"b{name} has shape {tuple(bias.shape)}: it must be {tuple(weight.shape[:1])}, as w{name} says"
            )
        operands.append(bias)
    target = None if out is None else _flat(out)
    made = matmul(_flat(x), _turned(weight, (1, 0)), operands=operands, out=target, handle=handle)
    return made.reshape(*x.shape[:2], weight.shape[0])


def _project_backward(
    gradients: dict[str, Any], name: str, slope: Any, x: Any, w: Any, b: Any, like: Array,
    handle: Handle | None, is_inner: bool = False,
) -> Any:  # fmt: skip
    """The gradient of x, where slope is that of its projection; those of weight and bias go to ``gradients``."""
    rows = _flat(slope)
    if b is not None:
        gradients[f"b{name}"] = _made(
            borrow(b, False, f"b{name}"),
            slope.shape[2:],
            lambda out: reduce(rows, "add", axes=0, out=out, handle=handle),
        )
    if w is None:
        if is_inner:
            return slope
        return _made(like, slope.shape, lambda out: transform(slope, out=out, handle=handle))
    weight = _matrix(w, f"w{name}")
    gradients[f"w{name}"] = _made(
        borrow(w, False, f"w{name}"),
        weight.shape,
        lambda out: matmul(_turned(rows, (1, 0)), _flat(x), out=out, handle=handle),
    )
    if is_inner:
        return matmul(rows, weight, handle=handle).reshape(*x.shape)

    def multiplied(out: Any) -> Any:
        target = None if out is None else _flat(out)
        return matmul(rows, weight, out=target, handle=handle).reshape(*x.shape)

    return _made(like, x.shape, multiplied)
