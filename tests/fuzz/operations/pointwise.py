"""Activations and their gradients, functions of formulas, and what works on whole tensors element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special
import torch

import jitdnn as jd
from fuzz.draw import REALS, Draw
from fuzz.problem import Array, Expected, Named, Operand, Problem, Result, operation, roundoff
from fuzz.values import numbers

F = torch.nn.functional


def operand(draw: Draw, name: str, shape: tuple[int, ...], dtype: str, **more: Any) -> Operand:
    """An operand of random strides."""
    from fuzz.draw import BYTES

    return Operand(name, shape, dtype, draw.strides(shape, itemsize=BYTES[dtype]), **more)


# the definitions, over float64 tensors of PyTorch; gradients follow by its own differentiation
_HALF = math.sqrt(0.5)


def below(x: Array) -> Array:
    """The probability that a standard normal number is below x: by erfcx, with the square exponentiated in long double,
    since the erfc of a rounded argument loses its digits in the tail."""
    size = np.abs(x)
    square = size.astype(np.longdouble) ** 2
    tail = 0.5 * scipy.special.erfcx(size * _HALF) * np.exp(-square / 2)
    return np.where(np.isnan(x), np.nan, np.where(x < 0, tail, 1 - tail)).astype(np.float64)


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    if approximate == "none":
        return x * torch.from_numpy(below(x.detach().numpy()))
    # by the sigmoid, which keeps the digits of its lower tail where 1 + tanh has none
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


_ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "identity": lambda x: x * 1.0,
    "relu": F.relu,
    "clipped_relu": lambda x, c=6.0: torch.clamp(x, 0.0, c),
    "leaky_relu": lambda x, c=0.01: F.leaky_relu(x, c),
    "elu": lambda x, c=1.0: F.elu(x, c),
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": lambda x, c=1.0: torch.logaddexp(torch.zeros_like(x), c * x) / c,
    "swish": lambda x, c=1.0: x * torch.sigmoid(c * x),
    "mish": F.mish,
    "gelu": _gelu,
    # PyTorch's own gradients of these two are those of float32, even in float64
    "hard_sigmoid": lambda x: torch.clamp(x / 6 + 0.5, 0.0, 1.0),
    "hard_swish": lambda x: x * torch.clamp(x / 6 + 0.5, 0.0, 1.0),
}
_KINKS = {"identity": (), "relu": (0,), "clipped_relu": (0,), "leaky_relu": (0,), "elu": (0,), "selu": (0,),
          "hard_sigmoid": (-3, 3), "hard_swish": (-3, 3)}  # fmt: skip
_COEFS = {"clipped_relu": (6.0, 1.0, 0.5), "leaky_relu": (0.01, 0.3, 2.0, -0.5, 0.0), "elu": (1.0, 0.3, 2.5),
          "softplus": (1.0, 2.0, 0.5), "swish": (1.0, 1.7, 0.25)}  # fmt: skip
#: how much larger than a rounding errors may be, relative to the result and to 1
_GAIN = 16.0


def _activation_error(dtype: str, value: Array, x: Array) -> Array:
    # exp has the relative error of its argument's rounding; what cancels has that of x
    return _GAIN * roundoff(dtype) * (np.abs(value) + np.minimum(np.abs(x), 1.0))


@operation("activation", 8, functions=tuple(_ACTIVATIONS))
def _activation(draw: Draw) -> Problem:
    name = draw.pick(list(_ACTIVATIONS))
    kwargs: dict[str, Any] = {}
    if name in _COEFS and draw.chance(0.7):
        kwargs["coef"] = draw.pick(_COEFS[name])
    if name == "gelu" and draw.chance(0.5):
        kwargs["approximate"] = "tanh"
    own = dict(zip("c", kwargs.values(), strict=False)) if "coef" in kwargs else kwargs
    if draw.chance(0.15):
        kwargs = kwargs | {"propagate_nan": False}
    shape, dtype = draw.shape(draw.whole(1, 5)), draw.dtype()
    x = operand(draw, "x", shape, dtype)
    quiet = kwargs.get("propagate_nan") is False

    def oracle(a: Named) -> list[Expected]:
        given = np.where(np.isnan(a["x"]), 0.0, a["x"]) if quiet else a["x"]
        y = _ACTIVATIONS[name](torch.from_numpy(given), **own).numpy()
        y = _limit(name, given, y, own)
        return [Expected(y, _activation_error(dtype, y, given))]

    return Problem(name, [x], kwargs, [Result("y", shape, dtype, in_place="x")], oracle)


def _limit(name: str, x: Array, y: Array, own: dict[str, Any]) -> Array:
    """Where the formula meets infinity times zero the result is the limit."""
    if name in ("swish", "mish", "gelu", "hard_swish"):
        y = np.where(x == -np.inf, -0.0, np.where(x == np.inf, np.inf, y))
    if name == "leaky_relu" and own.get("c") == 0.0:
        y = np.where(np.isinf(x), np.where(x > 0, x, np.nan), y)
    return y


def _slope(name: str, x: Array, own: dict[str, Any]) -> tuple[Array, Array]:
    """f(x) and f'(x) in float64."""
    if name == "gelu" and own.get("approximate", "none") == "none":
        density = np.exp(-(x.astype(np.longdouble) ** 2) / 2).astype(np.float64) / math.sqrt(2 * math.pi)
        return x * below(x), below(x) + x * density
    given = torch.from_numpy(x.copy()).requires_grad_(True)
    y = _ACTIVATIONS[name](given, **own)
    (slope,) = torch.autograd.grad(y.sum(), given)
    return y.detach().numpy(), slope.numpy()


