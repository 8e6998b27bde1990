"""Functions of several results, and formulas as text: both become expressions.

x, y: t = exp(x); t + y, t * y         two results of two inputs; names are assigned on the way
a * x + y                              without a list of inputs they are taken as they come
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jitdnn.errors import InvalidArgument, ParseError
from jitdnn.rtcg.expression import Expression, Graph, Traced, apply, functions
from jitdnn.rtcg.operations import ALIASES, OPERATIONS


class Formula(NamedTuple):
    """Results of the same inputs, and which of them are conditions, written as 1 and 0."""

    results: tuple[Expression, ...]
    is_truth: tuple[bool, ...]


def formula(function: Callable[..., Any] | Expression | str | Formula) -> Formula:
    """The formula of a Python function, which may return a tuple, of a traced expression, or of text.

    Raises InvalidArgument where the function does what cannot be traced, ParseError for text.
    """
    if isinstance(function, Formula):
        return function
    if isinstance(function, Expression):
        return Formula((function,), (False,))
    if isinstance(function, str):
        return parse_formula(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{function!r} cannot be traced: give a Python function or a lambda") from error
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidArgument(
                f"parameter {parameter} of the traced function: only positional parameters become inputs"
            )
    names = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    graph = Graph(names)
    results = function(*(graph.input(position) for position in range(len(names))))
    return _finish(graph, results if isinstance(results, tuple) else (results,))


def _finish(graph: Graph, results: Sequence[object]) -> Formula:
    if not results:
        raise InvalidArgument("the function returns no result: return a value, or a tuple of values")
    expressions, truths = [], []
    for result in results:
        value = graph.lift(result)
        is_truth = graph.is_truth(value)
        if is_truth:
            value = graph.apply("where", (value, 1.0, 0.0))
        expressions.append(graph.finish(value))
        truths.append(is_truth)
    return Formula(tuple(expressions), tuple(truths))


_WHOLE = frozenset(
    {
        *("add", "subtract", "multiply", "negative", "absolute", "minimum", "maximum", "where", "input"),
        *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
        *("logical_and", "logical_or", "logical_not"),
        *("floor", "ceil", "trunc", "rint", "fmod", "sign", "remainder", "floor_divide"),
    }
)


def is_whole(expression: Expression) -> bool:
    """True if of whole numbers the expression makes whole numbers, by operations that integers have."""
    return all(
        step.number.is_integer() if step.operation == "constant" else step.operation in _WHOLE
        for step in expression.instructions
    )


_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.BitAnd: "logical_and",
    ast.BitOr: "logical_or",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
_UNARY: dict[type[ast.AST], str] = {ast.USub: "negative", ast.Invert: "logical_not", ast.Not: "logical_not"}
_NAMES = {"abs": "absolute", "max": "maximum", "min": "minimum", "pow": "power", **ALIASES}
_CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}


def parse_formula(text: str) -> Formula:
    """The formula that `text` writes, as the module's heading shows. Raises ParseError with the place."""
    head, colon, body = text.partition(":")
    if not colon:
        head, body = "", text
    names = [name.strip() for name in head.split(",")] if head.strip() else []
    for name in names:
        if not name.isidentifier():
            raise ParseError(
                f"{name!r} is no name of an input", text=text, line=1, column=max(1, text.find(name) + 1)
            )
    offset = len(text) - len(body) + len(body) - len(body.lstrip())
    try:
        tree = ast.parse(body.strip())
    except SyntaxError as error:
        raise ParseError(
            f"{error.msg} in a formula", text=text, line=1, column=offset + (error.offset or 1)
        ) from None
    return _Parser(text, offset, names or _free_names(tree)).formula(tree)


def _free_names(tree: ast.Module) -> list[str]:
    """Names that are read and neither assigned nor functions or constants, in the order of the text."""
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    read = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    read.sort(key=lambda n: (n.lineno, n.col_offset))
    return list(dict.fromkeys(n.id for n in read if n.id not in assigned | called | set(_CONSTANTS)))


class _Parser:
    def __init__(self, text: str, offset: int, names: Sequence[str]) -> None:
        self.text, self.offset = text, offset
        self.graph = Graph(names)
        self.known: dict[str, object] = {name: self.graph.input(i) for i, name in enumerate(names)}

    def error(self, node: ast.AST, message: str) -> ParseError:
        column = self.offset + getattr(node, "col_offset", 0) + 1
        return ParseError(message, text=self.text, line=getattr(node, "lineno", 1), column=column)

    def formula(self, tree: ast.Module) -> Formula:
        results: list[object] = []
        for number, statement in enumerate(tree.body):
            is_last = number == len(tree.body) - 1
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                value = self.value(statement.value)
                self.known[statement.targets[0].id] = value
                results = [value]
            elif isinstance(statement, ast.Expr) and is_last:
                node = statement.value
                parts = node.elts if isinstance(node, ast.Tuple) else [node]
                results = [self.value(part) for part in parts]
            else:
                raise self.error(
                    statement, "a formula is assignments and at last the results, between semicolons"
                )
        if not results:
            raise ParseError("the formula is empty", text=self.text, line=1, column=1)
        return _finish(self.graph, results)

    def value(self, node: ast.expr) -> object:
        """The value of a node: traced, or a number."""
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return float(node.value)
        if isinstance(node, ast.Name):
            if node.id in self.known:
                return self.known[node.id]
            if node.id in _CONSTANTS:
                return _CONSTANTS[node.id]
            raise self.error(node, f"{node.id} is not known here: there are {', '.join(self.known)}")
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(node.op, ast.Pow):
                return self.graph.lift(left) ** right
            return self.operation(node, _BINARY.get(type(node.op)), left, right)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.value(node.left), self.value(node.comparators[0])
            return self.operation(node, _BINARY.get(type(node.ops[0])), left, right)
        if isinstance(node, ast.UnaryOp):
            operand = self.value(node.operand)
            if isinstance(node.op, ast.USub) and isinstance(operand, float):
                return -operand
            return self.operation(node, _UNARY.get(type(node.op)), operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            name = _NAMES.get(node.func.id, node.func.id)
            arguments = [self.value(argument) for argument in node.args]
            if name in functions() and name not in OPERATIONS:  # it is made of operations
                return self.composed(node, name, arguments)
            return self.operation(node, name if name in OPERATIONS else None, *arguments)
        raise self.error(node, f"{ast.unparse(node)!r} cannot be part of a formula")

    def composed(self, node: ast.expr, name: str, arguments: Sequence[object]) -> object:
        try:
            return apply(name, *(self.graph.lift(argument) for argument in arguments))
        except (InvalidArgument, TypeError) as error:
            raise self.error(node, str(error)) from None

    def operation(self, node: ast.expr, name: str | None, *arguments: object) -> Traced:
        if name is None:
            raise self.error(
                node, f"{ast.unparse(node)!r} is none of the operations: there are {', '.join(OPERATIONS)}"
            )
        try:
            return self.graph.apply(name, arguments)
        except InvalidArgument as error:
            raise self.error(node, str(error)) from None
