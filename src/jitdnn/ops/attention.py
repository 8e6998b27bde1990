"""Scaled dot-product attention and its gradients over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import (
    Argument,
    as_key,
    flag,
    integer,
    integer_number,
    optional,
    real,
    real_number,
    sequence,
    settled_before,
    shown,
    yes,
)
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order
from jitdnn.problems.attention import FARTHEST, Attention
from jitdnn.tensor import TensorDescriptor, packed_strides

Window = tuple[int | None, int | None]
_OPTIONAL = ("mask", "lengths", "lo", "hi")


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    past: int = 0,
    window: Window = (None, None),
    lengths: Any = None,
    lo: Any = None,
    hi: Any = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * softmax(scale * q k^T + mask) v + beta * out, without ever storing the scores.

    `q`: (N, H, T, D), `k`: (N, G, S, D), `v`: (N, G, S, E), in float16, bfloat16, float32 or float64, of any
    strides: arrays of order (N, T, H, D) come as transposed views. y is (N, H, T, E), in q's order in memory. H is a
    multiple of G: each key head serves H / G query heads that follow each other. `scale` is 1 / sqrt(D) if None.

    Who sees what: query t sees all keys s but for those that are taken away by
      - `mask`, broadcast to (N, H, T, S): of bools, False hides; of q's type, it is added to the scores;
      - `causal`: keys after the query's own place, which is `past` + t (keys of earlier calls come first);
      - `window` (left, right): keys more than so many places before or after its own place; None: no bound;
      - `lengths` (N,), int32 or int64: keys from that number on, the padding of each sequence, which is not read;
      - `lo`, `hi` (T,), int32 or int64: keys outside of lo[t] <= s < hi[t].
    A query that sees nothing gives zeros. Keys that are hidden from some queries only must be finite numbers.

    `return_lse` returns (y, lse): the logarithm of the sum of the exponentials of each query's scores, (N, H, T) in
    float32 (float64 for float64), -inf where nothing is seen. `attention_backward` needs it. `out` is then a tuple of
    two, either of them None. `dropout` of the weights is refused if not 0.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit, NotSupported.
    """
    _refuse_dropout(dropout)
    given, arrays = _given(mask, lengths, lo, hi)
    return_lse = return_lse is not False and flag(return_lse, "return_lse")
    arguments = (given, causal, scale, past, as_key(window), return_lse)
    names, count = ("q", "k", "v", *given), 2 if return_lse else 1
    return call(_FORWARD, names, (q, k, v, *arrays), arguments, out, alpha, beta, handle, results=count)


def attention_backward(
    dy: Any,
    q: Any,
    k: Any,
    v: Any,
    y: Any,
    lse: Any,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    past: int = 0,
    window: Window = (None, None),
    lengths: Any = None,
    lo: Any = None,
    hi: Any = None,
    dropout: float = 0.0,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return (dq, dk, dv) = alpha * (the gradients of `attention`) + beta * out, each like q, k, v.

    `y` and `lse` are what `attention(..., return_lse=True)` gave (with alpha 1 and beta 0) for the same arguments.
    The result is the same bit by bit from run to run, with any number of threads. The mask gets no gradient. `out` is
    a tuple of three, any of them None. Raises as `attention` does.
    """
    _refuse_dropout(dropout)
    given, arrays = _given(mask, lengths, lo, hi)
    arguments = (given, causal, scale, past, as_key(window))
    names = ("dy", "q", "k", "v", "y", "lse", *given)
    return call(
        _BACKWARD, names, (dy, q, k, v, y, lse, *arrays), arguments, out, alpha, beta, handle, results=3
    )


def _refuse_dropout(dropout: float) -> None:
    if (type(dropout) is not float or dropout) and real_number(dropout, "dropout", 0.0, 1.0) != 0.0:
        raise NotSupported(
            f"dropout is {dropout}: attention drops no weights; drop elements of its result with jd.dropout",
        )


def _given(*optional: Any) -> tuple[tuple[str, ...], list[Any]]:
    """The names of the optional arrays that are there, and the arrays."""
    pairs = [(name, x) for name, x in zip(_OPTIONAL, optional, strict=True) if x is not None]
    return tuple(name for name, _ in pairs), [x for _, x in pairs]


def _fields(
    q: TensorDescriptor,
    k: TensorDescriptor,
    inputs: Sequence[TensorDescriptor],
    given: Sequence[str],
    causal: bool,
    past: int,
    window: Window,
) -> dict[str, Any]:
    """The fields of the problem that say who sees what."""
    left, right = window
    if causal:
        right = min(right or 0, 0)
    fields: dict[str, Any] = {"left": left, "right": right, "past": past}
    for name, descriptor in zip(given, inputs, strict=True):
        if name == "mask" and len(q.shape) == len(k.shape) == 4:
            try:
                descriptor = descriptor.broadcast_to((*q.shape[:3], k.shape[2]))
            except InvalidShape as error:
                raise InvalidShape(f"mask: {error}") from None
        fields[name] = descriptor
    return fields


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: Any,
    given: Sequence[str],
    causal: bool,
    scale: float | None,
    past: int,
    window: Window,
    is_saved: bool,
) -> Recipe:
    q, k, v, *rest = inputs
    y, lse = out if is_saved else (out, None)
    fields = _fields(q, k, rest, given, causal, past, window)
    if y is None and len(q.shape) == len(v.shape) == 4:
        shape = (*q.shape[:3], v.shape[3])
        y = TensorDescriptor(shape, packed_strides(shape, q.order), q.dtype)
    saved = (lse or True) if is_saved else None
    return Recipe(Attention.make("fwd", q, k, v, scale=scale, y=y, lse=saved, **fields))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: Sequence[TensorDescriptor | None],
    given: Sequence[str],
    causal: bool,
    scale: float | None,
    past: int,
    window: Window,
) -> Recipe:
    dy, q, k, v, y, lse, *rest = inputs
    fields = _fields(q, k, rest, given, causal, past, window)
    for name, own, like in zip(("dq", "dk", "dv"), out, (q, k, v), strict=True):
        fields[name] = own or same_order(like)
    return Recipe(Attention.make("bwd", q, k, v, scale=scale, y=y, lse=lse, dy=dy, **fields))


def _window(value: Any, name: str) -> Window:
    entries = sequence(value, name, 2)
    if len(entries) != 2:
        raise InvalidArgument(
            f"{name} is {shown(value)}: it must be two numbers, (left, right), either of them None"
        )
    left, right = (
        None if places is None else integer_number(places, name, most=FARTHEST) for places in entries
    )
    return left, right


_TAKES = (
    settled_before("given"),
    yes("causal"),
    optional(real("scale")),
    integer("past", most=FARTHEST),
    Argument("window", _window),
)

_FORWARD = Op(_make_forward, (*_TAKES, settled_before("return_lse")))
_BACKWARD = Op(_make_backward, _TAKES)
