"""Graphs for one kind of inputs: each value has its shape and type, each node says what it computes.

What a node does, by its `op`, and the attributes that say how:

    conv          jd.conv of x, w and operands of the epilogue: stride, padding, dilation, groups, epilogue
    matmul        jd.matmul of a and b, and operands of the epilogue: epilogue
    pointwise     an Expression over all inputs, broadcast as in NumPy: expression; its result may be of another type
    view          the same elements under another shape: kind (reshape, transpose, index, broadcast) and argument
    copy          the same elements, dense, or of another type
    concat        inputs one behind the other along axis
    primitive     a function of this package by its name, with arguments in which Slot(n) stands for input n
    call          a function of arrays that is run by the host between two lists of launches: run

Of `conv`, `matmul` and primitives `math` is the least arithmetic for float32, where it is not that of the settings.
A pass makes new nodes and leaves old ones as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

AnyArray = np.ndarray[Any, Any]
_numbers = itertools.count()


class Slot(NamedTuple):
    """The place of an input in the arguments of a primitive or a call."""

    number: int


@dataclass(eq=False, slots=True)
class Value:
    """An array that is known by shape and type; a constant has its elements in `array`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    array: AnyArray | None = None
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def is_constant(self) -> bool:
        """Whether its elements are known."""
        return self.array is not None

    @property
    def size(self) -> int:
        """Its number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def __str__(self) -> str:
        kind = "c" if self.is_constant else "v"
        return f"%{kind}{self.number} {self.dtype.name}{list(self.shape)}"


@dataclass(eq=False, slots=True)
class Node:
    """One operation. `origin` has the names of the front's own nodes that it stands for, first to last."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    origin: tuple[str, ...] = ()

    @property
    def output(self) -> Value:
        """The result of a node that has one."""
        (value,) = self.outputs
        return value

    def replaced(self, **changes: Any) -> Node:
        """A node with other parts, and attributes that are put beside or in the place of those that it has."""
        attributes = {**self.attributes, **changes.pop("attributes", {})}
        kept = {"op": self.op, "inputs": self.inputs, "outputs": self.outputs, "origin": self.origin}
        made = Node(**{**kept, **changes}, attributes=attributes)
        # a part that came in twice is named once: of a chain of x + x the names would double with every link
        made.origin = tuple(dict.fromkeys(made.origin))
        return made

    def __str__(self) -> str:
        made = ", ".join(map(str, self.outputs))
        read = ", ".join(map(str, self.inputs))
        how = ", ".join(f"{k}={v}" for k, v in self.attributes.items() if not callable(v))
        return f"{made} = {self.op}({read}; {how})  # {' + '.join(self.origin)}"


@dataclass(eq=False, slots=True)
class Graph:
    """Nodes in an order in which they can run."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.nodes))

    def uses(self) -> Uses:
        """Who makes and who reads each value."""
        return Uses(self)


class Uses:
    """Who makes and who reads the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.maker: dict[Value, Node] = {value: node for node in graph.nodes for value in node.outputs}
        self.readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in dict.fromkeys(node.inputs):
                self.readers.setdefault(value, []).append(node)
        self.leaving = set(graph.outputs)

    def only_reader(self, value: Value) -> Node | None:
        """The one node that reads a value that does not leave the graph, else None."""
        found = self.readers.get(value, ())
        return found[0] if len(found) == 1 and value not in self.leaving else None


def ordered(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in an order in which each comes behind those whose results it reads, else as they were."""
    maker = {value: node for node in nodes for value in node.outputs}
    done: dict[Node, None] = {}
    for root in nodes:
        stack: list[tuple[Node, Iterator[Value]]] = [(root, iter(root.inputs))]
        while stack:
            node, rest = stack[-1]
            if node in done:
                stack.pop()
                continue
            for value in rest:
                before = maker.get(value)
                if before is not None and before not in done:
                    stack.append((before, iter(before.inputs)))
                    break
            else:
                stack.pop()
                done[node] = None
    return tuple(done)


def filled(arguments: Any, arrays: Sequence[Any]) -> Any:
    """Arguments with arrays in the place of their slots."""
    if isinstance(arguments, Slot):
        return arrays[arguments.number]
    if isinstance(arguments, (list, tuple)) and not hasattr(arguments, "_fields"):
        return type(arguments)(filled(a, arrays) for a in arguments)
    if isinstance(arguments, dict):
        return {key: filled(a, arrays) for key, a in arguments.items()}
    return arguments