@operation("activation_backward", 8, functions=tuple(f"{name}_backward" for name in _ACTIVATIONS))
def _activation_backward(draw: Draw) -> Problem:
    name = draw.pick(list(_ACTIVATIONS))
    kwargs: dict[str, Any] = {}
    if name in _COEFS and draw.chance(0.7):
        kwargs["coef"] = draw.pick([c for c in _COEFS[name] if name != "leaky_relu" or c != 0.0])
    if name == "gelu" and draw.chance(0.5):
        kwargs["approximate"] = "tanh"
    own = dict(zip("c", kwargs.values(), strict=False)) if "coef" in kwargs else kwargs
    shape, dtype = draw.shape(draw.whole(1, 5)), draw.dtype()
    dy, x = operand(draw, "dy", shape, dtype), operand(draw, "x", shape, dtype)

    def oracle(a: Named) -> list[Expected]:
        value, slope = _slope(name, a["x"], own)
        slope = np.where(np.isinf(a["x"]), _slope(name, np.sign(a["x"]) * 1e4, own)[1], slope)
        made = np.where(slope == 0, 0.0, a["dy"] * slope)
        error = _GAIN * roundoff(dtype) * (np.abs(made) + np.abs(a["dy"]) * np.minimum(np.abs(value), 1.0))
        if name == "gelu":  # the exponential of a square has the error of its argument
            error = error * (1 + np.square(a["x"]))
        error = np.where(np.isfinite(error), error, 0.0)
        if name in _KINKS:
            # at a kink either side's slope is right; that of NaN, and infinity times a slope of 0, are not defined
            steps = np.isin(a["x"], (*_KINKS[name], own.get("c", 6.0)))
            made = np.where(steps & ~np.isfinite(a["dy"]), 0.0, made)
            error = np.where(steps, np.where(np.isfinite(a["dy"]), np.abs(a["dy"]) * 4.0, np.inf), error)
            error = np.where(np.isnan(a["x"]) | ((slope == 0) & ~np.isfinite(a["dy"])), np.inf, error)
        else:
            made = np.where(np.isnan(a["x"]), np.nan, made)
            error = np.where((np.abs(slope) < 1e-300) & ~np.isfinite(a["dy"]), np.inf, error)
        return [Expected(made, error)]

    kwargs = kwargs | {"x": x}
    return Problem(
        f"{name}_backward", [dy], kwargs, [Result("dx", shape, dtype, in_place="dy")], oracle,
        flavours=("normal", "whole", "infinite"),
    )  # fmt: skip


# the slope as a function of y, where y says enough
_BY_Y: dict[str, Callable[[Array, float], Array]] = {
    "identity": lambda y, c: np.ones_like(y),
    "relu": lambda y, c: np.where(y > 0, 1.0, 0.0),
    "clipped_relu": lambda y, c: np.where((y > 0) & (y < c), 1.0, 0.0),
    "leaky_relu": lambda y, c: np.where(y > 0, 1.0, c),
    "elu": lambda y, c: np.where(y > 0, 1.0, y + c),
    "selu": lambda y, c: np.where(y > 0, _SELU[0], y + _SELU[0] * _SELU[1]),
    "sigmoid": lambda y, c: y * (1 - y),
    "tanh": lambda y, c: 1 - y * y,
    "softplus": lambda y, c: -np.expm1(-c * y),
    "hard_sigmoid": lambda y, c: np.where((y > 0) & (y < 1), 1 / 6, 0.0),
}
_SELU = (1.0507009873554804934193349852946, 1.6732632423543772848170429916717)
_DEFAULT = {"clipped_relu": 6.0, "leaky_relu": 0.01, "elu": 1.0, "softplus": 1.0}


