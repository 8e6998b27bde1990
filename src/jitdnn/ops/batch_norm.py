"""Batch normalization over anybody's arrays: training, inference and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import LAYOUT, flag, real, settled_before, text, word
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical
from jitdnn.ops.normalization import Named, Outs, describe, named, present, results_of
from jitdnn.problems.batch_norm import ACTIVATIONS, MODES, BatchNorm
from jitdnn.tensor import TensorDescriptor


def batch_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    mode: str = "spatial",
    factor: float = 0.1,
    epsilon: float = 1e-5,
    z: Any = None,
    activation: str = "identity",
    save: bool = False,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * act((x - mean) * rstd * weight + bias + z) + beta * out with x's own statistics.

    `x`: (N, C, any space), float16, bfloat16, float32 or float64; `layout="NHWC"` takes and gives (N, space,
    C). `mode`: "spatial", one mean for each channel, or "per_activation", one for each element of (C, space).
    `weight`, `bias` (None: 1 and 0), `running_mean`, `running_var` (both or none, updated in place): of shape
    (C,) or (C, space), float32 (float64 for float64) or of x's dtype. The running statistics become (1 -
    `factor`) * old + `factor` * new, the variance being that without bias, the sum of squares by m - 1; factor
    = 1 / (1 + i) in call i makes them the average of all calls, and with 1 the old ones are not read.
    `epsilon` >= 0 is added to the variance, which divides by m. `z`, of x's shape, is added before the
    `activation`: "identity", "relu", "sigmoid", "tanh", "clipped_relu" (up to 6) or "swish".

    With `save` the result is (y, mean, rstd), as `batch_norm_backward` needs them: rstd = 1 / sqrt(variance +
    epsilon), both float32 (float64 for float64). `out` is then a tuple of three; out for y may be x or z itself.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    names, arrays = present(x=x, z=z, weight=weight, bias=bias)
    states = [state for state in (running_mean, running_var) if state is not None]
    if len(states) == 1:
        raise InvalidArgument("running_mean and running_var: give both or none")
    save = save is not False and flag(save, "save")
    arguments = (names, mode, activation, factor, epsilon, save, bool(states), layout)
    results = 3 if save else 1
    return call(_FORWARD, names, arrays, arguments, out, alpha, beta, handle, results=results, states=states)


def batch_norm_inference(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    mode: str = "spatial",
    epsilon: float = 1e-5,
    z: Any = None,
    activation: str = "identity",
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * act((x - running_mean) / sqrt(running_var + epsilon) * weight + bias + z) + beta * out.

    Arguments and errors as for `batch_norm`; `running_mean` and `running_var` are needed, and only read. `out`
    may be x or z itself.
    """
    if running_mean is None or running_var is None:
        raise InvalidArgument("batch_norm_inference needs running_mean and running_var")
    names, arrays = present(
        x=x, z=z, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var
    )
    arguments = (names, mode, activation, epsilon, layout)
    return call(_INFERENCE, names, arrays, arguments, out, alpha, beta, handle)


