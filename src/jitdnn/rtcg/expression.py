"""The one expression language: small functions of numbers, traced from Python, that every target can print.

``trace(lambda acc, bias: relu(acc + bias))`` calls the function once with traced values and keeps what it did
with them: a straight line of operations without loops or branches. Such an ``Expression`` is the body of an
elementwise kernel, an activation, or the epilogue fused into a convolution. It is frozen and hashable, has a
stable text, can be evaluated with NumPy, and can be differentiated.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.rtcg.derivatives import tangent_of
from jitdnn.rtcg.operations import OPERATIONS, bare, evaluate_operation
from jitdnn.rtcg.tracing import (
    Graph,
    Instruction,
    Traced,
    apply,
    define,
    functions,
    interpret,
    is_traced,
    where,
)

__all__ = [
    "Expression",
    "Graph",
    "Instruction",
    "Traced",
    "apply",
    "define",
    "finish",
    "functions",
    "is_traced",
    "trace",
    "traced_call",
    "where",
]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Expression:
    """A function of ``arity`` numbers as instructions in a canonical order; the last one is the result.

    Two expressions are equal if they compute the same steps, whatever their inputs are called.
    """

    arity: int
    instructions: tuple[Instruction, ...]
    inputs: tuple[str, ...] = field(repr=False)

    @functools.cached_property
    def key(self) -> str:
        """The canonical text with inputs named by position: the same in every process, fit for a cache."""
        return self._text([f"i{position}" for position in range(self.arity)])

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.arity, self.instructions))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return self is other or (self.arity, self.instructions) == (other.arity, other.instructions)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.arity, self.instructions, self.inputs)

    def __str__(self) -> str:
        return self._text(self.inputs)

    def _text(self, names: Sequence[str]) -> str:
        uses = [0] * len(self.instructions)
        for step in self.instructions:
            if step.operation != "input":
                for argument in step.arguments:
                    uses[argument] += 1
        texts: list[str] = []
        named: list[str] = []
        for position, step in enumerate(self.instructions):
            if step.operation == "input":
                text = names[step.arguments[0]]
            elif step.operation == "constant":
                text = step.text
            else:
                text = OPERATIONS[step.operation].text([texts[a] for a in step.arguments])
                if uses[position] > 1:
                    named.append(f"t{len(named)} = {bare(text)}")
                    text = f"t{len(named) - 1}"
            texts.append(text)
        return f"{', '.join(names)}: {'; '.join([*named, bare(texts[-1])])}"

    def used(self) -> frozenset[int]:
        """Positions of the inputs that the result depends on."""
        return frozenset(s.arguments[0] for s in self.instructions if s.operation == "input")

    def interpret(
        self,
        inputs: Sequence[T],
        constant: Callable[[float], T],
        apply: Callable[[str, list[T]], T],
    ) -> T:
        """Run the steps in any domain: code, text, arrays. ``apply`` gets an operation and its arguments."""
        if len(inputs) != self.arity:
            raise InvalidArgument(f"expression {self} takes {self.arity} inputs, got {len(inputs)}")
        return interpret(self.instructions, inputs, constant, apply)

    def of(self, *values: Any) -> Any:
        """The result for traced values: as a part of the function that is being traced."""
        return self.interpret(values, float, lambda name, arguments: apply(name, *arguments))

    def evaluate(self, *arrays: Any) -> np.ndarray[Any, Any]:
        """The result over arrays of one floating dtype, broadcast against each other, in that dtype."""
        operands = [np.asarray(array) for array in arrays]
        dtype = np.result_type(np.float32, *operands) if operands else np.dtype(np.float64)
        operands = [operand.astype(dtype, copy=False) for operand in operands]
        with np.errstate(all="ignore"):
            result = self.interpret(operands, lambda number: np.asarray(number, dtype), evaluate_operation)
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        return np.array(np.broadcast_to(np.asarray(result, dtype=dtype), shape))

    def derivative(self, with_respect_to: int | str = 0) -> Expression:
        """The partial derivative by one input (its position or name), as an expression of the same inputs.

        At a kink it is the derivative of the branch that the value takes: 0 for ``relu`` at 0.
        """
        position = self._position(with_respect_to)
        graph = Graph(self.inputs)
        values: list[Traced] = []
        tangents: list[Traced | None] = []  # None is an exact zero, which is never written out
        for step in self.instructions:
            tangent: Traced | None = None
            if step.operation == "input":
                value = graph.input(step.arguments[0])
                tangent = graph.constant(1.0) if step.arguments[0] == position else None
            elif step.operation == "constant":
                value = graph.constant(step.number)
            else:
                arguments = [values[a] for a in step.arguments]
                value = graph.apply(step.operation, arguments)
                changes = [tangents[a] for a in step.arguments]
                if any(change is not None for change in changes):
                    tangent = tangent_of(graph, step.operation, arguments, value, changes)
            values.append(value)
            tangents.append(tangent)
        return finish(graph, tangents[-1] if tangents[-1] is not None else graph.constant(0.0))

    def _position(self, name: int | str) -> int:
        if isinstance(name, str) and name in self.inputs:
            return self.inputs.index(name)
        if isinstance(name, int) and 0 <= name < self.arity:
            return name
        raise InvalidArgument(f"{name!r} is not an input of {self}: the inputs are {', '.join(self.inputs)}")


def finish(graph: Graph, result: Traced) -> Expression:
    """The expression of a graph's inputs that ends in ``result``."""
    return Expression(len(graph.inputs), graph.steps_to(result), graph.inputs)


def trace(function: Callable[..., Any] | Expression) -> Expression:
    """The expression of a Python function of one or more numbers.

    Each positional parameter becomes an input of the same name; parameters with a default are constants. The
    function is called once. Raises InvalidArgument, with what to write instead, where the function does
    something that cannot be traced.
    """
    if isinstance(function, Expression):
        return function
    try:
        parameters = inspect.signature(function).parameters.values()
    except Exception as error:  # of objects that look like functions too
        raise InvalidArgument(
            f"{shown(function)} cannot be traced: give a Python function or a lambda"
        ) from error
    names = []
    for parameter in parameters:
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidArgument(
                f"parameter {parameter} of the traced function: only positional parameters become inputs"
            )
        names.append(parameter.name)
    if not names:
        raise InvalidArgument("the traced function has no parameter: it needs one for each operand")
    graph = Graph(names)
    return finish(graph, graph.lift(traced_call(function, graph)))


def traced_call(function: Callable[..., Any], graph: Graph) -> Any:
    """What a caller's function returns for the inputs of a graph. Raises InvalidArgument for whatever it raises."""
    try:
        return function(*(graph.input(position) for position in range(len(graph.inputs))))
    except JitdnnError:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"{shown(function)} cannot be traced: called with a traced value for each of {', '.join(graph.inputs)} it "
            f"raised {type(error).__name__}: {shown(str(error))}"
        ) from error
