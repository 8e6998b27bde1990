"""Cross-entropy of scores, and its gradient, over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import MOST_INDEX, flag, integer, integer_number, real, settled_before, text, word
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order
from jitdnn.problems.cross_entropy import REDUCTIONS, CrossEntropy
from jitdnn.tensor import REAL_DTYPES, TensorDescriptor, borrow


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    return_saved: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * loss + beta * out, the cross-entropy of softmax(x) over axis 1 against `target`.

    `x`: (N, C) or (N, C, space) in float16, bfloat16, float32 or float64, of any strides. `target`: classes 0 to C - 1
    as (N, space) in int64, int32 or uint8, where rows of `ignore_index` count for nothing; or probabilities of x's
    shape and type. `weight`: (C,) of x's type, None for 1 everywhere. `label_smoothing`: the share, 0 to 1, that is
    spread evenly over all classes. `reduction`: "mean" (over classes: divided by the sum of the weights of the targets
    that count, NaN if none does; over probabilities: by the number of rows), "sum", both of shape (1,), or "none", of
    shape (N, space). `jitdnn.problems.cross_entropy` has the formulas.

    With `return_saved` returns (loss, lse), or (loss, lse, total) for the mean over classes: what
    `cross_entropy_backward` needs. `out` is then a tuple of as many, with None for those to be allocated.

    Raises InvalidShape and InvalidType for what does not fit, InvalidArgument for a class that there is not.
    """
    has_classes = _check_classes(x, target, ignore_index)
    return_saved = return_saved is not False and flag(return_saved, "return_saved")
    given = () if weight is None else (weight,)
    names = ("x", "target", "weight")[: 2 + len(given)]
    results = 1 if not return_saved else 3 if has_classes and text(reduction, "reduction") == "mean" else 2
    arguments = (reduction, ignore_index, label_smoothing, results)
    return call(_FORWARD, names, (x, target, *given), arguments, out, alpha, beta, handle, results=results)


def cross_entropy_backward(
    dloss: Any,
    x: Any,
    target: Any,
    lse: Any,
    total: Any = None,
    weight: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `cross_entropy` with respect to x) + beta * out, in x's order in memory.

    `dloss` is the gradient of the loss: (1,), or (N, space) for "none". `lse` and `total` are what
    `cross_entropy(..., return_saved=True)` gave for the same arguments. `out` may be x itself. Raises as it does.
    """
    has_classes = _check_classes(x, target, ignore_index)
    is_mean = has_classes and text(reduction, "reduction") == "mean"
    if is_mean != (total is not None):
        raise InvalidArgument(
            "total is missing: the mean over classes was divided by it; cross_entropy(..., return_saved=True) gives it"
            if is_mean
            else "total is given: only the mean over classes has one"
        )
    named = [("dloss", dloss), ("x", x), ("target", target)]
    named += [("weight", weight)] if weight is not None else []
    named += [("lse", lse)] + ([("total", total)] if total is not None else [])
    names, arrays = zip(*named, strict=True)  # one that must be there and is None is refused by its name
    arguments = (reduction, ignore_index, label_smoothing, weight is not None)
    return call(_BACKWARD, names, arrays, arguments, out, alpha, beta, handle)


def _check_classes(x: Any, target: Any, ignore_index: int) -> bool:
    """Whether targets are classes; if so, each must be one of x's, or `ignore_index`. Raises InvalidArgument."""
    integer_number(ignore_index, "ignore_index", most=MOST_INDEX)
    labels = borrow(target, False, "target")
    if labels.descriptor.dtype in REAL_DTYPES:
        return False
    if labels.device_id is not None:
        return True  # the host would have to wait for the GPU
    shape = borrow(x, False, "x").descriptor.shape
    values = labels.numpy()
    if len(shape) < 2 or values.size == 0 or values.dtype.kind not in "iu":
        return True
    classes = shape[1]
    # a negative number is a large one without its sign: one look is enough where all are classes
    if int(values.view(f"u{values.itemsize}").max()) < classes:
        return True
    wrong = values[(values != ignore_index) & ((values < 0) | (values >= classes))]
    if wrong.size:
        raise InvalidArgument(
            f"target has class {wrong.flat[0]} ({wrong.size} such of {values.size}): x has the classes 0 to "
            f"{classes - 1}, and ignore_index is {ignore_index}"
        )
    return True


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: Any,
    reduction: str,
    ignore_index: int,
    smoothing: float,
    results: int,
) -> Recipe:
    x, target, *rest = inputs
    loss, lse, total = (*(out if results > 1 else (out,)), None, None)[:3]
    return Recipe(
        CrossEntropy.make(
            "fwd", x, target, reduction, rest[0] if rest else None, ignore_index, smoothing, loss=loss,
            lse=lse or (True if results > 1 else None), total=total,
        )
    )  # fmt: skip


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    reduction: str,
    ignore_index: int,
    smoothing: float,
    is_weighted: bool,
) -> Recipe:
    dloss, x, target, *rest = inputs
    weight = rest.pop(0) if is_weighted else None
    lse, total = (*rest, None)[:2]
    assert lse is not None
    return Recipe(
        CrossEntropy.make(
            "bwd", x, target, reduction, weight, ignore_index, smoothing, loss=dloss, lse=lse, total=total,
            dx=out or same_order(x),
        )
    )  # fmt: skip


_TAKES = (
    word("reduction", REDUCTIONS),
    integer("ignore_index", most=MOST_INDEX),
    real("label_smoothing", 0.0, 1.0),
)

_FORWARD = Op(_make_forward, (*_TAKES, settled_before("results")))
_BACKWARD = Op(_make_backward, (*_TAKES, settled_before("is_weighted")), in_place=(1,))
