"""Group and instance normalization over anybody's arrays, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import LAYOUT, flag, integer, optional, real, settled_before, word
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical
from jitdnn.ops.normalization import Named, Outs, describe, named, present, results_of
from jitdnn.problems.group_norm import ACTIVATIONS, GroupNorm
from jitdnn.tensor import TensorDescriptor


def group_norm(
    x: Any,
    groups: int | None,
    weight: Any = None,
    bias: Any = None,
    *,
    epsilon: float = 1e-5,
    activation: str = "identity",
    save: bool = False,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * f((x - mean) * rstd * weight + bias) + beta * out, of x's shape and order in memory.

    f is the `activation`: "identity", "relu", "leaky_relu" (0.01 x below 0), "clipped_relu" (up to 6) or "swish".
    `x`: (N, C, up to five axes of space), float16, bfloat16, float32 or float64; `layout="NHWC"` takes and
    gives (N, space, C). Mean and variance are those of C / `groups` neighbouring channels of one image (None:
    of one channel); rstd = 1 / sqrt(variance + epsilon), `epsilon` >= 0. `weight`, `bias` (None: 1 and 0):
    (C,), float32 (float64 for float64) or of x's dtype.

    With `save` the result is (y, mean, rstd), as `group_norm_backward` needs them: (N, groups), float32
    (float64 for float64). `out` is then a tuple of three; out for y may be x, and float32 where x is float16 or
    bfloat16.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    names, arrays = present(x=x, weight=weight, bias=bias)
    save = save is not False and flag(save, "save")
    arguments = (names, groups, epsilon, save, layout, activation)
    return call(_FORWARD, names, arrays, arguments, out, alpha, beta, handle, results=3 if save else 1)


def group_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    groups: int | None,
    bias: Any = None,
    activation: str = "identity",
    wants_bias: bool | None = None,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the gradients (dx, dweight, dbias) of `group_norm`.

    `dy`, `x`: of one shape, dy float32 or of x's dtype; `mean`, `rstd`: what `group_norm(..., save=True)` returned.
    dweight is None if `weight` is, dbias if `wants_bias` is False (the default is whether there is a weight). All are
    alpha * gradient + beta * what `out`, a tuple of three, holds, None for those to be allocated. dx lies in memory
    as dy does; `out` for dx may be dy. With an `activation` `weight` and `bias` are needed, and without one no `bias`.
    Raises as `group_norm` does.
    """
    wants_bias = weight is not None if wants_bias is None else flag(wants_bias, "wants_bias")
    names, arrays = present(dy=dy, x=x, weight=weight, bias=bias, mean=mean, rstd=rstd)
    if bias is not None and activation == "identity":
        raise InvalidArgument("bias is given: a backward pass reads it with an activation alone")
    wanted = (True, weight is not None, wants_bias)
    arguments = (names, groups, wanted, layout, activation)
    return results_of(_BACKWARD, names, arrays, arguments, wanted, out, alpha, beta, handle)


def instance_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    epsilon: float = 1e-5,
    activation: str = "identity",
    save: bool = False,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return `group_norm` with every channel a group of its own: mean and variance over space."""
    return group_norm(
        x, None, weight, bias,
        epsilon=epsilon, activation=activation, save=save, layout=layout, alpha=alpha, beta=beta, out=out,
        handle=handle,
    )  # fmt: skip


def instance_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    bias: Any = None,
    activation: str = "identity",
    wants_bias: bool | None = None,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the gradients (dx, dweight, dbias) of `instance_norm`, as `group_norm_backward` does."""
    return group_norm_backward(
        dy, x, weight, mean, rstd,
        groups=None, bias=bias, activation=activation, wants_bias=wants_bias, layout=layout, alpha=alpha, beta=beta,
        out=out, handle=handle,
    )  # fmt: skip


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    outs: Outs,
    names: tuple[str, ...],
    groups: int | None,
    epsilon: float,
    saves: bool,
    layout: str | None,
    activation: str,
) -> Recipe:
    written = ("y", "mean", "rstd") if saves else ("y",)
    absent = {"weight", "bias", "mean", "rstd"} - {*names, *written}
    given = named(names, inputs) | named(written, outs)
    return _recipe("fwd", given, absent, groups, layout, epsilon=epsilon, activation=activation)


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    outs: Outs,
    names: tuple[str, ...],
    groups: int | None,
    wanted: tuple[bool, ...],
    layout: str | None,
    activation: str,
) -> Recipe:
    results = ("dx", "dweight", "dbias")
    written = tuple(name for name, wants in zip(results, wanted, strict=True) if wants)
    absent = ({*results} - {*written}) | ({"weight", "bias"} - {*names})
    given = named(names, inputs) | named(written, outs)
    return _recipe("bwd", given, absent, groups, layout, activation=activation)


def _recipe(
    direction: str,
    given: Named,
    absent: set[str],
    groups: int | None,
    layout: str | None,
    **attributes: Any,
) -> Recipe:
    for name in ("x", "dy", "y", "dx"):
        tensor = given.get(name)
        if tensor is not None:
            given[name] = logical(tensor, layout)
    x = given["x"]
    assert x is not None
    if groups is None:
        groups = x.shape[1] if len(x.shape) > 1 else 1
    problem = describe(GroupNorm, direction, given, absent, groups=groups, **attributes)
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


_NAMES, _GROUPS = settled_before("names"), optional(integer("groups", 1))
_ACTIVATION = word("activation", ACTIVATIONS)

_FORWARD = Op(
    _make_forward,
    (_NAMES, _GROUPS, real("epsilon", 0.0), settled_before("save"), LAYOUT, _ACTIVATION),
    in_place=(0,),
)
_BACKWARD = Op(
    _make_backward, (_NAMES, _GROUPS, settled_before("wanted"), LAYOUT, _ACTIVATION), in_place=(0,)
)
