"""Formulas as text: a scanner and a parser of their own, so that a text is operations on numbers and nothing else.

The grammar is that part of Python's expressions which the language has, with Python's precedence:

    formula     [names ":"] {name "=" expression ";"} results      newlines outside of parentheses separate, too
    results     expression {"," expression}
    expression  "not", one comparison, | & + - * / // % - ~ **, calls by name, numbers, names, parentheses

What is written as a chain, a + b + c, is read in a loop; only parentheses, signs and exponents nest.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jitdnn import limits
from jitdnn.errors import InvalidArgument, ParseError
from jitdnn.limits import shortened
from jitdnn.rtcg.operations import ALIASES, OPERATIONS
from jitdnn.rtcg.tracing import Graph, Traced, apply, functions

_TOKEN = re.compile(
    r"""(?P<space>[\ \t\r\f]++)
      | (?P<number>(?:[0-9][0-9_]*+\.?[0-9_]*+|\.[0-9][0-9_]*+)(?:[eE][+-]?[0-9]++)?)
      | (?P<name>[^\W\d]\w*+)
      | (?P<symbol>\*\*|//|<=|>=|==|!=|[-+*/%<>&|~(),;=\n])""",
    re.VERBOSE,
)
# operators between two operands: how tightly they bind, and the operation
_BINARY = {
    "<": (2, "less"),
    "<=": (2, "less_equal"),
    ">": (2, "greater"),
    ">=": (2, "greater_equal"),
    "==": (2, "equal"),
    "!=": (2, "not_equal"),
    "|": (3, "logical_or"),
    "&": (4, "logical_and"),
    "+": (5, "add"),
    "-": (5, "subtract"),
    "*": (6, "multiply"),
    "/": (6, "divide"),
    "//": (6, "floor_divide"),
    "%": (6, "remainder"),
    "**": (8, ""),
}
_COMPARISON, _SIGN, _POWER = 2, 7, 8
# operators in front of an operand: how tightly that binds, and the operation
_PREFIX = {"not": (_COMPARISON, "logical_not"), "-": (_SIGN, "negative"), "~": (_SIGN, "logical_not")}
_NAMES = {"abs": "absolute", "max": "maximum", "min": "minimum", "pow": "power", **ALIASES}
_CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}

Value = Traced | float


class _Token(NamedTuple):
    kind: str  # number, name, symbol, end
    text: str
    start: int


