"""Activation functions and their gradients over anybody's arrays, or traced inside of an expression.

The functions differ in their formula and in whether they have a coefficient; all else, and what their help says of
it, is made alike from one line each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitdnn.arguments import check_choice, flag, optional, real, settled_before, yes
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order
from jitdnn.problems.activation import Activation
from jitdnn.rtcg.expression import apply, is_traced, where
from jitdnn.tensor import TensorDescriptor

Function = Callable[..., Any]

_ABOUT = """
    `x`: 1 to 8 dimensions, float16, bfloat16, float32 or float64; or a value of a function that is being traced,
    such as an epilogue. The result has x's shape and order in memory. `propagate_nan`: NaN in x stays NaN; if
    False, it is taken as 0. `out` may be x itself, and must be given where `beta` is not 0.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """

_ABOUT_BACKWARD = """
    `dy`: the gradient of what `{name}` returned; the result has its shape and order in memory. `x` is what `{name}`
    was given{y}. `out` may be either input itself.{kinks}

    Raises as `{name}` does.
    """
_OR_Y = ", `y` what it returned: exactly one of them is needed"


def _named(function: Function, name: str, formula: str, about: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{formula}\n{about}"
    return function


def _forward(name: str, formula: str) -> Function:
    """The public function of an activation without a coefficient."""

    def function(
        x: Any,
        alpha: float = 1.0,
        beta: float = 0.0,
        out: Any = None,
        handle: Handle | None = None,
        *,
        propagate_nan: bool = True,
    ) -> Any:
        if is_traced(x):
            return apply(name, _counted(x, propagate_nan))
        return call(_FORWARD, ("x",), (x,), (name, None, propagate_nan), out, alpha, beta, handle)

    return _named(function, name, f"Return alpha * {formula} + beta * out.", _ABOUT)


def _forward_coef(name: str, formula: str, default: float) -> Function:
    """The public function of an activation with a coefficient."""

    def function(
        x: Any,
        coef: float = default,
        alpha: float = 1.0,
        beta: float = 0.0,
        out: Any = None,
        handle: Handle | None = None,
        *,
        propagate_nan: bool = True,
    ) -> Any:
        if is_traced(x):
            return apply(name, _counted(x, propagate_nan), coef)
        return call(_FORWARD, ("x",), (x,), (name, coef, propagate_nan), out, alpha, beta, handle)

    return _named(function, name, f"Return alpha * {formula} + beta * out.", _ABOUT)


def _backward(name: str, formula: str, kinks: str = "") -> Function:
    """The gradient of an activation whose slope follows from x and from y."""

    def function(
        dy: Any,
        x: Any = None,
        *,
        y: Any = None,
        propagate_nan: bool = True,
        alpha: float = 1.0,
        beta: float = 0.0,
        out: Any = None,
        handle: Handle | None = None,
    ) -> Any:
        return _gradient(name, dy, x, y, None, propagate_nan, alpha, beta, out, handle)

    about = _ABOUT_BACKWARD.format(name=name, y=_OR_Y, kinks=kinks)
    return _named(function, f"{name}_backward", f"Return dx = alpha * dy * {formula} + beta * out.", about)


def _backward_coef(name: str, formula: str, default: float, kinks: str = "") -> Function:
    """The same with a coefficient."""

    def function(
        dy: Any,
        x: Any = None,
        *,
        y: Any = None,
        coef: float = default,
        propagate_nan: bool = True,
        alpha: float = 1.0,
        beta: float = 0.0,
        out: Any = None,
        handle: Handle | None = None,
    ) -> Any:
        return _gradient(name, dy, x, y, coef, propagate_nan, alpha, beta, out, handle)

    about = _ABOUT_BACKWARD.format(name=name, y=_OR_Y, kinks=kinks)
    return _named(function, f"{name}_backward", f"Return dx = alpha * dy * {formula} + beta * out.", about)


def _backward_x(name: str, formula: str) -> Function:
    """The gradient of an activation whose slope follows from x only."""

    def function(
        dy: Any,
        x: Any,
        *,
        propagate_nan: bool = True,
        alpha: float = 1.0,
        beta: float = 0.0,
        out: Any = None,
        handle: Handle | None = None,
    ) -> Any:
        return _gradient(name, dy, x, None, None, propagate_nan, alpha, beta, out, handle)

    about = _ABOUT_BACKWARD.format(name=name, y="", kinks="")
    return _named(function, f"{name}_backward", f"Return dx = alpha * dy * {formula} + beta * out.", about)


relu = _forward("relu", "max(x, 0)")
relu_backward = _backward("relu", "(x > 0)", " The slope at 0 is 0.")
sigmoid = _forward("sigmoid", "1 / (1 + exp(-x))")
sigmoid_backward = _backward("sigmoid", "y * (1 - y) with y = sigmoid(x)")
tanh = _forward("tanh", "tanh(x)")
tanh_backward = _backward("tanh", "(1 - y * y) with y = tanh(x)")
identity = _forward("identity", "x")
identity_backward = _backward("identity", "1")
clipped_relu = _forward_coef("clipped_relu", "min(max(x, 0), coef), with coef > 0,", 6.0)
clipped_relu_backward = _backward_coef("clipped_relu", "(0 < x < coef)", 6.0)
leaky_relu = _forward_coef("leaky_relu", "(x where x > 0, else coef * x)", 0.01)
leaky_relu_backward = _backward_coef(
    "leaky_relu",
    "(1 where x > 0, else coef)",
    0.01,
    " The slope at 0 is coef, and coef >= 0 where y is given.",
)
elu = _forward_coef("elu", "(x where x > 0, else coef * (exp(x) - 1))", 1.0)
elu_backward = _backward_coef(
    "elu",
    "(1 where x > 0, else coef * exp(x))",
    1.0,
    " The slope at 0 is coef, and coef >= 0 where y is given.",
)
selu = _forward("selu", "1.0507... * (x where x > 0, else 1.6732... * (exp(x) - 1))")
selu_backward = _backward("selu", "1.0507... * (1 where x > 0, else 1.6732... * exp(x))")
softplus = _forward_coef("softplus", "log(1 + exp(coef * x)) / coef, with coef > 0,", 1.0)
softplus_backward = _backward_coef("softplus", "sigmoid(coef * x)", 1.0)
hard_sigmoid = _forward("hard_sigmoid", "min(max(x + 3, 0), 6) / 6")
hard_sigmoid_backward = _backward("hard_sigmoid", "(1/6 where -3 < x < 3, else 0)")
mish = _forward("mish", "x * tanh(log(1 + exp(x)))")
mish_backward = _backward_x("mish", "mish'(x)")
hard_swish = _forward("hard_swish", "x * min(max(x + 3, 0), 6) / 6")
hard_swish_backward = _backward_x("hard_swish", "(x / 3 + 1/2 where -3 < x < 3, 0 below, 1 above)")
swish = _forward_coef("swish", "x * sigmoid(coef * x), with coef > 0 (SiLU for coef = 1),", 1.0)


def swish_backward(
    dy: Any,
    x: Any,
    coef: float = 1.0,
    *,
    propagate_nan: bool = True,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * dy * (s + coef * x * s * (1 - s)) + beta * out, s = sigmoid(coef * x).

    `dy`: the gradient of what `swish` returned; the result has its shape and order in memory. `x` is what `swish`
    was given. `out` may be either input itself. Raises as `swish` does.
    """
    return _gradient("swish", dy, x, None, coef, propagate_nan, alpha, beta, out, handle)