@operation("activation_backward_by_y", 4, functions=tuple(f"{name}_backward" for name in _BY_Y))
def _activation_backward_by_y(draw: Draw) -> Problem:
    name = draw.pick(list(_BY_Y))
    kwargs: dict[str, Any] = {}
    if name in _DEFAULT and draw.chance(0.7):
        kwargs["coef"] = draw.pick([c for c in _COEFS[name] if c > 0])
    coef = kwargs.get("coef", _DEFAULT.get(name, 1.0))
    shape, dtype = draw.shape(draw.whole(1, 5)), draw.dtype()

    def made_of_x(g: np.random.Generator, extents: tuple[int, ...], flavour: str) -> Array:
        x = numbers(g, extents, dtype, flavour)
        own = {"c": coef} if name in _DEFAULT else {}
        return np.asarray(_ACTIVATIONS[name](torch.from_numpy(x), **own).numpy())

    dy, y = operand(draw, "dy", shape, dtype), operand(draw, "y", shape, dtype, values=made_of_x)

    def oracle(a: Named) -> list[Expected]:
        slope = np.where(np.isnan(a["y"]), np.nan, _BY_Y[name](a["y"], coef))
        made = np.where(slope == 0, 0.0, a["dy"] * slope)
        error = _GAIN * roundoff(dtype) * np.abs(a["dy"]) * (np.abs(slope) + 2.0 * (name != "identity"))
        error = np.where(np.isfinite(error), error, 0.0)
        undefined = (np.isnan(a["y"]) & (name in _KINKS)) | ((slope == 0) & ~np.isfinite(a["dy"]))
        tiny = (np.abs(slope) < 1e-6) & ~np.isfinite(
            a["dy"]
        )  # where a rounding decides between 0 and infinity
        return [Expected(made, np.where(undefined | tiny, np.inf, error))]

    return Problem(
        f"{name}_backward", [dy], kwargs | {"y": y}, [Result("dx", shape, dtype, in_place="dy")], oracle,
        flavours=("normal", "whole", "infinite"),
    )  # fmt: skip


_ONE: dict[str, Callable[[Array], Array]] = {
    "absolute": np.abs, "arccos": np.arccos, "arccosh": np.arccosh, "arcsin": np.arcsin, "arcsinh": np.arcsinh,
    "arctan": np.arctan, "arctanh": np.arctanh, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh,
    "erf": scipy.special.erf,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor, "log10": np.log10, "log1p": np.log1p,
    "log2": np.log2, "log1pexp": lambda x: np.logaddexp(0.0, x), "normal_cdf": below,
    "normal_tail": lambda x: below(-x),
    "reciprocal": np.reciprocal, "rint": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x), "sign": np.sign, "sin": np.sin,
    "sinh": np.sinh, "sqrt": np.sqrt, "square": np.square, "tan": np.tan, "trunc": np.trunc, "isfinite": np.isfinite,
    "isinf": np.isinf, "isnan": np.isnan,
}  # fmt: skip


def _power(x: Array, y: Array) -> Array:
    # element by element: of a single exponent of a half NumPy makes a square root, which is not C's power at -inf
    x, y = np.broadcast_arrays(x, y)
    return np.power(x.copy(), y.copy())


_TWO: dict[str, Callable[[Array, Array], Array]] = {
    "arctan2": np.arctan2, "floor_divide": lambda x, y: np.floor(x / y), "fmod": np.fmod, "maximum": np.maximum,
    "minimum": np.minimum, "power": _power, "remainder": np.remainder,
}  # fmt: skip
_EXACT = {
    "absolute",
    "ceil",
    "floor",
    "rint",
    "sign",
    "trunc",
    "isfinite",
    "isinf",
    "isnan",
    "maximum",
    "minimum",
}


def _computed(function: Callable[..., Array], *arrays: Array) -> Array:
    """In long doubles where NumPy has the function for them, so that float64 results have a reference."""
    try:
        if function is below or function is _ONE["normal_tail"]:
            return np.asarray(function(*arrays))
        return np.asarray(function(*(a.astype(np.longdouble) for a in arrays)))
    except TypeError:
        return np.asarray(function(*arrays))


