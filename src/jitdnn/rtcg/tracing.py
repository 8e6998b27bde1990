"""Tracing: numbers of which only their making is known, and the functions of the expression language over them.

A `Graph` collects the steps of one function while Python calls it with `Traced` values. `expression.py` makes a frozen
`Expression` of the steps that lead to a result.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from jitdnn.arguments import real_number
from jitdnn.errors import InvalidArgument
from jitdnn.rtcg.operations import ALIASES, OPERATIONS, evaluate_operation
from jitdnn.tensor.operators import Operators

T = TypeVar("T")


class Instruction(NamedTuple):
    """One step: ``operation`` applied to the results of earlier steps.

    ``input`` has the input's position as its argument. ``constant`` has no argument and its value as text, so
    that -0.0 differs from 0.0 and NaN equals itself.
    """

    operation: str
    arguments: tuple[int, ...]
    text: str = ""

    @property
    def number(self) -> float:
        """The value of a constant."""
        return float(self.text)


def interpret(
    instructions: Sequence[Instruction],
    inputs: Sequence[T],
    constant: Callable[[float], T],
    apply: Callable[[str, list[T]], T],
) -> T:
    """Run steps in any domain: code, text, arrays. ``apply`` gets an operation and its arguments."""
    values: list[T] = []
    for step in instructions:
        if step.operation == "input":
            values.append(inputs[step.arguments[0]])
        elif step.operation == "constant":
            values.append(constant(step.number))
        else:
            values.append(apply(step.operation, [values[a] for a in step.arguments]))
    return values[-1]


class Graph:
    """An expression while it is traced: every distinct step is kept once."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self.inputs = tuple(inputs)
        self.steps: list[Instruction] = []
        self._known: dict[Instruction, int] = {}

    def _add(self, step: Instruction) -> Traced:
        position = self._known.setdefault(step, len(self.steps))
        if position == len(self.steps):
            self.steps.append(step)
        return Traced(self, position)

    def input(self, position: int) -> Traced:
        return self._add(Instruction("input", (position,)))

    def constant(self, value: float) -> Traced:
        return self._add(Instruction("constant", (), repr(float(value))))

    def is_truth(self, value: Traced) -> bool:
        """True if the value is a condition, not a number."""
        step = self.steps[value.position]
        return step.operation in OPERATIONS and OPERATIONS[step.operation].is_truth

    def lift(self, value: object) -> Traced:
        """The value in this graph; a Python number becomes a constant."""
        if isinstance(value, Traced):
            if value.graph is not self:
                raise InvalidArgument(
                    "a traced value was used outside of the function that it was made for: "
                    "pass it on as an argument of the function that is traced"
                )
            return value
        if isinstance(value, (bool, np.bool_)):
            raise InvalidArgument(f"{value} is not a number in a traced function: write 1.0 or 0.0")
        if isinstance(value, numbers.Real):
            return self.constant(real_number(value, "a number in a traced function"))
        raise InvalidArgument(
            f"a {type(value).__name__} cannot be mixed with traced values: only numbers can; "
            "give arrays as operands of the kernel, by further arguments of the function"
        )

    def apply(self, operation: str, values: Sequence[object]) -> Traced:
        """Add one operation, checking that conditions and numbers are not confused."""
        rule = OPERATIONS[operation]
        arguments = [self.lift(value) for value in values]
        if len(arguments) != rule.arity:
            raise InvalidArgument(f"{operation} takes {rule.arity} arguments, got {len(arguments)}")
        for number, argument in enumerate(arguments):
            wants_truth = rule.takes_truth or (operation == "where" and number == 0)
            if wants_truth and not self.is_truth(argument):
                raise InvalidArgument(f"{operation} needs a condition such as x > 0 as argument {number + 1}")
            if not wants_truth and self.is_truth(argument):
                raise InvalidArgument(
                    f"{operation} was given a condition for a number: use jd.where(condition, 1.0, 0.0)"
                )
        if operation == "multiply":  # multiplying by one is exact: derivatives are full of it
            for one, other in ((0, 1), (1, 0)):
                if self.steps[arguments[one].position] == Instruction("constant", (), "1.0"):
                    return arguments[other]
        return self._add(Instruction(operation, tuple(argument.position for argument in arguments)))

    def steps_to(self, result: Traced) -> tuple[Instruction, ...]:
        """The steps that ``result`` is made by, and no others: arguments first, from left to right."""
        if self.is_truth(result):
            raise InvalidArgument(
                "the traced function returns a condition: return a number, such as jd.where(condition, a, b)"
            )
        order: dict[int, int] = {}
        stack = [result.position]
        while stack:
            step = self.steps[stack[-1]]
            missing = [] if step.operation == "input" else [a for a in step.arguments if a not in order]
            if missing:
                stack.append(missing[0])
            else:
                order.setdefault(stack.pop(), len(order))
        instructions = []
        for position in order:
            step = self.steps[position]
            if step.operation != "input":
                step = step._replace(arguments=tuple(order[a] for a in step.arguments))
            instructions.append(step)
        return tuple(instructions)

    def number(self, result: Traced) -> float:
        """The value of a result that no input takes part in, in f64."""
        with np.errstate(all="ignore"):
            return float(interpret(self.steps_to(result), (), np.float64, evaluate_operation))