class FormulaText:
    """A text while it is read: `results` are its values in `graph`. Raises ParseError with the place."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > limits.FORMULA_CHARACTERS:
            raise ParseError(
                f"a formula of {len(text):,} characters: at most {limits.FORMULA_CHARACTERS:,} are read", text
            )
        head, colon, _ = text.partition(":")
        begin = len(head) + 1 if colon else 0
        self.tokens = self._scan(begin)
        self.position = self.depth = 0
        names = self._listed(head) if colon and head.strip() else self._free()
        self.graph = Graph(names)
        self.known: dict[str, Value] = {name: self.graph.input(i) for i, name in enumerate(names)}
        self.results: list[Value] = []
        self._statements()

    # ---- tokens

    def error(self, message: str, offset: int) -> ParseError:
        line = self.text.count("\n", 0, offset) + 1
        return ParseError(
            message, text=self.text, line=line, column=offset - self.text.rfind("\n", 0, offset)
        )

    def _listed(self, head: str) -> list[str]:
        names: list[str] = []
        offset = 0
        for part in head.split(","):
            name = part.strip()
            position = offset + len(part) - len(part.lstrip())
            if not name.isidentifier():
                raise self.error(f"{shortened(name)} is no name of an input", position)
            if name in names:
                raise self.error(f"{name!r} is listed twice", position)
            names.append(name)
            offset += len(part) + 1
        return names

    def _scan(self, offset: int) -> list[_Token]:
        tokens: list[_Token] = []
        depth = 0
        while offset < len(self.text):
            match = _TOKEN.match(self.text, offset)
            if match is None:
                raise self.error(f"{self.text[offset]!r} cannot be part of a formula", offset)
            kind, piece = match.lastgroup or "", match[0]
            depth += (piece == "(") - (piece == ")")
            if piece == "\n":  # as in Python it ends a statement, unless parentheses are open
                kind, piece = ("space", piece) if depth > 0 else (kind, ";")
            if kind == "number" and self.text[match.end() : match.end() + 1].isidentifier():
                raise self.error(
                    f"{shortened(piece)} runs into what follows: is a sign missing?", match.end()
                )
            if kind == "name" and keyword.iskeyword(piece) and piece != "not":
                raise self.error(f"{piece!r} cannot be part of a formula", offset)
            if kind != "space":
                tokens.append(_Token(kind, piece, offset))
            offset = match.end()
        # behind the last character that says something
        tokens.append(_Token("end", "", len(self.text.rstrip())))
        return tokens

    def _free(self) -> list[str]:
        """Names that are read and neither assigned nor functions or constants, in the order of the text."""
        pairs = [(token.text, after.text) for token, after in zip(self.tokens, self.tokens[1:], strict=False)
                 if token.kind == "name" and token.text != "not"]  # fmt: skip
        others = {name for name, after in pairs if after in ("=", "(")} | set(_CONSTANTS)
        return list(dict.fromkeys(name for name, _ in pairs if name not in others))

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    def _accept(self, *symbols: str) -> bool:
        if self.token.kind == "symbol" and self.token.text in symbols:
            self.position += 1
            return True
        return False

    def _found(self) -> str:
        return "the end" if self.token.kind == "end" else shortened(self.token.text)

    # ---- statements

    def _statements(self) -> None:
        while True:
            while self._accept(";"):
                pass
            token = self.token
            if token.kind == "end":
                break
            if token.kind == "name" and self.tokens[self.position + 1].text == "=":
                self.position += 2
                value = self._expression(_COMPARISON)
                self.known[token.text] = value
                self.results = [value]
                is_ended = self.token.kind == "end" or self._accept(";")
            else:
                self.results = self._results()
                is_ended = self.token.kind == "end" or self._accept(";")
                while self._accept(";"):
                    pass
                if is_ended and self.token.kind != "end":
                    raise self.error(
                        "a formula is assignments and at last the results, between semicolons", token.start
                    )
            if not is_ended:
                raise self.error(f"an operator is needed here, not {self._found()}", self.token.start)
        if not self.results:
            raise self.error("the formula is empty", 0)

    def _results(self) -> list[Value]:
        """Values between commas, of which the whole may stand in parentheses."""
        start = self.position
        if self._accept("("):
            inside = self._listing()
            if len(inside) != 1 and self._accept(")") and self.token.text in ("", ";"):
                return inside
            self.position = start  # the parentheses are those of a value; what was read of it is traced once
        return self._listing()

    def _listing(self) -> list[Value]:
        values = [self._expression(_COMPARISON)]
        while self._accept(","):
            if self.token.text in (")", ";", ""):
                return values
            values.append(self._expression(_COMPARISON))
        return values

    # ---- values

    def _nested(self, least: int) -> Value:
        """A value inside of parentheses, behind a sign or in an exponent."""
        if self.depth == limits.FORMULA_DEPTH:
            raise self.error(
                f"more than {limits.FORMULA_DEPTH} parentheses, signs and exponents inside of each other",
                self.token.start,
            )
        self.depth += 1
        value = self._expression(least)
        self.depth -= 1
        return value

    def _expression(self, least: int) -> Value:
        """A value of operators that bind at least as tightly as `least`."""
        value = self._operand(least)
        while self.token.kind == "symbol" and self.token.text in _BINARY:
            token = self.token
            binding, name = _BINARY[token.text]
            if binding < least:
                break
            self.position += 1
            if binding == _POWER:  # which binds to the right, and less tightly than a sign there
                exponent = self._nested(_SIGN)
                value = self._power(token, value, exponent)
                continue
            value = self._operation(token, name, value, self._expression(binding + 1))
            if binding == _COMPARISON and _BINARY.get(self.token.text, (0,))[0] == _COMPARISON:
                raise self.error(
                    "a chain of comparisons cannot be part of a formula: write (a < b) & (b < c)",
                    self.token.start,
                )
        return value

    def _operand(self, least: int) -> Value:
        token = self.token
        if token.text in _PREFIX:
            binding, name = _PREFIX[token.text]
            if binding < least:
                raise self.error(f"{token.text!r} needs parentheses here", token.start)
            self.position += 1
            value = self._nested(binding)
            if name == "negative" and isinstance(value, float):
                return -value
            return self._operation(token, name, value)
        if token.kind == "number":
            self.position += 1
            return self._number(token)
        if token.kind == "name":
            self.position += 1
            return self._call(token) if self._accept("(") else self._named(token)
        if self._accept("("):
            value = self._nested(_COMPARISON)
            if self.token.text == ",":
                raise self.error("several values in parentheses cannot be part of a formula", token.start)
            self._close(token)
            return value
        if token.text == "+":
            raise self.error("'+' without a left side cannot be part of a formula", token.start)
        raise self.error(f"a value is needed here, not {self._found()}", token.start)

    def _close(self, opened: _Token) -> None:
        if not self._accept(")"):
            what = f"the parenthesis of column {opened.start + 1} is not closed"
            raise self.error(f"{what}: ')' is needed, not {self._found()}", self.token.start)

    def _number(self, token: _Token) -> float:
        try:
            value = float(token.text)
        except ValueError:
            raise self.error(f"{shortened(token.text)} is no number", token.start) from None
        if math.isinf(value):
            raise self.error(
                f"{shortened(token.text)} is larger than every number of f64: write inf", token.start
            )
        return value

    def _named(self, token: _Token) -> Value:
        if token.text in self.known:
            return self.known[token.text]
        if token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        there = shortened(", ".join(self.known), 300).strip("'")
        raise self.error(
            f"{shortened(token.text).strip(chr(39))} is not known here: there are {there}", token.start
        )

    def _call(self, token: _Token) -> Value:
        arguments: list[Value] = []
        while not self._accept(")"):
            arguments.append(self._nested(_COMPARISON))
            if not self._accept(",") and self.token.text != ")":
                self._close(token)
        name = _NAMES.get(token.text, token.text)
        if name in functions() and name not in OPERATIONS:  # it is made of operations
            return self._made(token, lambda: apply(name, *(self.graph.lift(value) for value in arguments)))
        if name not in OPERATIONS:
            known = ", ".join(OPERATIONS)
            raise self.error(
                f"{shortened(token.text)} is none of the operations: there are {known}", token.start
            )
        return self._operation(token, name, *arguments)

    def _power(self, token: _Token, base: Value, exponent: Value) -> Value:
        return self._made(token, lambda: self.graph.lift(base) ** exponent)

    def _operation(self, token: _Token, name: str, *arguments: Value) -> Value:
        return self._made(token, lambda: self.graph.apply(name, arguments))

    def _made(self, token: _Token, make: Callable[[], Value]) -> Value:
        try:
            value = make()
        except (InvalidArgument, TypeError) as error:  # TypeError: a function of several gets another number
            raise self.error(str(error), token.start) from None
        if len(self.graph.steps) > limits.FORMULA_STEPS:
            raise self.error(
                f"more than {limits.FORMULA_STEPS:,} steps: divide the formula into several", token.start
            )
        return value


def read_formula(text: str) -> tuple[Graph, Sequence[Value]]:
    """The results of a formula as text, and the graph that they are in. Raises ParseError."""
    read = FormulaText(text)
    return read.graph, read.results
