"""Layer and RMS normalization over anybody's arrays, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import flag, integer, real, settled_before
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call
from jitdnn.ops.normalization import Outs, describe, named, present, results_of
from jitdnn.problems.layer_norm import LayerNorm
from jitdnn.tensor import TensorDescriptor


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    save: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * ((x - mean) * rstd * weight + bias) + beta * out, of x's shape and order in memory.

    `x`: 1 to 8 dimensions, float16, bfloat16, float32 or float64. Mean and variance are those of the elements
    over the axes from `axis` on (-1: the last one); rstd = 1 / sqrt(variance + epsilon), `epsilon` >= 0.
    `weight`, `bias` (None: 1 and 0): of shape `x.shape[axis:]`, float32 (float64 for float64) or of x's dtype.

    With `save` the result is (y, mean, rstd), as `layer_norm_backward` needs them: float32 (float64 for
    float64) with x's rank, 1 for the axes from `axis` on. `out` is then a tuple of three; out for y may be x, and
    float32 where x is float16 or bfloat16.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    names, arrays = present(x=x, weight=weight, bias=bias)
    save = save is not False and flag(save, "save")
    arguments = (names, "layer", axis, epsilon, save)
    return call(_FORWARD, names, arrays, arguments, out, alpha, beta, handle, results=3 if save else 1)


def rms_norm(
    x: Any,
    weight: Any = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    save: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * x * rstd * weight + beta * out, rstd = 1 / sqrt(mean(x^2) + epsilon).

    The mean is that over the axes from `axis` on. With `save` the result is (y, rstd), and `out` a tuple of
    two. The other arguments and the errors are those of `layer_norm`.
    """
    names, arrays = present(x=x, weight=weight)
    save = save is not False and flag(save, "save")
    arguments = (names, "rms", axis, epsilon, save)
    return call(_FORWARD, names, arrays, arguments, out, alpha, beta, handle, results=2 if save else 1)


def layer_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    axis: int = -1,
    wants_bias: bool | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the gradients (dx, dweight, dbias) of `layer_norm`.

    `dy`, `x`: of one shape, dy float32 or of x's dtype; `mean`, `rstd`: what `layer_norm(..., save=True)` returned.
    dweight is None if `weight` is, dbias if `wants_bias` is False (the default is whether there is a weight). All are
    alpha * gradient + beta * what `out`, a tuple of three, holds, None for those to be allocated. dx lies in memory
    as dy does; `out` for dx may be dy. Raises as `layer_norm` does.
    """
    wants_bias = weight is not None if wants_bias is None else flag(wants_bias, "wants_bias")
    names, arrays = present(dy=dy, x=x, weight=weight, mean=mean, rstd=rstd)
    wanted = (True, weight is not None, wants_bias)
    arguments = (names, "layer", axis, wanted)
    return results_of(_BACKWARD, names, arrays, arguments, wanted, out, alpha, beta, handle)


def rms_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    rstd: Any,
    *,
    axis: int = -1,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the gradients (dx, dweight) of `rms_norm`; arguments and errors as for `layer_norm_backward`."""
    names, arrays = present(dy=dy, x=x, weight=weight, rstd=rstd)
    wanted = (True, weight is not None)
    arguments = (names, "rms", axis, wanted)
    return results_of(_BACKWARD, names, arrays, arguments, wanted, out, alpha, beta, handle)


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    outs: Outs,
    names: tuple[str, ...],
    form: str,
    axis: int,
    epsilon: float,
    saves: bool,
) -> Recipe:
    statistics = ("mean", "rstd") if form == "layer" else ("rstd",)
    written = ("y", *statistics) if saves else ("y",)
    given = named(names, inputs) | named(written, outs)
    absent = {"weight", "bias", "mean", "rstd"} - {*names, *written}
    return Recipe(describe(LayerNorm, "fwd", given, absent, form=form, axis=axis, epsilon=epsilon))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    outs: Outs,
    names: tuple[str, ...],
    form: str,
    axis: int,
    wanted: tuple[bool, ...],
) -> Recipe:
    results = ("dx", "dweight", "dbias")
    written = tuple(name for name, wants in zip(results, wanted, strict=False) if wants)
    given = named(names, inputs) | named(written, outs)
    absent = ({*results} - {*written}) | ({"weight"} - {*names})
    return Recipe(describe(LayerNorm, "bwd", given, absent, form=form, axis=axis))


_NAMES, _FORM, _AXIS = settled_before("names"), settled_before("form"), integer("axis")

_FORWARD = Op(
    _make_forward, (_NAMES, _FORM, _AXIS, real("epsilon", 0.0), settled_before("save")), in_place=(0,)
)
_BACKWARD = Op(_make_backward, (_NAMES, _FORM, _AXIS, settled_before("wanted")), in_place=(0,))