class Traced:
    """A number, or a condition, of which only its making is known. Python's operators add steps."""

    __slots__ = ("graph", "position")

    def __init__(self, graph: Graph, position: int) -> None:
        self.graph, self.position = graph, position

    def __repr__(self) -> str:
        return "<traced value>"

    def __add__(self, other: object) -> Traced:
        return self.graph.apply("add", (self, other))

    def __radd__(self, other: object) -> Traced:
        return self.graph.apply("add", (other, self))

    def __sub__(self, other: object) -> Traced:
        return self.graph.apply("subtract", (self, other))

    def __rsub__(self, other: object) -> Traced:
        return self.graph.apply("subtract", (other, self))

    def __mul__(self, other: object) -> Traced:
        return self.graph.apply("multiply", (self, other))

    def __rmul__(self, other: object) -> Traced:
        return self.graph.apply("multiply", (other, self))

    def __truediv__(self, other: object) -> Traced:
        return self.graph.apply("divide", (self, other))

    def __rtruediv__(self, other: object) -> Traced:
        return self.graph.apply("divide", (other, self))

    def __floordiv__(self, other: object) -> Traced:
        return self.graph.apply("floor_divide", (self, other))

    def __rfloordiv__(self, other: object) -> Traced:
        return self.graph.apply("floor_divide", (other, self))

    def __mod__(self, other: object) -> Traced:
        return self.graph.apply("remainder", (self, other))

    def __rmod__(self, other: object) -> Traced:
        return self.graph.apply("remainder", (other, self))

    def __neg__(self) -> Traced:
        return self.graph.apply("negative", (self,))

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return self.graph.apply("absolute", (self,))

    def __pow__(self, exponent: object) -> Traced:
        return _power(self, exponent)

    def __rpow__(self, base: object) -> Traced:
        return self.graph.apply("power", (base, self))

    def __lt__(self, other: object) -> Traced:
        return self.graph.apply("less", (self, other))

    def __le__(self, other: object) -> Traced:
        return self.graph.apply("less_equal", (self, other))

    def __gt__(self, other: object) -> Traced:
        return self.graph.apply("greater", (self, other))

    def __ge__(self, other: object) -> Traced:
        return self.graph.apply("greater_equal", (self, other))

    def __eq__(self, other: object) -> Traced:  # type: ignore[override]
        return self.graph.apply("equal", (self, other))

    def __ne__(self, other: object) -> Traced:  # type: ignore[override]
        return self.graph.apply("not_equal", (self, other))

    __hash__ = object.__hash__

    def __and__(self, other: object) -> Traced:
        return self.graph.apply("logical_and", (self, other))

    def __or__(self, other: object) -> Traced:
        return self.graph.apply("logical_or", (self, other))

    def __invert__(self) -> Traced:
        return self.graph.apply("logical_not", (self,))

    def __array_ufunc__(self, ufunc: Any, method: str, *values: object, **options: object) -> Traced:
        """NumPy's functions of a traced value mean the operation of the same name."""
        name = ALIASES.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or options or name not in functions(operators=True):
            raise InvalidArgument(f"numpy.{ufunc.__name__} cannot be traced: use operators, or {_listing()}")
        traced: Traced = apply(name, *values)
        return traced

    def __bool__(self) -> NoReturn:
        raise InvalidArgument(
            "a traced value is neither true nor false: instead of if, and, or, not and chained comparisons "
            "use jd.where(condition, a, b) with & | ~, instead of min() and max() jd.minimum and jd.maximum"
        )

    def _refuse_number(self, *_: object) -> NoReturn:
        raise InvalidArgument(
            "a traced value has no number yet: instead of math.exp(x), float(x) and the like use "
            f"{_listing()}"
        )

    __float__ = __int__ = __index__ = __complex__ = _refuse_number

    def __round__(self, digits: int | None = None) -> Traced:
        if digits is not None:
            raise InvalidArgument(f"round(x, {digits}) cannot be traced: only to integers, or use jd.rint")
        return self.graph.apply("rint", (self,))

    def __trunc__(self) -> Traced:
        return self.graph.apply("trunc", (self,))

    def __floor__(self) -> Traced:
        return self.graph.apply("floor", (self,))

    def __ceil__(self) -> Traced:
        return self.graph.apply("ceil", (self,))

    def _refuse_operator(self, *_: object) -> NoReturn:
        raise InvalidArgument("@, <<, >> and ^ cannot be traced: the language has + - * / // % ** & | ~")

    __matmul__ = __rmatmul__ = _refuse_operator
    __lshift__ = __rshift__ = __xor__ = __rlshift__ = __rrshift__ = __rxor__ = _refuse_operator


