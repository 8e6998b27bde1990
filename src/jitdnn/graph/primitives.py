"""This package's public names, whose functions take operands as well: then they add a node and return its result.

    from jitdnn.graph import primitives as jd

Over arrays everything is as in `jitdnn` itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import jitdnn
from jitdnn.errors import InvalidShape
from jitdnn.graph.operand import CALCULATED as _CALCULATED
from jitdnn.graph.operand import Operand, Untraceable
from jitdnn.graph.tracer import Tracer, operands_in
from jitdnn.ops.elementwise import ElementwiseKernel
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import dtype_name

_ACTIVATIONS = frozenset({
    "clipped_relu", "elu", "gelu", "hard_sigmoid", "hard_swish", "identity", "leaky_relu", "mish", "relu", "selu",
    "sigmoid", "softplus", "swish", "tanh",
})  # fmt: skip
#: functions of one call of a kernel or a few, without arguments that are written to
_PLAIN = frozenset({
    "adaptive_avg_pool", "adaptive_max_pool", "affine_grid", "attention", "avg_pool", "conv_backward_data",
    "conv_transpose", "fold", "global_avg_pool", "global_max_pool", "grid_sample", "group_norm", "gru", "instance_norm",
    "layer_norm", "lrn", "lstm", "max_pool", "max_unpool", "reduce", "resize", "rms_norm", "rnn", "softmax",
    "transform", "unfold",
})  # fmt: skip
#: functions of one call of a kernel that are not public
INTERNAL = frozenset({"quantized_lstm"})


def function_of(name: str) -> Callable[..., Any]:
    """The function over arrays of this name, public or not."""
    if name not in INTERNAL:
        function: Callable[..., Any] = getattr(jitdnn, name)
        return function
    from jitdnn.ops.quantized_lstm import quantized_lstm  # brings the compiler of the processor's code along

    return quantized_lstm


def _tracer(args: Any, kwargs: Any) -> Tracer | None:
    found = next(operands_in([*args, *kwargs.values()]), None)
    if found is None:
        return None
    if kwargs.get("out") is not None:
        raise Untraceable("results are written in place")
    return found.tracer


def _known(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments with arrays of a GPU, which are constants beside operands, copied to the host."""
    return tuple(map(tracer.known, args)), {name: tracer.known(value) for name, value in kwargs.items()}


def _conv(tracer: Tracer, x: Any, w: Any, bias: Any = None, **how: Any) -> Any:
    kwargs: dict[str, Any] = {
        name: how.pop(name) for name in ("stride", "padding", "dilation", "groups") if name in how
    }
    if how:
        raise Untraceable(f"jd.conv with {sorted(how)}")
    made = tracer.primitive("conv", jitdnn.conv, (x, w), kwargs)
    node = tracer.nodes.pop()
    operands = [x, w] if bias is None else [x, w, bias.reshape(-1, *(1,) * (x.ndim - 2))]
    epilogue = None if bias is None else trace(lambda acc, b: acc + b)
    del made
    kinds = [(node.output.shape, node.output.dtype)]
    return tracer.add("conv", operands, kinds, epilogue=epilogue, **kwargs)[0]


_MULTIPLIED = ("f16", "bf16", "f32", "f64")


def _matmul(tracer: Tracer, a: Any, b: Any, alpha: float = 1.0) -> Any:
    if a.dtype != b.dtype or min(a.ndim, b.ndim) < 2 or dtype_name(a.dtype) not in _MULTIPLIED:
        raise Untraceable(f"a product of {a.shape} {a.dtype} and {b.shape} {b.dtype}")
    if a.shape[-1] != b.shape[-2]:
        raise InvalidShape(f"a has {a.shape[-1]} columns and b {b.shape[-2]} rows: they must be equal")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    kinds = [((*batch, a.shape[-2], b.shape[-1]), a.dtype)]
    epilogue = None if alpha == 1.0 else trace(lambda acc: acc * alpha)
    return tracer.add("matmul", [a, b], kinds, epilogue=epilogue)[0]


def _concat(tracer: Tracer, arrays: Any, axis: int = 1) -> Any:
    return tracer.concat(list(arrays), axis)


