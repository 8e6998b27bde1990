"""A graph of ONNX as a straight list of steps over named values.

Everything that can be known without data is settled when it is read: which function runs, its attributes as
Python values, the initializers as arrays, and after which step a value is read no more. Reading raises
NotSupported for operators, attributes and types of values that are not covered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from jitdnn.errors import InvalidArgument, InvalidType, JitdnnError, NotSupported
from jitdnn.frameworks.onnx.inference import inferred
from jitdnn.frameworks.onnx.operator import Operator, Site
from jitdnn.frameworks.onnx.outside import array_of
from jitdnn.frameworks.onnx.sparse import dense
from jitdnn.graph.taken import is_on_gpu, taken
from jitdnn.graph.tracer import Bodies, Kind
from jitdnn.tensor import borrow

Values = dict[str, Any]
#: operators whose results are drawn anew at each run
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
#: operators by domain and name; the default domain of ONNX is ""
Table = Mapping[tuple[str, str], Operator]


@dataclass(frozen=True, slots=True)
class Step:
    """One node. `dead` names the values that nobody reads after it."""

    operator: Operator
    site: Site
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    dead: tuple[str, ...]
    node: onnx.NodeProto

    @property
    def title(self) -> str:
        """Its operator and name."""
        return f"{self.site.operator} {self.site.name!r}" if self.site.name else self.site.operator

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of what it reads, in the graphs inside of it too."""
        captured = (sorted(value.captured) for value in self.attributes.values() if isinstance(value, Graph))
        return (*(name for name in self.inputs if name), *(name for names in captured for name in names))

    @property
    def makes(self) -> tuple[str, ...]:
        """The names of its results."""
        return self.outputs

    @property
    def is_pure(self) -> bool:
        """False for what draws random numbers."""
        bodies = (value for value in self.attributes.values() if isinstance(value, Graph))
        return self.site.operator not in RANDOM and all(
            step.is_pure for body in bodies for step in body.steps
        )

    def compute(self, values: Mapping[str, Any], bodies: Bodies | None = None) -> tuple[Any, ...]:
        """The results of the operator over named values. `bodies` runs the graphs inside, in place of node by node."""
        arguments = [values[name] if name else None for name in self.inputs]
        attributes = {
            name: _body(value, values, bodies) if isinstance(value, Graph) else value
            for name, value in self.attributes.items()
        }
        if self.operator.takes_site:
            attributes["site"] = self.site
        try:
            result = self.operator.function(*arguments, **attributes)
        except InvalidType as error:
            raise self.site.refuse(f"types of the operands: {error}") from error
        except JitdnnError as error:
            error.add_note(f"in node {self.site.name!r} ({self.site.operator})")
            raise
        except (
            ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, MemoryError,
        ) as error:  # fmt: skip
            # from NumPy and onnx, which move elements, compute with shapes and look types up: numbers in the model, or
            # an input that it leaves out, mean nothing to them
            raise InvalidArgument(f"{self.site.operator} (node {self.site.name!r}): {error}") from error
        return result if isinstance(result, tuple) else (result,)

    def kinds(self, values: Mapping[str, Any]) -> list[Kind | None] | None:
        """Shapes and types of the results, by onnx's own inference; None where they are not known."""
        return inferred(self, values)

    def run(self, values: Values) -> None:
        """Read the inputs from `values`, put the outputs there and drop what is dead."""
        for name, value in zip(self.outputs, self.compute(values), strict=False):
            if name:
                values[name] = value
        for name in self.dead:
            values.pop(name, None)


def _body(graph: Graph, values: Mapping[str, Any], bodies: Bodies | None) -> Callable[..., tuple[Any, ...]]:
    if bodies is None:
        return functools.partial(graph.run, outer=values)
    return lambda *inputs: bodies(graph, inputs, values)