def _power(base: Traced, exponent: object) -> Traced:
    """A power by a small integer as products (squares of squares), by 0.5 as a square root."""
    if isinstance(exponent, (int, float, np.number)):
        power = real_number(exponent, "an exponent")
        if power == 0.5:
            return base.graph.apply("sqrt", (base,))
        if power.is_integer() and abs(power) <= 64:
            count = abs(int(power))
            if count == 0:
                return base.graph.constant(1.0)
            square, result = base, None
            while count:
                if count & 1:
                    result = square if result is None else result * square
                count >>= 1
                square = square * square if count else square
            assert result is not None
            return result if power > 0 else 1.0 / result
    return base.graph.apply("power", (base, exponent))


_DEFINED: dict[str, Callable[..., Any]] = {}


def define(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a function written in the language to it: ``apply`` finds it by its name.

    It gets traced values, so that of plain numbers it computes what it does of traced ones. Parameters with a default
    are options, a coefficient for one, and are handed on as they are.
    """
    parameters = inspect.signature(function).parameters.values()
    count = sum(parameter.default is parameter.empty for parameter in parameters)

    def lift(graph: Graph, values: Sequence[Any]) -> tuple[Any, ...]:
        return (*map(graph.lift, values[:count]), *values[count:])

    @functools.wraps(function)
    def lifted(*values: Any) -> Any:
        for value in values:
            if isinstance(value, Operators):
                return value.apply_operation(function.__name__, values)
            if isinstance(value, Traced):
                return function(*lift(value.graph, values))
        graph = Graph(())
        try:
            result = function(*lift(graph, values))
        except TypeError:
            raise InvalidArgument(
                f"{function.__name__} takes {len(inspect.signature(function).parameters)} arguments, got {len(values)}"
            ) from None
        return graph.number(result)

    _DEFINED[function.__name__] = lifted
    return lifted


def functions(operators: bool = False) -> tuple[str, ...]:
    """Names of the functions that ``apply`` knows, without the operators or with them."""
    return (*(name for name, rule in OPERATIONS.items() if operators or rule.is_function), *_DEFINED)


def _listing() -> str:
    """What users can call: `jitdnn.log` is the log, so the logarithm is NumPy's."""
    return ", ".join("numpy.log" if name == "log" else f"jd.{name}" for name in functions())


def is_traced(*values: object) -> bool:
    """True if one of the values belongs to a function that is being traced."""
    for value in values:  # noqa: SIM110 - every call of an op that can be traced asks, and any() takes longer
        if isinstance(value, Traced):
            return True
    return False


def apply(name: str, *values: Any) -> Any:
    """The function ``name`` of traced values, of arrays on a GPU, or of plain numbers: ``apply("relu", acc)``."""
    for value in values:
        if isinstance(value, Operators):
            return value.apply_operation(name, values)
    if name in _DEFINED:
        return _DEFINED[name](*values)
    if name not in OPERATIONS:
        raise InvalidArgument(f"no function {name!r}: the functions are {', '.join(functions())}")
    for value in values:
        if isinstance(value, Traced):
            return value.graph.apply(name, values)
    graph = Graph(())
    return graph.number(graph.apply(name, values))


def where(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition holds, else ``no``; both are computed, neither spoils the other."""
    if isinstance(condition, (bool, np.bool_)):  # decided while tracing
        return yes if condition else no
    return apply("where", condition, yes, no)