def batch_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    y: Any = None,
    bias: Any = None,
    mode: str = "spatial",
    activation: str = "identity",
    wants_bias: bool | None = None,
    wants_z: bool = False,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the gradients (dx, dweight, dbias) of `batch_norm`, and dz as the fourth if `wants_z`.

    `dy`, `x`: of one shape; `mean`, `rstd`: what `batch_norm(..., save=True)` returned. `y`, what it returned,
    is needed if there is an activation, or in its place `bias`, with which y is computed anew: that needs a
    weight, and that there was no z, and is the only way for "swish". dweight is None if `weight` is, dbias if
    `wants_bias` is False (the default is whether there is a weight). All are alpha * gradient + beta * what
    `out`, a tuple of as many, holds, None for those to be allocated. dx lies in memory as dy does; `out` for dx
    may be dy.

    Raises as `batch_norm` does.
    """
    count = (y is not None) + (bias is not None)
    if (text(activation, "activation") != "identity") != count:
        if not count:
            what = "y is needed, or bias in its place: the slope of the activation follows from it"
        elif count == 2 and activation != "identity":
            what = "y and bias are given, and one of them is needed"
        else:
            what = f"{'bias' if y is None else 'y'} is of no use"
        raise InvalidArgument(f"activation is {activation!r}: {what}")
    wants_bias = weight is not None if wants_bias is None else flag(wants_bias, "wants_bias")
    names, arrays = present(dy=dy, x=x, y=y, weight=weight, bias=bias, mean=mean, rstd=rstd)
    wanted = (True, weight is not None, wants_bias, *([True] if flag(wants_z, "wants_z") else []))
    arguments = (names, mode, activation, wanted, layout)
    return results_of(_BACKWARD, names, arrays, arguments, wanted, out, alpha, beta, handle)


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    outs: Outs,
    names: tuple[str, ...],
    mode: str,
    activation: str,
    factor: float,
    epsilon: float,
    saves: bool,
    runs: bool,
    layout: str | None,
) -> Recipe:
    written = ("y", *(("mean", "rstd") if saves else ()), *(("running_mean", "running_var") if runs else ()))
    given = _logical(named(names, inputs) | named(written, outs), layout)
    absent = {"z", "weight", "bias", "mean", "rstd", "running_mean", "running_var"} - {*names, *written}
    problem = describe(
        BatchNorm, "fwd", given, absent, mode=mode, activation=activation, factor=factor, epsilon=epsilon
    )
    return Recipe(problem, None, callers_axes(layout, len(problem.x.shape)))


def _make_inference(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    names: tuple[str, ...],
    mode: str,
    activation: str,
    epsilon: float,
    layout: str | None,
) -> Recipe:
    given = _logical(named(names, inputs) | named(("y",), out), layout)
    absent = {"z", "weight", "bias"} - {*names}
    problem = describe(
        BatchNorm, "inference", given, absent, mode=mode, activation=activation, epsilon=epsilon
    )
    return Recipe(problem, None, callers_axes(layout, len(problem.x.shape)))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    outs: Outs,
    names: tuple[str, ...],
    mode: str,
    activation: str,
    wanted: tuple[bool, ...],
    layout: str | None,
) -> Recipe:
    results = ("dx", "dweight", "dbias", "dz")
    written = tuple(name for name, wants in zip(results, wanted, strict=False) if wants)
    given = _logical(named(names, inputs) | named(written, outs), layout)
    absent = ({*results} - {*written}) | {"weight", "bias"} - {*names}
    saved = "x" if "bias" in names else "y"
    problem = describe(BatchNorm, "bwd", given, absent, mode=mode, activation=activation, saved=saved)
    return Recipe(problem, None, callers_axes(layout, len(problem.x.shape)))


def _logical(given: Named, layout: str | None) -> Named:
    """The tensors of x's shape with their axes as (N, C, space); parameters always have them so."""
    rank = len(given["x"].shape) if given["x"] is not None else 0
    return {
        name: logical(tensor, layout) if tensor is not None and len(tensor.shape) == rank else tensor
        for name, tensor in given.items()
    }


_NAMES, _WHAT = settled_before("names"), (word("mode", MODES), word("activation", ACTIVATIONS))
_EPSILON = real("epsilon", 0.0)

_FORWARD = Op(
    _make_forward,
    (_NAMES, *_WHAT, real("factor"), _EPSILON, settled_before("save"), settled_before("runs"), LAYOUT),
    in_place=(0, 1),
)
_INFERENCE = Op(_make_inference, (_NAMES, *_WHAT, _EPSILON, LAYOUT), in_place=(0, 1))
_BACKWARD = Op(_make_backward, (_NAMES, *_WHAT, settled_before("wanted"), LAYOUT), in_place=(0,))
