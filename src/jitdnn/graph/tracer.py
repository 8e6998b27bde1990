"""Steps of a front run over operands, for one kind of inputs: their nodes become a graph.

A step whose inputs are all known is computed at once, which folds constants and arithmetic of shapes. One that cannot
be traced becomes a `call`, if the shapes of its results can be told, and ends the graph otherwise: what follows is
traced when they are there (`Rest`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from jitdnn.errors import JitdnnError, NotSupported
from jitdnn.graph.handle import dry
from jitdnn.graph.ir import AnyArray, Graph, Node, Slot, Value, filled
from jitdnn.graph.operand import NeedsValue, Operand, Untraceable
from jitdnn.graph.passes.memo import Memo
from jitdnn.graph.taken import is_on_gpu, taken
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.rtcg.functions import trunc, where
from jitdnn.tensor import dtype_name

Kind = tuple[tuple[int, ...], np.dtype[Any]]
#: runs a graph inside of a step: (graph, its inputs, the values around it) -> its outputs
Bodies = Callable[[Any, Sequence[Any], Mapping[str, Any]], tuple[Any, ...]]

_MOST_NODES = 50_000
_MOST_BODIES = 128  # runs of bodies: longer loops are run by the host


class Step(Protocol):
    """One node of a front: a function of named values."""

    @property
    def title(self) -> str:
        """Its operator and name, for errors and explanations."""

    @property
    def reads(self) -> Sequence[str]:
        """The names of the values that it reads."""

    @property
    def makes(self) -> Sequence[str]:
        """The names of its results in order; "" for those that nobody reads."""

    @property
    def is_pure(self) -> bool:
        """Whether equal inputs give equal results."""

    def compute(self, values: Mapping[str, Any], bodies: Bodies | None = None) -> tuple[Any, ...]:
        """The results. `bodies` runs the graphs inside of the step, in place of its own way."""

    def kinds(self, values: Mapping[str, Any]) -> Sequence[Kind | None] | None:
        """Shapes and types of the results for operands and arrays; None where elements decide."""


@dataclass(frozen=True)
class Rest:
    """The steps from one on that could not be traced: `step` is run by the host, then `steps`."""

    step: Step
    steps: tuple[Step, ...]
    reason: str


class Tracer:
    """Nodes as they are found. `calls`: title of a step -> why the host runs it; `has_dot`: bytes are multiplied faster
    than reals; `known` computes a step whose operands are known.
    """

    def __init__(
        self, memo: Memo | None = None, unforeseen: Collection[str] = (), has_dot: bool = False,
        known: Callable[[Step, Mapping[str, Any]], tuple[Any, ...]] | None = None,
    ) -> None:  # fmt: skip
        self.memo = memo or Memo()
        self.has_dot = has_dot
        self._known = known or (lambda step, values: step.compute(values))
        self._unforeseen = unforeseen  # steps whose results are of kinds that cannot be told
        self.nodes: list[Node] = []
        self.calls: dict[str, str] = {}
        self.asked: set[Value] = set()  # whose elements were asked for
        self._constants: dict[int, tuple[Any, Value]] = {}  # with the array, whose identity is the key
        self._fetched: dict[int, tuple[Any, AnyArray]] = {}  # with the array of the GPU
        self._origin: tuple[str, ...] = ()
        self._bodies = 0

    def input(self, shape: Sequence[int], dtype: Any) -> Operand:
        """An operand that the graph is given."""
        return Operand(self, Value(tuple(shape), np.dtype(dtype)))

    def value(self, array: Any) -> Value:
        """The value of an operand, or of an array whose elements are known."""
        if isinstance(array, Operand):
            return array.value
        known = np.asarray(array)
        if dtype_name(known.dtype) is None:
            raise Untraceable(f"a constant of type {known.dtype}")
        held = self._constants.get(id(array))
        if held is None:
            held = self._constants[id(array)] = array, Value(known.shape, known.dtype, known)
        return held[1]

    def known(self, value: Any) -> Any:
        """A value with an array in the memory of a GPU copied to the host, where constants are folded."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.known(one) for one in value) if any(map(is_on_gpu, value)) else value
        if not is_on_gpu(value):
            return value
        held = self._fetched.get(id(value))
        if held is None:
            held = self._fetched[id(value)] = value, taken(value, "a constant").numpy()
        return held[1]

    def add(self, op: str, inputs: Sequence[Any], kinds: Sequence[Kind], **attributes: Any) -> list[Operand]:
        """Add a node and return its results."""
        if len(self.nodes) >= _MOST_NODES:
            raise Untraceable(f"more than {_MOST_NODES} operations")
        for _, dtype in kinds:
            if dtype_name(dtype) is None:
                raise Untraceable(f"results of type {dtype}")
        values = tuple(self.value(one) for one in inputs)
        outputs = tuple(Value(tuple(shape), np.dtype(dtype)) for shape, dtype in kinds)
        self.nodes.append(Node(op, values, outputs, attributes, self._origin))
        return [Operand(self, value) for value in outputs]

    def pointwise(
        self, expression: Expression, arrays: Sequence[Any], dtype: Any, **attributes: Any
    ) -> Operand:
        """One formula over all elements."""
        for array in arrays:
            if array.dtype == np.uint64 or dtype_name(array.dtype) is None:
                raise Untraceable(f"arithmetic of {array.dtype}")
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        kinds = [(shape, np.dtype(dtype))]
        return self.add("pointwise", arrays, kinds, expression=expression, **attributes)[0]

    def concat(self, arrays: Sequence[Any], axis: int) -> Operand:
        """Arrays of one type joined along an axis."""
        first = arrays[0]
        rank = len(first.shape)
        axis %= rank
        for array in arrays:
            if array.dtype != first.dtype:
                raise Untraceable("arrays of several types are joined")
            if any(
                a != b for n, (a, b) in enumerate(zip(array.shape, first.shape, strict=True)) if n != axis
            ):
                raise ValueError(
                    f"arrays of shapes {[a.shape for a in arrays]} cannot be joined on axis {axis}"
                )
        total = sum(array.shape[axis] for array in arrays)
        shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
        present = [array for array in arrays if array.shape[axis]] or [first]
        if len(present) == 1 and isinstance(present[0], Operand):
            return present[0]
        return self.add("concat", present, [(shape, first.dtype)], axis=axis)[0]

    def cast(self, x: Operand, dtype: np.dtype[Any]) -> Operand:
        """The same numbers as another type holds them."""
        if x.dtype == dtype:
            return x
        names = dtype_name(x.dtype), dtype_name(dtype)
        if (
            None in names
            or any(str(name).startswith("f8") for name in names)
            or np.uint64 in (x.dtype, dtype)
        ):
            raise Untraceable(f"conversion from {x.dtype} to {dtype}")
        real = [d.kind == "f" or d.name == "bfloat16" for d in (x.dtype, dtype)]
        if dtype.kind == "b":
            return self.pointwise(trace(lambda v: where(v != 0.0, 1.0, 0.0)), [x], dtype)
        if real == [True, False]:
            return self.pointwise(trace(lambda v: trunc(v)), [x], dtype)
        return self.pointwise(trace(lambda v: v), [x], dtype)

    def primitive(self, name: str, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """A function of this package whose arguments hold operands; its shapes by a call that runs nothing."""
        inputs: list[Any] = []

        def placed(argument: Any) -> Any:
            if isinstance(argument, (Operand, np.ndarray)):
                inputs.append(argument)
                return Slot(len(inputs) - 1)
            if isinstance(argument, (list, tuple)) and any(
                isinstance(a, (Operand, np.ndarray)) for a in argument
            ):
                return type(argument)(placed(a) for a in argument)
            return argument

        given = tuple(placed(a) for a in args)
        named = {key: placed(a) for key, a in kwargs.items()}
        stand_ins = [np.zeros(x.shape, x.dtype) if isinstance(x, Operand) else x for x in inputs]
        results = function(*filled(given, stand_ins), **filled(named, stand_ins), handle=dry)
        flat = results if isinstance(results, tuple) else (results,)
        if not all(isinstance(y, np.ndarray) for y in flat):
            raise Untraceable(f"{name} gives more than arrays")
        made = self.add(
            "primitive", inputs, [(y.shape, y.dtype) for y in flat], name=name, args=given, kwargs=named
        )
        return tuple(made) if isinstance(results, tuple) else made[0]

    def run(self, steps: Sequence[Step], values: dict[str, Any]) -> Rest | None:
        """Run steps over `values` and put their results there; what could not be traced."""
        for position, step in enumerate(steps):
            outer, self._origin = self._origin, (*self._origin[:-1], step.title)[-2:]
            try:
                reason = self._step(step, values)
            finally:
                self._origin = outer
            if reason is not None:
                return Rest(step, tuple(steps[position + 1 :]), reason)
        return None

    def _step(self, step: Step, values: dict[str, Any]) -> str | None:
        """Trace one step; why not, if the shapes of its results are not known."""
        read = [values.get(name) for name in step.reads]
        if not any(True for _ in operands_in(read)):
            if not step.is_pure:
                return "no two runs of it give the same"
            _put(step, values, self._known(step, values))
            return None
        before = len(self.nodes)
        try:
            if not step.is_pure:
                raise Untraceable("no two runs of it give the same")
            _put(step, values, step.compute(values, self._body))
            return None
        except NeedsValue as error:
            self.asked.add(error.operand.value)
            reason = f"{error}"
        except Untraceable as error:
            reason = str(error)
        except (
            JitdnnError,
            ValueError,
            TypeError,
            IndexError,
            AttributeError,
            KeyError,
            ArithmeticError,
        ) as error:
            reason = f"{type(error).__name__}: {error}"
        del self.nodes[before:]
        kinds = None if step.title in self._unforeseen else step.kinds(values)
        if kinds is None or any(kind is not None and dtype_name(kind[1]) is None for kind in kinds):
            return reason
        self._call(step, values, kinds, reason)
        return None

    def _call(self, step: Step, values: dict[str, Any], kinds: Sequence[Kind | None], reason: str) -> None:
        names, inputs, fixed = [], [], {}
        for name in dict.fromkeys(step.reads):
            held = values.get(name)
            if isinstance(held, Operand):
                names.append(name)
                inputs.append(held)
            elif any(True for _ in operands_in([held])):
                raise NotSupported(
                    f"{step.title} takes a sequence of tensors that the host would have to keep"
                )
            else:
                fixed[name] = held
        wanted = [number for number, name in enumerate(step.makes) if name and number < len(kinds)]
        present = [kinds[number] for number in wanted]
        if any(kind is None for kind in present):
            raise NotSupported(f"{step.title} has optional results")

        def run(arrays: Sequence[AnyArray], bodies: Bodies | None = None) -> list[Any]:
            results = step.compute({**fixed, **dict(zip(names, arrays, strict=True))}, bodies)
            return [results[number] for number in wanted]

        made = self.add(
            "call", inputs, [kind for kind in present if kind is not None], run=run, title=step.title
        )
        for number, operand in zip(wanted, made, strict=True):
            values[step.makes[number]] = operand
        self.calls[step.title] = reason

    def _body(self, graph: Any, inputs: Sequence[Any], outer: Mapping[str, Any]) -> tuple[Any, ...]:
        self._bodies += 1
        if self._bodies > _MOST_BODIES:
            raise Untraceable(f"more than {_MOST_BODIES} runs of bodies")
        values = graph.values(inputs, outer)
        rest = self.run(graph.steps, values)
        if rest is not None:
            raise Untraceable(f"{rest.step.title} inside of it: {rest.reason}")
        return tuple(values[name] for name in graph.outputs)

    def graph(self, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Graph:
        """What was traced, from these inputs to these outputs."""
        return Graph(tuple(x.value for x in inputs), tuple(y.value for y in outputs), tuple(self.nodes))

    def roots(self, value: Value) -> set[Value]:
        """The graph's inputs that a value depends on."""
        maker = {made: node for node in self.nodes for made in node.outputs}
        found, stack, seen = set(), [value], set()
        while stack:
            one = stack.pop()
            if one in seen or one.is_constant:
                continue
            seen.add(one)
            if one in maker:
                stack.extend(maker[one].inputs)
            else:
                found.add(one)
        return found


def _put(step: Step, values: dict[str, Any], results: Sequence[Any]) -> None:
    for name, result in zip(step.makes, results, strict=False):
        if name:
            values[name] = result


def operands_in(held: Iterable[Any]) -> Iterator[Operand]:
    """The operands in values, lists of values, and so on."""
    for one in held:
        if isinstance(one, Operand):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from operands_in(one)