def gelu(
    x: Any,
    approximate: str = "none",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
    *,
    propagate_nan: bool = True,
) -> Any:
    """Return alpha * x * P(x) + beta * out, where P is the distribution function of the normal distribution.

    `approximate`: "none" for P(x) = (1 + erf(x / sqrt(2))) / 2 itself, "tanh" for
    (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2 instead.

    `x`: 1 to 8 dimensions, float16, bfloat16, float32 or float64; or a value of a function that is being traced,
    such as an epilogue. The result has x's shape and order in memory. `propagate_nan`: NaN in x stays NaN; if
    False, it is taken as 0. `out` may be x itself, and must be given where `beta` is not 0.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    name = _gelu_name(approximate)
    if is_traced(x):
        return apply(name, _counted(x, propagate_nan))
    return call(_FORWARD, ("x",), (x,), (name, None, propagate_nan), out, alpha, beta, handle)


def gelu_backward(
    dy: Any,
    x: Any,
    approximate: str = "none",
    *,
    propagate_nan: bool = True,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * dy * gelu'(x) + beta * out for the same `approximate`.

    `dy`: the gradient of what `gelu` returned; the result has its shape and order in memory. `x` is what `gelu`
    was given. `out` may be either input itself. Raises as `gelu` does.
    """
    name = _gelu_name(approximate)
    return _gradient(name, dy, x, None, None, propagate_nan, alpha, beta, out, handle)


def _counted(x: Any, propagate_nan: bool) -> Any:
    """A traced x, NaN as 0 unless it shall be propagated."""
    return x if flag(propagate_nan, "propagate_nan") else where(x == x, x, 0.0)


def _gelu_name(approximate: str) -> str:
    check_choice(approximate, ("none", "tanh"), "approximate")
    return "gelu" if approximate == "none" else "gelu_tanh"


def _gradient(
    name: str,
    dy: Any,
    x: Any,
    y: Any,
    coef: float | None,
    propagate_nan: bool,
    alpha: float,
    beta: float,
    out: Any,
    handle: Handle | None,
) -> Any:
    if (x is None) == (y is None):
        raise InvalidArgument(f"{name}_backward needs x or y, and not both")
    saved, kept = ("x", x) if y is None else ("y", y)
    arguments = (name, coef, propagate_nan, saved)
    return call(_BACKWARD, ("dy", saved), (dy, kept), arguments, out, alpha, beta, handle)


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    function: str,
    coef: float | None,
    propagate_nan: bool,
) -> Recipe:
    (x,) = inputs
    return Recipe(
        Activation.make("fwd", function, x, y=out or same_order(x), coef=coef, propagate_nan=propagate_nan)
    )


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    function: str,
    coef: float | None,
    propagate_nan: bool,
    saved: str,
) -> Recipe:
    dy, kept = inputs
    problem = Activation.make(
        "bwd", function, kept, saved, y=kept, dx=out or same_order(dy), dy=dy, coef=coef,
        propagate_nan=propagate_nan,
    )  # fmt: skip
    return Recipe(problem)


_TAKES = (settled_before("function"), optional(real("coef")), yes("propagate_nan"))

_FORWARD = Op(_make_forward, _TAKES, in_place=(0,))
_BACKWARD = Op(_make_backward, (*_TAKES, settled_before("saved")), in_place=(0, 1))