def _batch_norm(
    tracer: Tracer, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, *, mode: str, epsilon: float
) -> Any:
    """scale / sqrt(variance + epsilon) and the shift that belongs to it are constants of the model."""
    if mode != "spatial" or any(isinstance(p, Operand) for p in (scale, bias, mean, variance)):
        raise Untraceable("statistics that are no constants of the model, or one for each element")
    parameters = (scale, bias, mean, variance)
    if any(p.shape != (x.shape[1],) for p in parameters):
        raise InvalidShape(f"parameters of shape {scale.shape} for {x.shape[1]} channels")
    kept = np.float64 if x.dtype == np.float64 else np.float32
    shape = (-1, *(1,) * (x.ndim - 2))

    def affine() -> tuple[Any, Any]:
        wide = [np.asarray(p, np.float64) for p in parameters]
        with np.errstate(all="ignore"):
            factor = wide[0] / np.sqrt(wide[3] + epsilon)
            shift = wide[1] - wide[2] * factor
        return factor.astype(kept).reshape(shape), shift.astype(kept).reshape(shape)

    factor, shift = tracer.memo.get("normalization", parameters, affine, epsilon, kept, shape)
    return tracer.pointwise(trace(lambda v, a, b: v * a + b), [x, factor, shift], x.dtype, is_affine=True)


def _scaled(value: Any, alpha: float, beta: float) -> Any:
    if beta != 0.0:
        raise Untraceable("results are written in place")
    return value if alpha == 1.0 else value * alpha


def _add(tracer: Tracer, a: Any, b: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
    if b is None:
        return tracer.pointwise(trace(lambda v: _scaled(v, alpha, beta)), [a], a.dtype)
    _require_one_type(a, b)
    return tracer.pointwise(trace(lambda v, w: _scaled(v + w, alpha, beta)), [a, b], a.dtype)


def _multiply(tracer: Tracer, a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
    _require_one_type(a, b)
    return tracer.pointwise(trace(lambda v, w: _scaled(v * w, alpha, beta)), [a, b], a.dtype)


def _require_one_type(a: Any, b: Any) -> None:
    if a.dtype != b.dtype or dtype_name(a.dtype) not in _MULTIPLIED:
        raise Untraceable(f"arithmetic of {a.dtype} and {b.dtype}")


class ElementwiseOperands:
    """A kernel of `jd.elementwise` that takes operands as well, all of one type of float32 and float64."""

    def __init__(self, kernel: ElementwiseKernel) -> None:
        self._kernel = kernel

    def __call__(self, *arrays: Any, out: Any = None, handle: Any = None) -> Any:
        tracer = _tracer(arrays, {"out": out})
        if tracer is None:
            return self._kernel(*arrays, out=out, handle=handle)
        arrays, _ = _known(tracer, arrays, {})
        kernel = self._kernel
        if len(arrays) != len(kernel.inputs):
            raise Untraceable(f"the kernel takes {len(kernel.inputs)} arrays, and is given {len(arrays)}")
        kinds = {array.dtype for array in arrays if isinstance(array, (Operand, np.ndarray))}
        if (
            len(kinds) != 1
            or not kinds <= set(_CALCULATED)
            or any(kernel.formula.is_truth)
            or any(kernel.dtypes)
        ):
            raise Untraceable(f"a formula over arrays of {', '.join(sorted(map(str, kinds)))}")
        (dtype,) = kinds
        operands = [
            array if isinstance(array, (Operand, np.ndarray)) else np.full((), array, dtype)
            for array in arrays
        ]
        made = tuple(tracer.pointwise(result, operands, dtype) for result in kernel.formula.results)
        return made[0] if len(made) == 1 else made


def elementwise(function: Any, dtype: Any = None) -> ElementwiseOperands:
    """`jd.elementwise`, whose kernel takes operands as well."""
    return ElementwiseOperands(jitdnn.elementwise(function, dtype))


_SPECIAL: dict[str, Callable[..., Any]] = {
    "add": _add, "batch_norm_inference": _batch_norm, "concat": _concat, "conv": _conv, "matmul": _matmul,
    "multiply": _multiply,
}  # fmt: skip
#: the public functions that take operands
TRACED = frozenset({*_ACTIVATIONS, *_PLAIN, *_SPECIAL, "elementwise"})


def _plain(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        tracer = _tracer(args, kwargs)
        if tracer is None:
            return function(*args, **kwargs)
        return tracer.primitive(name, function, *_known(tracer, args, kwargs))

    return run


def _special(function: Callable[..., Any], node: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        tracer = _tracer(args, kwargs)
        if tracer is None:
            return function(*args, **kwargs)
        args, kwargs = _known(tracer, args, kwargs)
        return node(tracer, *args, **kwargs)

    return run


def _activation(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Operand):
            return function(x, *args, **kwargs)
        return x.tracer.pointwise(trace(lambda v: function(v, *args, **kwargs)), [x], x.dtype)

    return run


def __getattr__(name: str) -> Any:
    function = function_of(name)
    if name in _SPECIAL:
        function = _special(function, _SPECIAL[name])
    elif name in _PLAIN or name in INTERNAL:
        function = _plain(name, function)
    elif name in _ACTIVATIONS:
        function = _activation(function)
    globals()[name] = function
    return function