@operation("function", 10, functions=tuple(_ONE))
def _function(draw: Draw) -> Problem:
    name = draw.pick(list(_ONE))
    shape, dtype = draw.shape(draw.whole(1, 4)), draw.dtype()
    x = operand(draw, "x", shape, dtype)
    kernel = jd.elementwise(getattr(jd, name))

    def oracle(a: Named) -> list[Expected]:
        value = _computed(_ONE[name], a["x"])
        if name in _EXACT:
            return [Expected(value)]
        unit = roundoff(dtype)
        error = 16 * unit * np.abs(value)
        if name in ("cos", "sin", "tan"):  # the argument's own reduction
            error = error + 8 * unit
        if name in ("normal_cdf", "normal_tail"):
            # f32 of an argument that is exact, squared and exponentiated
            error = error * (1 + 0.25 * np.minimum(np.square(a["x"]), 1500))
        return [Expected(value, np.where(np.isfinite(error), error, 0.0))]

    result = "bool" if name.startswith("is") else dtype
    flavours = ("normal", "whole", "special", "extreme")
    if name in ("cos", "sin", "tan"):
        flavours = ("normal", "whole", "infinite")
    if name in ("normal_cdf", "normal_tail"):
        flavours = ("normal", "whole", "infinite")
    return Problem(
        name, [x], {}, [Result("y", shape, result, in_place="x" if result == dtype else None)], oracle, scales=False,
        flavours=flavours, call=kernel,
    )  # fmt: skip


@operation("function_of_two", 4, functions=tuple(_TWO))
def _function_of_two(draw: Draw) -> Problem:
    name = draw.pick(list(_TWO))
    shape, dtype = draw.shape(draw.whole(1, 4)), draw.dtype()
    x = operand(draw, "x", shape, dtype)
    y = operand(draw, "y", _shrunk(draw, shape), dtype)
    kernel = jd.elementwise(getattr(jd, name))

    def oracle(a: Named) -> list[Expected]:
        value = np.asarray(_TWO[name](a["x"], a["y"]))
        if name in ("maximum", "minimum"):
            return [Expected(value)]
        unit = roundoff(dtype)
        if name in ("floor_divide", "fmod", "remainder"):
            # a quotient that rounds to a whole number may belong to either side
            quotient = a["x"] / a["y"]
            near = np.abs(quotient - np.rint(quotient)) <= 4 * unit * np.abs(quotient)
            other = np.rint(quotient) if name == "floor_divide" else np.zeros_like(value)
            slack = np.where(near, 1.0 if name == "floor_divide" else np.abs(a["y"]), 0.0)
            return [Expected(value, slack + 4 * unit * np.abs(a["x"]), other)]
        error = 16 * unit * np.abs(value)
        if name == "power":
            error = error * (1 + np.abs(a["y"] * np.log(np.abs(a["x"]))))
        return [Expected(value, np.where(np.isfinite(error), error, 0.0))]

    flavours = (
        ("normal", "whole")
        if name in ("floor_divide", "fmod", "remainder")
        else ("normal", "whole", "special")
    )
    return Problem(
        name, [x, y], {}, [Result("z", shape, dtype, in_place="x")], oracle, scales=False, flavours=flavours,
        call=kernel,
    )  # fmt: skip


