"""Reals of 32 bits stored as half of that: halves of IEEE 754 or bfloat16, computed with sums of 32 bits as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jitdnn
from jitdnn.errors import JitdnnError
from jitdnn.graph.handle import dry
from jitdnn.graph.ir import AnyArray, Graph, Node, Value, filled
from jitdnn.graph.passes.memo import Memo
from jitdnn.rtcg.expression import trace

_WIDE = np.dtype(np.float32)
_identity = trace(lambda v: v)
_FREE = ("view", "copy", "concat")  # nodes that take any type


class _Narrowing:
    def __init__(self, graph: Graph, dtype: np.dtype[Any], memo: Memo) -> None:
        self._dtype, self._memo = dtype, memo
        self._narrow: dict[Value, Value] = {}
        self._wide: dict[Value, Value] = {}
        self.nodes: list[Node] = []
        for value in graph.inputs:
            self._wide[value] = value
        for node in graph.nodes:
            self._add(node)
        outputs = tuple(self.wide(value, ("an output",)) for value in graph.outputs)
        self.graph = Graph(graph.inputs, outputs, tuple(self.nodes))

    def _cast(self, value: Value, dtype: np.dtype[Any], origin: tuple[str, ...]) -> Value:
        made = Value(value.shape, dtype)
        attributes = {"expression": _identity}
        self.nodes.append(Node("pointwise", (value,), (made,), attributes, origin))
        return made

    def wide(self, value: Value, origin: tuple[str, ...]) -> Value:
        """The value as the graph had it."""
        if value.dtype != _WIDE or value.array is not None:
            return value
        if value not in self._wide:
            self._wide[value] = self._cast(self._narrow[value], _WIDE, origin)
        return self._wide[value]

    def _narrowed(self, value: Value, origin: tuple[str, ...]) -> Value:
        if value.dtype != _WIDE:
            return value
        found = self._narrow.get(value)
        if found is None:
            if value.array is None:
                found = self._cast(self._wide[value], self._dtype, origin)
            else:
                array = self._memo.get("narrow", (value.array,), lambda: self._rounded(value), self._dtype)
                found = Value(value.shape, self._dtype, array)
            self._narrow[value] = found
        return found

    def _rounded(self, value: Value) -> AnyArray:
        assert value.array is not None
        with np.errstate(over="ignore"):
            found: AnyArray = value.array.astype(self._dtype)
        return found

    def _kept(self, value: Value) -> Value:
        """An operand of a formula, which takes numbers of several types: constants stay as exact as they are."""
        return value if value.array is not None else self._either(value)

    def _either(self, value: Value) -> Value:
        if value.dtype != _WIDE:
            return value
        return self._narrow.get(value) or self._wide[value]

    def _add(self, node: Node) -> None:
        origin = node.origin
        if node.op in ("conv", "matmul") and node.inputs[0].dtype == _WIDE:
            factors = tuple(self._narrowed(value, origin) for value in node.inputs[:2])
            more = tuple(
                value if value.array is not None else self._narrowed(value, origin)
                for value in node.inputs[2:]
            )
            self._put(node, (*factors, *more))
        elif node.op == "pointwise":
            self._put(node, tuple(map(self._kept, node.inputs)))
        elif node.op in _FREE or (node.op == "primitive" and self._takes(node)):
            self._put(node, tuple(self._narrowed(value, origin) for value in node.inputs))
        else:
            self.nodes.append(node.replaced(inputs=tuple(self.wide(value, origin) for value in node.inputs)))
            self._wide.update((value, value) for value in node.outputs if value.dtype == _WIDE)

    def _put(self, node: Node, inputs: tuple[Value, ...]) -> None:
        outputs = []
        for value in node.outputs:
            made = Value(value.shape, self._dtype) if value.dtype == _WIDE else value
            outputs.append(made)
            if made is not value:
                self._narrow[value] = made
        self.nodes.append(node.replaced(inputs=inputs, outputs=tuple(outputs)))

    def _takes(self, node: Node) -> bool:
        """Whether a function gives results of the narrow type for such operands: it is asked."""
        function: Callable[..., Any] | None = getattr(jitdnn, node.attributes["name"], None)
        if function is None or not any(value.dtype == _WIDE for value in node.inputs):
            return False
        stand_ins = [
            np.zeros(value.shape, self._dtype if value.dtype == _WIDE else value.dtype)
            if value.array is None or value.dtype == _WIDE
            else value.array
            for value in node.inputs
        ]
        try:
            args, kwargs = (filled(node.attributes[key], stand_ins) for key in ("args", "kwargs"))
            results = function(*args, **kwargs, handle=dry)
        except (JitdnnError, ValueError, TypeError):
            return False
        flat = results if isinstance(results, tuple) else (results,)
        wanted = [self._dtype if value.dtype == _WIDE else value.dtype for value in node.outputs]
        return [result.dtype for result in flat] == wanted


def narrowed(graph: Graph, dtype: np.dtype[Any], memo: Memo) -> Graph:
    """The graph with what was float32 stored as `dtype`, but for its inputs, its outputs, what functions of the host
    take, and constants that are added to or multiplied by elements."""
    return _Narrowing(graph, dtype, memo).graph
