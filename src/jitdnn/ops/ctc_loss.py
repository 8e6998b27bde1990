"""CTC loss and its gradient over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.arguments import integer, integer_number, settled_before, word, yes
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order, whole_array
from jitdnn.ops.fetch import fetched
from jitdnn.ops.to_device import beside
from jitdnn.problems.ctc_loss import INDEX_DTYPES, INPUTS, REDUCTIONS, CtcLoss
from jitdnn.tensor import TensorDescriptor, borrow

_ROUNDING = 16  # labels of the longest of concatenated sequences, so that few kinds of calls are told apart


def ctc_loss(
    x: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    inputs: str = "log_probs",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * loss + beta * out: the connectionist temporal classification loss of x against labels.

    `x`: (T, N, A) in float16, bfloat16, float32 or float64, of any strides; `inputs` says whether these are
    "log_probs" (as PyTorch takes them), "logits" (normalized here: cuDNN's SOFTMAX) or "probs" (cuDNN's NONE).
    `targets`: (N, S) with the labels of each sequence in front, or (sum of lengths,) one after the other;
    `input_lengths`, `target_lengths`: (N,), or sequences of integers. All are int32 or int64; labels are 0 to
    A - 1 and not `blank`. `reduction`: "none" gives (N,); "sum" and "mean" give (1,), the mean being that of the
    losses divided by their numbers of labels (by 1 for none). A sequence too short for its labels has the loss
    infinity, or 0 with `zero_infinity`.

    With x on a GPU labels and lengths may be on the host, from where they are copied, or on that GPU, where nobody
    looks at them: a wrong label makes the loss of its sequence NaN, and lengths count as the nearest that there are.
    The lengths of labels one after the other are read, for which the host waits.

    Raises InvalidShape and InvalidType for what does not fit, InvalidArgument for labels and lengths that there are
    not.
    """
    indices, longest = _checked(x, targets, input_lengths, target_lengths, blank)
    arguments = (reduction, inputs, blank, zero_infinity, longest)
    return call(_FORWARD, _NAMES, (x, *indices), arguments, out, alpha, beta, handle)


def ctc_loss_backward(
    dloss: Any,
    x: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    inputs: str = "log_probs",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * gradient + beta * out, like x: that of `ctc_loss` with the same arguments, given dloss.

    It is the gradient with respect to activations whose softmax the probabilities are, whatever `inputs` says, as
    PyTorch and cuDNN give it: handing it on through a log_softmax leaves it as it is. From the length of its input on
    it is 0; where the loss is infinity it is NaN, or 0 with `zero_infinity`. `dloss`: (1,), or (N,) for "none". The
    result does not depend on the number of threads. Raises as `ctc_loss` does.
    """
    indices, longest = _checked(x, targets, input_lengths, target_lengths, blank)
    arguments = (reduction, inputs, blank, zero_infinity, longest)
    return call(_BACKWARD, ("dloss", *_NAMES), (dloss, x, *indices), arguments, out, alpha, beta, handle)


_NAMES = ("x", "targets", "input_lengths", "target_lengths")


def _checked(
    x: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int
) -> tuple[tuple[Any, Any, Any], int]:
    """Targets and lengths as arrays, and the labels to make room for. Raises InvalidArgument for wrong numbers."""
    blank = integer_number(blank, "blank")
    shape = borrow(x, False, "x").descriptor.shape
    if len(shape) != 3:
        raise InvalidShape(f"x has shape {shape}: it must be (T, N, A)")
    times, n, symbols = shape
    given, arrays = [], []
    for name, value in zip(_NAMES[1:], (targets, input_lengths, target_lengths), strict=True):
        value = whole_array(value, name)
        array = borrow(value, False, name)
        if array.descriptor.dtype not in INDEX_DTYPES:
            raise InvalidType(f"{name} is {array.descriptor.dtype}: it must be i64 or i32 (int64 or int32)")
        given.append(value)
        arrays.append(array)
    for name, array in zip(_NAMES[2:], arrays[1:], strict=True):
        if array.descriptor.shape != (n,):
            raise InvalidShape(f"{name} has shape {array.descriptor.shape}: with x {shape} it must be ({n},)")
    extents = arrays[0].descriptor.shape
    if len(extents) not in (1, 2) or (len(extents) == 2 and extents[0] != n):
        raise InvalidShape(f"targets has shape {extents}: it must be ({n}, S), or all labels in one dim")
    labels, times_of, counts = (array.numpy() if array.device_id is None else None for array in arrays)
    if counts is None and len(extents) == 1:
        counts = fetched(arrays[2])
    if times_of is not None:
        _check_range("input_lengths", times_of, times)
    if counts is not None:
        _check_range("target_lengths", counts, extents[-1])
        if len(extents) == 1 and int(counts.sum()) > extents[0]:
            raise InvalidArgument(
                f"target_lengths add up to {counts.sum()}, and targets has {extents[0]} labels"
            )
        if labels is not None:
            _check_labels(labels, counts, symbols, blank)
    longest = extents[-1]
    if len(extents) == 1:
        assert counts is not None
        longest = -(-int(counts.max(initial=0)) // _ROUNDING) * _ROUNDING
    first, second, third = (
        value if array.device_id is not None else beside(array.numpy(), x)
        for value, array in zip(given, arrays, strict=True)
    )
    return (first, second, third), longest


def _check_labels(labels: Any, counts: Any, symbols: int, blank: int) -> None:
    if labels.ndim == 1:
        used = labels[: int(counts.sum())]
    else:
        used = labels[np.arange(labels.shape[1]) < counts[:, None]]
    wrong = used[(used < 0) | (used >= symbols) | (used == blank)]
    if wrong.size:
        raise InvalidArgument(
            f"targets has label {wrong[0]}: labels are 0 to {symbols - 1}, the symbols of x, without the blank {blank}"
        )


def _check_range(name: str, lengths: Any, most: int) -> None:
    wrong = lengths[(lengths < 0) | (lengths > most)]
    if wrong.size:
        raise InvalidArgument(f"{name} has {wrong[0]}: lengths are 0 to {most} here")


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    reduction: str,
    kind: str,
    blank: int,
    zero_infinity: bool,
    longest: int,
) -> Recipe:
    x, targets, times, counts = inputs
    return Recipe(
        CtcLoss.make(
            "fwd", x, targets, reduction, kind, blank, zero_infinity, input_lengths=times, target_lengths=counts,
            loss=out, longest=longest,
        )
    )  # fmt: skip


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    reduction: str,
    kind: str,
    blank: int,
    zero_infinity: bool,
    longest: int,
) -> Recipe:
    dloss, x, targets, times, counts = inputs
    return Recipe(
        CtcLoss.make(
            "bwd", x, targets, reduction, kind, blank, zero_infinity, input_lengths=times, target_lengths=counts,
            loss=dloss, longest=longest, dx=out or same_order(x),
        )
    )  # fmt: skip


_TAKES = (
    word("reduction", REDUCTIONS),
    word("inputs", INPUTS),
    integer("blank", 0),
    yes("zero_infinity"),
    settled_before("longest"),
)

_FORWARD = Op(_make_forward, _TAKES)
_BACKWARD = Op(_make_backward, _TAKES)
