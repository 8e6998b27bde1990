"""Code of Keras or PyTorch that lists layers, as a net: it is parsed, and never run.

    model = keras.Sequential([                          nn.Sequential(
        layers.Input((28, 28, 1)),                          nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        layers.Conv2D(20, 5, activation="relu"),            nn.Flatten(), nn.Linear(20 * 12 * 12, 10),
        layers.MaxPooling2D(), layers.Flatten(),        )
        layers.Dense(10, activation="softmax")])

Lists in Sequential, `model.add(...)`, calls, `x = Conv2D(20, 5)(x)`, and modules whose layers `forward` calls; sums and
concatenations of branches. Arguments are numbers, texts, tuples and sums of numbers. There are no weights in code: the
net is trained.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.studio.nets.imports.code_layers import FORMS, FUNCTIONS, State, called, value_of
from jitdnn.studio.nets.imports.writing import NetWriter

MOST_TEXT: Final = 200_000


def read_code(text: str, shape: tuple[int, ...] | None = None) -> NetWriter:
    """The net that a text lists; `shape` (C, H, W) of images where it does not say. Raises InvalidArgument."""
    if len(text) > MOST_TEXT:
        raise InvalidArgument(f"the text has {len(text):,} characters: {MOST_TEXT:,} are read")
    try:
        tree = ast.parse(text)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        given = next((found for found in map(_input_shape, calls) if found), None)
        net = NetWriter("Imported", given or shape or (1, 28, 28))
        _Walker(net).body(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidArgument):
            raise
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise InvalidArgument(
            f"this is no code of Python that is read: {where}{error.args[0] if error.args else error}"
        ) from None
    if not net.report:
        raise InvalidArgument(
            "no layers are listed: give Sequential([...]), model.add(...) or x = Layer(...)(x)"
        )
    return net


class _Walker:
    """Statements, one after the other: names of layers that were made, and of what they give."""

    def __init__(self, net: NetWriter) -> None:
        self._net, self._state = net, State(net)
        self._layers: dict[str, list[ast.Call]] = {}
        self._blobs: dict[str, str] = {}
        self._is_class = False

    def body(self, statements: Sequence[ast.stmt]) -> None:
        """All of them; of classes and functions what is in them."""
        for each in statements:
            match each:
                case ast.Assign(targets=[target], value=value):
                    self._statement(ast.unparse(target), value)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._statement(ast.unparse(target), value)
                case ast.AugAssign(target=ast.Name(id=name) as target, op=ast.Add(), value=value):
                    self._statement(
                        name, ast.copy_location(ast.BinOp(ast.Name(name), ast.Add(), value), each)
                    )
                case ast.Return(value=ast.expr() as value) | ast.Expr(value=value):
                    self._statement("", value)
                case ast.ClassDef(body=inner):
                    self._is_class = True
                    self.body(inner)
                    self._is_class = False
                case ast.FunctionDef(name=name, args=arguments, body=inner):
                    if name in ("forward", "call"):
                        self._blobs |= {argument.arg: "data" for argument in arguments.args[1:2]}
                        self._state.x = "data"
                    self.body(inner)
                case ast.For() | ast.While() if self._makes_layers(each):
                    self._net.step(f"line {each.lineno}", ast.unparse(each).split("\n", 1)[0], _loop)
                case ast.If(body=inner) | ast.With(body=inner):
                    self.body(inner)

    def _makes_layers(self, node: ast.stmt) -> bool:
        return any(called(one) in FORMS for one in ast.walk(node))

    def _statement(self, target: str, value: ast.expr) -> None:
        name = called(value)
        if name in ("Input", "InputLayer"):
            self._blobs[target] = "data"
        elif isinstance(value, ast.Call) and name == "Sequential":
            listed = _listed(value)
            if self._is_class:
                self._layers[target] = listed
            else:
                for call in listed:
                    self._add(call)
        elif isinstance(value, ast.Call) and name == "add" and isinstance(value.func, ast.Attribute):
            for one in value.args:
                if isinstance(one, ast.Call):
                    self._add(one)
        elif isinstance(value, ast.Call) and name in FORMS and not isinstance(value.func, ast.Call):
            if name not in FUNCTIONS and ast.unparse(value.func) not in self._layers:
                self._layers[target] = [value]
            else:
                self._keep(target, value)
        else:
            self._keep(target, value)

    def _keep(self, target: str, value: ast.expr) -> None:
        found = self._blob(value)
        if found is not None:
            self._blobs[target] = found

    def _add(self, call: ast.Call, several: Sequence[str] = ()) -> None:
        """A layer behind the blob that is read now."""
        self._net.step(
            f"line {call.lineno}", ast.unparse(call)[:200], lambda: self._state.take(call, several)
        )

    def _blob(self, node: ast.expr) -> str | None:
        """What an expression gives; layers are added on the way. None for what is no blob."""
        if isinstance(node, ast.Name):
            return self._blobs.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            several = [self._blob(node.left), self._blob(node.right)]
            if None in several:
                return None
            call = ast.copy_location(ast.Call(ast.Name("Add"), [], []), node)
            return self._applied([call], [each for each in several if each])
        if not isinstance(node, ast.Call):
            return None
        calls = [node.func] if isinstance(node.func, ast.Call) else self._layers.get(ast.unparse(node.func))
        if calls is not None and isinstance(node.func, ast.Call) and called(node.func) == "Sequential":
            calls = _listed(node.func)
        arguments = list(node.args)
        if calls is None:
            name = called(node)
            if name not in FUNCTIONS:
                return None
            if isinstance(node.func, ast.Attribute) and self._blob_name(node.func.value):
                arguments.insert(0, node.func.value)  # x.view(...)
            words = [] if name in ("view", "reshape") else arguments[1:]
            kept = [] if name in ("view", "reshape", "cat", "concat") else node.keywords
            if name in ("cat", "concat"):
                words = []
            made = ast.Call(
                ast.Name(FUNCTIONS[name]), words, [k for k in kept if k.arg not in ("training", "p_")]
            )
            calls = [ast.copy_location(made, node)]
        if not arguments:
            return None
        first = arguments[0]
        listed = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
        blobs = [self._blob(each) for each in listed]
        if not all(blobs):
            return None
        return self._applied(calls, [each for each in blobs if each])

    def _blob_name(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) or (isinstance(node, ast.Name) and node.id in self._blobs)

    def _applied(self, calls: Sequence[ast.Call], blobs: list[str]) -> str:
        self._state.x = blobs[0]
        for call in calls:
            self._add(call, blobs)
            blobs = [self._state.x]
        return self._state.x


def _loop() -> None:
    raise NotSupported("a loop would have to be run: list its layers")


def _listed(call: ast.Call) -> list[ast.Call]:
    """The layers of a Sequential, those of one within it as well."""
    found: list[ast.Call] = []
    for each in call.args:
        for one in each.elts if isinstance(each, ast.List | ast.Tuple) else [each]:
            if isinstance(one, ast.Call):
                found += _listed(one) if called(one) == "Sequential" else [one]
    return found


def _input_shape(call: ast.Call) -> tuple[int, ...] | None:
    """The shape (C, H, W) that a layer says of its input: Keras' are (H, W, C)."""
    words = {each.arg: each.value for each in call.keywords}
    given = words.get("input_shape") or words.get("shape") if called(call) != "Reshape" else None
    if given is None and called(call) in ("Input", "InputLayer") and call.args:
        given = call.args[0]
    if given is None:
        return None
    try:
        shape = value_of(given)
    except NotSupported:
        return None
    if not isinstance(shape, tuple) or not all(
        isinstance(each, int) and 0 < each < 1 << 16 for each in shape
    ):
        return None
    return {1: (*shape, 1, 1), 2: (1, *shape), 3: (shape[-1], *shape[:2])}.get(len(shape))