@dataclass(frozen=True, slots=True)
class Graph:
    """The steps of a graph, what it takes and what it gives."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Values
    steps: tuple[Step, ...]
    #: names from the graph around this one
    captured: frozenset[str] = field(default=frozenset())

    @classmethod
    def read(cls, graph: onnx.GraphProto, versions: Mapping[str, int], table: Table) -> Graph:
        """Read a graph and the graphs inside of its nodes. Raises NotSupported."""
        constants = {tensor.name: array_of(tensor) for tensor in graph.initializer}
        constants.update((tensor.values.name, dense(tensor)) for tensor in graph.sparse_initializer)
        outputs = tuple(value.name for value in graph.output)
        parts = [_read_node(node, versions, table) for node in graph.node]
        steps: list[Step] = []
        alive = set(outputs)
        # from the end: a value dies at the last step that reads it, also if that is one inside of a body
        for operator, site, node, attributes in reversed(parts):
            bodies = [value for value in attributes.values() if isinstance(value, Graph)]
            read = {name for name in node.input if name}.union(*(body.captured for body in bodies))
            dead = tuple(sorted((read | {name for name in node.output if name}) - alive))
            alive |= read
            light = _light(node)
            steps.append(Step(operator, site, tuple(node.input), tuple(node.output), attributes, dead, light))
        steps.reverse()
        inputs = tuple(value.name for value in graph.input)
        made = {name for step in steps for name in step.outputs}
        captured = frozenset(alive - made - set(inputs) - set(constants))
        return cls(inputs, outputs, constants, tuple(steps), captured)

    def values(self, inputs: Sequence[Any], outer: Mapping[str, Any] | None = None) -> Values:
        """What the steps begin with; `outer` has the values of the graph around this one."""
        values: Values = {name: (outer or {})[name] for name in self.captured}
        values.update(self.constants)
        values.update(zip(self.inputs, inputs, strict=False))
        return values

    def run(self, *inputs: Any, outer: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """The outputs for the inputs in their order, node by node."""
        values = self.values(inputs, outer)
        for step in self.steps:
            step.run(values)
        return tuple(values[name] for name in self.outputs)


def _read_node(
    node: onnx.NodeProto, versions: Mapping[str, int], table: Table
) -> tuple[Operator, Site, onnx.NodeProto, dict[str, Any]]:
    site = site_of(node, versions)
    operator = table.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
    if operator is None:
        raise NotSupported(f"operator {site.operator} is not covered")
    attributes = {a.name: _attribute(a, site, versions, table) for a in node.attribute}
    operator.check(site, node.input, attributes)
    return operator, site, node, attributes


def _light(node: onnx.NodeProto) -> onnx.NodeProto:
    """What inference of shapes reads of a node, apart from its model, which would stay in memory with its tensors."""
    found = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name, overload=node.overload)
    found.input.extend(node.input)
    found.output.extend(node.output)
    if node.input:  # else the results are computed, not inferred
        kinds = onnx.AttributeProto
        found.attribute.extend(a for a in node.attribute if a.type not in (kinds.GRAPH, kinds.GRAPHS))
    return found


def copied(message: Any) -> Any:
    """The same message of protobuf in memory of its own: a part of a larger one keeps the whole of it."""
    found = type(message)()
    found.CopyFrom(message)
    return found


def site_of(node: onnx.NodeProto, versions: Mapping[str, int]) -> Site:
    """Where a node stands, with its operator's name as errors have it."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    title = f"{domain}.{node.op_type}" if domain else node.op_type
    return Site(title, node.name, versions.get(domain, 1), tuple(bool(name) for name in node.output))


def _attribute(attribute: onnx.AttributeProto, site: Site, versions: Mapping[str, int], table: Table) -> Any:
    """An attribute as a Python value: numbers, text, tuples of them, an array, or a graph."""
    kinds = onnx.AttributeProto
    value = onnx.helper.get_attribute_value(attribute)
    match attribute.type:
        case kinds.STRING:
            return value.decode()
        case kinds.STRINGS:
            return tuple(text.decode() for text in value)
        case kinds.INTS | kinds.FLOATS:
            return tuple(value)
        case kinds.INT | kinds.FLOAT:
            return value
        case kinds.TENSOR:
            return array_of(value)
        case kinds.SPARSE_TENSOR:
            return dense(value)
        case kinds.GRAPH:
            return Graph.read(value, versions, table)
        case kinds.TYPE_PROTO:
            return copied(value)
    kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
    raise site.refuse(f"attribute {attribute.name!r} of kind {kind} is not covered")


def as_values(inputs: Iterable[Any], names: Sequence[str]) -> list[Any]:
    """What a caller gave, as arrays; sequences stay lists of them. Raises InvalidArgument for too many or
    too few."""
    given = list(inputs)
    if len(given) != len(names):
        raise InvalidArgument(
            f"{len(given)} inputs are given and the model takes {len(names)}: {list(names)}"
        )
    return [_as_value(value) for value in given]


def _as_value(value: Any) -> Any:
    if value is None:
        return value
    if type(value) is not np.ndarray:
        if is_on_gpu(value):
            return taken(value, "input")
        if isinstance(value, (list, tuple)):
            return [_as_value(item) for item in value]
        value = _host_array(value)
    return (
        value.astype(object) if value.dtype.kind in "UT" else value
    )  # text as ONNX has it: Python's strings


def _host_array(value: Any) -> np.ndarray[Any, Any]:
    """An array of any library in the host's memory as one of NumPy, on the same memory."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidType("an input is a masked array: its mask would be ignored, pass .filled(value)")
    has_own = isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__dlpack__")
    if has_own or tuple(getattr(value, "shape", (1,))) == ():  # NumPy's, what it knows, and numbers
        return np.asarray(value.detach() if hasattr(value, "detach") else value)
    return borrow(value, False, "input").numpy()  # bfloat16 and tensors with gradients, too