def _shrunk(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one."""
    made = tuple(1 if draw.chance(0.25) else extent for extent in shape)
    return made[draw.below(len(made)) :] if draw.chance(0.2) else made


@operation("formula", 5, functions=("elementwise", "clip", "where", "fma", "trace"))
def _formula(draw: Draw) -> Problem:
    formulas: dict[str, tuple[Any, Callable[..., Array]]] = {
        "clip": (
            lambda x, y, z: jd.clip(x, -0.5, 0.75) + 0 * y + 0 * z,
            lambda x, y, z: np.clip(x, -0.5, 0.75),
        ),
        "where": (lambda x, y, z: jd.where(x > y, y, z), lambda x, y, z: np.where(x > y, y, z)),
        "fma": (lambda x, y, z: jd.fma(x, y, z), lambda x, y, z: x * y + z),
        "text": ("x, y, z: t = x * y; t - z / 3 + 0.25", lambda x, y, z: x * y - z / 3 + 0.25),
    }
    name = draw.pick(list(formulas))
    shape, dtypes = draw.shape(draw.whole(1, 4)), [draw.dtype() for _ in range(3)]
    operands = [
        operand(draw, letter, shape if letter == "x" else _shrunk(draw, shape), dtype)
        for letter, dtype in zip("xyz", dtypes, strict=True)
    ]
    made, definition = formulas[name]
    widest = _widest(dtypes)

    def oracle(a: Named) -> list[Expected]:
        x, y, z = a["x"], a["y"], a["z"]
        value = np.broadcast_to(definition(x, y, z), shape)
        error = 8 * roundoff(widest) * (np.abs(x) + np.abs(x * y) + np.abs(y) + np.abs(z) + 1)
        return [Expected(value, np.broadcast_to(error, shape))]

    more = tuple(dtype for dtype in (*REALS, "i8", "i32", "u8") if dtype != widest)
    if name in ("where", "fma", "text") and widest == "f64":
        more = ("f32", "f16")
    return Problem(
        "elementwise", list(operands), {}, [Result("out", shape, widest, more)], oracle, scales=False,
        flavours=("normal", "whole"), call=jd.elementwise(made),
    )  # fmt: skip


def _widest(dtypes: list[str]) -> str:
    """The type of results of arrays of these real types."""
    kinds = set(dtypes)
    if "f64" in kinds:
        return "f64"
    if "f32" in kinds or kinds == {"f16", "bf16"}:
        return "f32"
    return dtypes[0]


@operation("op_tensor", 5, functions=("op_tensor", "add", "multiply"))
def _op_tensor(draw: Draw) -> Problem:
    shape, dtype = draw.shape(draw.whole(1, 5)), draw.dtype()
    first = operand(draw, "a", shape, dtype)
    second = operand(draw, "b", _shrunk(draw, shape), dtype)
    function = draw.pick(("add", "multiply", "op_tensor"))
    kwargs: dict[str, Any] = {}
    operation_, scales = {"add": "add", "multiply": "mul"}.get(function, ""), (1.0, 1.0)
    args: list[Any] = [first, second]
    if function == "op_tensor":
        operation_ = draw.pick(("add", "mul", "min", "max", "sqrt", "not"))
        scales = draw.pick((1.0, 2.0, -0.5)), draw.pick((1.0, -1.0, 0.25))
        kwargs = {"operation": operation_, "a_scale": scales[0], "b_scale": scales[1]}
        if operation_ in ("sqrt", "not"):
            args = [first]
            kwargs.pop("b_scale")

    def oracle(a: Named) -> list[Expected]:
        x = a["a"] * scales[0]
        y = a["b"] * scales[1] if len(args) == 2 else np.zeros(1)
        value = {
            "add": lambda: x + y, "mul": lambda: x * y, "min": lambda: np.minimum(x, y),
            "max": lambda: np.maximum(x, y),
            "sqrt": lambda: np.sqrt(x), "not": lambda: 1 - x,
        }[operation_]()  # fmt: skip
        size = np.abs(x) + np.abs(y) if operation_ != "mul" else np.abs(x * y)
        error = 4 * roundoff(dtype) * (size + (operation_ == "not"))
        return [Expected(value, np.where(np.isfinite(error), error, 0.0))]

    return Problem(
        function, args, kwargs, [Result("out", shape, dtype, in_place="a")], oracle,
        flavours=("normal", "whole", "infinite"),
    )  # fmt: skip


@operation("fill", 2, functions=("fill", "scale"))
def _fill(draw: Draw) -> Problem:
    shape = draw.shape(draw.whole(1, 5))
    dtype = draw.dtype((*REALS, "u8", "i32", "i8", "i16", "u16", "u32", "i64", "u64"))
    strides = draw.strides(shape, is_output=True, itemsize=8)
    value = draw.pick((0.0, 1.0, -2.5, 3.0, 1e9, 0.3, -1.0))
    function = draw.pick(("fill", "scale"))
    x = Operand("x", shape, dtype, strides, state=True)

    def oracle(a: Named) -> list[Expected]:
        if function == "fill":
            made = np.full(shape, value)
            return [Expected(made, 0.0), Expected(made, 0.0)]
        made = np.where(True, a["x"].astype(np.longdouble) * value, 0.0) if value else np.zeros(shape)
        return [Expected(made, 0.0), Expected(made, 0.0)]

    return Problem(
        function, [x, value], {}, [Result("x", shape, dtype, saved=True)], oracle, scales=False, takes_out=False,
        flavours=("normal", "whole"),
    )  # fmt: skip
