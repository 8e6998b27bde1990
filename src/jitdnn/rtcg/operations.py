"""The operations of the expression language, in one table: how they print and what they mean in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitdnn.problems.activation_functions import normal_tail


def bare(text: str) -> str:
    """The text of an operation without its outer parentheses; every operator's text has them."""
    return text[1:-1] if text.startswith("(") else text


@dataclass(frozen=True)
class Operation:
    """One operation: its number of arguments, its meaning over arrays, and its sign if it is an operator.

    ``is_truth`` says that the result is a condition, ``takes_truth`` that all arguments are.
    """

    arity: int
    numpy: Callable[..., Any]
    sign: str = ""
    name: str = ""
    is_truth: bool = False
    takes_truth: bool = False

    @property
    def is_function(self) -> bool:
        """True if the operation is called by name rather than written as an operator."""
        return not self.sign

    def text(self, arguments: Sequence[str]) -> str:
        """The operation applied to arguments that are text."""
        if self.is_function:
            return f"{self.name}({', '.join(bare(a) for a in arguments)})"
        if self.arity == 1:
            return f"({self.sign}{arguments[0]})"
        return f"({arguments[0]} {self.sign} {arguments[1]})"


def _sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), from exp(-|x|) so that nothing overflows and small results keep their digits."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def _erf(x: Any) -> Any:
    x = np.asarray(x)
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def _normal_tail(x: Any) -> Any:
    x = np.asarray(x)
    return normal_tail(x.astype(np.float64)).astype(x.dtype)


def _normal_density(x: Any) -> Any:
    return np.exp(x * x * -0.5) / np.sqrt(2.0 * np.pi, dtype=np.asarray(x).dtype)


_ROWS: dict[str, Operation] = {
    "add": Operation(2, np.add, "+"),
    "subtract": Operation(2, np.subtract, "-"),
    "multiply": Operation(2, np.multiply, "*"),
    "divide": Operation(2, np.divide, "/"),
    "floor_divide": Operation(2, np.floor_divide, "//"),
    "negative": Operation(1, np.negative, "-"),
    "absolute": Operation(1, np.absolute),
    "minimum": Operation(2, np.minimum),
    "maximum": Operation(2, np.maximum),
    "sqrt": Operation(1, np.sqrt),
    "exp": Operation(1, np.exp),
    "exp2": Operation(1, np.exp2),
    "expm1": Operation(1, np.expm1),
    "log": Operation(1, np.log),
    "log2": Operation(1, np.log2),
    "log10": Operation(1, np.log10),
    "log1p": Operation(1, np.log1p),
    "tanh": Operation(1, np.tanh),
    "sigmoid": Operation(1, _sigmoid),
    "log1pexp": Operation(1, lambda x: np.logaddexp(x, np.zeros_like(x))),
    "erf": Operation(1, _erf),
    "upper_tail": Operation(1, _normal_tail),
    "normal_density": Operation(1, _normal_density),
    "floor": Operation(1, np.floor),
    "ceil": Operation(1, np.ceil),
    "trunc": Operation(1, np.trunc),
    "rint": Operation(1, np.rint),
    "sign": Operation(1, np.sign),
    "sin": Operation(1, np.sin),
    "cos": Operation(1, np.cos),
    "tan": Operation(1, np.tan),
    "arctan": Operation(1, np.arctan),
    "arctan2": Operation(2, np.arctan2),
    "power": Operation(2, np.power),
    "fmod": Operation(2, np.fmod),
    "remainder": Operation(2, np.remainder),
    "where": Operation(3, np.where),
    "less": Operation(2, np.less, "<", is_truth=True),
    "less_equal": Operation(2, np.less_equal, "<=", is_truth=True),
    "greater": Operation(2, np.greater, ">", is_truth=True),
    "greater_equal": Operation(2, np.greater_equal, ">=", is_truth=True),
    "equal": Operation(2, np.equal, "==", is_truth=True),
    "not_equal": Operation(2, np.not_equal, "!=", is_truth=True),
    "logical_and": Operation(2, np.logical_and, "&", is_truth=True, takes_truth=True),
    "logical_or": Operation(2, np.logical_or, "|", is_truth=True, takes_truth=True),
    "logical_not": Operation(1, np.logical_not, "~", is_truth=True, takes_truth=True),
}
OPERATIONS: dict[str, Operation] = {
    name: Operation(row.arity, row.numpy, row.sign, name, row.is_truth, row.takes_truth)
    for name, row in _ROWS.items()
}

# NumPy's names of its ufuncs where they differ from ours
ALIASES = {
    "true_divide": "divide",
    "fabs": "absolute",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "invert": "logical_not",
}


def evaluate_operation(name: str, arguments: Sequence[Any]) -> Any:
    """One operation over arrays of one dtype."""
    return OPERATIONS[name].numpy(*arguments)
