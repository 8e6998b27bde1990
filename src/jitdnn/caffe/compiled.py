"""Nets in phase TEST that are prepared once for each kind of inputs and run as a list of launches.

    net = load_deployed("deploy.prototxt", "net.caffemodel")
    answers = net.forward(data=images)["prob"]

A `CompiledNet` gives the outputs of a `Net`, and what lies between is never there: normalizations are part of filters,
activations and sums are applied as results are stored, filters are kept as kernels read them, arrays share one arena
(docs/decisions/0018). Its layers are those of a net of its own that shares the weights; of each it takes the function
in compiled_layers.py, or else has the host run the layer between two lists.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jitdnn.caffe.blob import Array
from jitdnn.caffe.compiled_layers import FUNCTIONS
from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.graph import LayerGraph, Node
from jitdnn.caffe.net_run import run_forward
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetState
from jitdnn.caffe.schema_layers import BlobShape, InputParameter
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.graph.engine import Engine
from jitdnn.graph.explain import explained
from jitdnn.graph.operand import Operand, Untraceable
from jitdnn.graph.options import engine_options
from jitdnn.graph.taken import OnGpu, taken


class BuiltNet(LayerGraph, Protocol):
    """A net as `Net` has it, which explains each attribute."""

    name: str
    parameter: NetParameter
    state: NetState
    dtype: np.dtype[Any]
    device: NetDevice | None

    def like(self, definition: NetParameter) -> BuiltNet: ...

    def running(self) -> AbstractContextManager[Any]: ...


#: layers whose forward pass leaves something for the next one
_STATEFUL = frozenset({"LSTM", "Python", "RNN"})


@dataclass(frozen=True)
class _Step:
    """A layer as a function of named values: those of its bottoms to those of its tops."""

    node: Node
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    lock: Any = field(repr=False)

    @property
    def title(self) -> str:
        return f"{self.node.layer.type} {self.node.layer.name!r}"

    @property
    def is_pure(self) -> bool:
        layer = self.node.layer
        return layer.type not in _STATEFUL and not (layer.is_random and layer.context.phase == "TRAIN")

    def compute(self, values: Mapping[str, Any], bodies: Any = None) -> tuple[Any, ...]:
        bottoms = [values[name] for name in self.reads]
        with self.lock:
            self._take_shapes([x.shape for x in bottoms])
            if any(isinstance(x, Operand) for x in bottoms):
                return self._traced(bottoms)
            return self._by_host(bottoms)

    def kinds(self, values: Mapping[str, Any]) -> list[Any] | None:
        layer = self.node.layer
        if layer.may_resize or layer.type == "Python":
            return None
        with self.lock:
            self._take_shapes([values[name].shape for name in self.reads])
            return [(blob.shape, blob.dtype) for blob in self.node.top]

    def _traced(self, bottoms: Sequence[Any]) -> tuple[Any, ...]:
        layer = self.node.layer
        if layer.type == "PriorBox":  # of shapes alone
            return self._by_host([np.zeros(x.shape, x.dtype) for x in bottoms])
        function = FUNCTIONS.get(layer.type)
        if function is None:
            raise Untraceable(f"layers of type {layer.type} are run by the host")
        return function(layer, *bottoms)

    def _by_host(self, bottoms: Sequence[Array]) -> tuple[Any, ...]:
        for blob, x in zip(self.node.bottom, bottoms, strict=True):
            np.copyto(blob.data, x)
        self.node.layer.forward(self.node.bottom, self.node.top)
        return tuple(blob.data.copy() for blob in self.node.top)

    def _take_shapes(self, shapes: Iterable[tuple[int, ...]]) -> None:
        """Have the layer see these shapes, and raise what it raises for them."""
        node = self.node
        for blob, shape in zip(node.bottom, shapes, strict=True):
            blob.reshape(tuple(shape))
        node.layer.reshape(node.bottom, node.top)


class CompiledNet:
    """What `Net.compiled` and `load_deployed` make. Threads may share it.

    `inputs` are the names of those that `forward` is given, `outputs` those of what it gives. For each shape of the
    inputs (another batch, another size of images) a plan is made at the first call, and the last ones are kept.

    The weights are those that the net has when a plan is made, by reference: after a change of them compile the net
    anew. Of a net on a GPU they are those that it has when it is compiled; its kernels run there, and layers that are
    not in the table are run by the host.
    """

    def __init__(
        self, net: BuiltNet, outputs: Sequence[str] | None = None, *, threads: int | None = None
    ) -> None:
        """See `Net.compiled`."""
        if net.state.phase != "TEST":
            raise InvalidArgument(
                f"a net is compiled for phase TEST, and this one was built for {net.state.phase}: its layers draw, and "
                "keep what gradients need"
            )
        self._net = net
        self._lock = threading.RLock()
        twin = _twin(net)
        self.outputs = tuple(net.outputs if outputs is None else outputs)
        names: dict[str, str] = {}  # of each blob the value that it has at this place
        steps: list[_Step] = []
        for node in twin.nodes:
            reads = tuple(names[blob.name] for blob in node.bottom)
            makes = tuple(f"{blob.name} of {node.layer.name}" for blob in node.top)
            names.update({blob.name: made for blob, made in zip(node.top, makes, strict=True)})
            steps.append(_Step(node, reads, makes, self._lock))
        for name in self.outputs:
            if name not in names:
                raise InvalidArgument(f"the net has no blob {name!r}; there are {', '.join(names)}")
        self._sources = {
            blob.name: made
            for step in steps
            if step.node.layer.type == "Input"
            for blob, made in zip(step.node.top, step.makes, strict=True)
        }
        results = [names[name] for name in self.outputs]
        needed = _needed(steps, results)
        used = {name for step in needed for name in step.reads} | set(results)
        self._sources = {name: made for name, made in self._sources.items() if made in used}
        self.inputs = tuple(name for name in net.inputs if name in self._sources)
        self._ranks = {name: len(net.blobs[name].shape) for name in self._sources}
        options = engine_options(None if net.device is None else net.device.name, threads)
        self._engine = Engine(needed, tuple(self._sources.values()), results, {}, **options)

    def __repr__(self) -> str:
        return f"<CompiledNet {self._net.name}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"

    def forward(self, **inputs: Any) -> dict[str, Any]:
        """Return the outputs by name, in memory of their own: NumPy's, or, of a net on a GPU that is given an array
        there, arrays there of the same library.

        An input that is not given is what the net's blob holds; layers of data of the net run first. Raises
        InvalidArgument for a name that is no input, InvalidShape for a shape that does not fit the layers, InvalidType
        for an array on a GPU of another type than the net's, DeviceError for one on another device.
        """
        made = self._engine.run(self._given(inputs))
        return dict(zip(self.outputs, made, strict=True))

    def explain(self, *, measure: bool = True, **inputs: Any) -> str:
        """What runs for inputs of this kind, as text: a row for each kernel with the layers that it stands for, its
        algorithm and its share of the time; what the host runs, and what was not fused, and why."""
        given = self._given(inputs)
        self._engine.prepared(given)
        return explained(self._engine, given, measure)

    def _given(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        for name in inputs:
            if name not in self.inputs:
                raise InvalidArgument(
                    f"{name!r} is no input of this net; there are {', '.join(self.inputs) or 'none'}"
                )
        if len(self.inputs) < len(self._sources):
            with self._lock, self._net.running():
                for node in self._net.nodes:
                    if not node.bottom and any(blob.name in self._sources for blob in node.top):
                        run_forward(node, self._net.device is not None)
        found: dict[str, Any] = {}
        for name, made in self._sources.items():
            held = taken(inputs[name] if name in inputs else self._net.blobs[name].read(), name)
            array = held if isinstance(held, OnGpu) else np.asarray(held)
            if array.ndim != self._ranks[name]:
                raise InvalidShape(
                    f"input {name!r} has shape {array.shape}: {self._ranks[name]} axes are needed, as "
                    f"{self._net.blobs[name].shape} has"
                )
            if isinstance(array, OnGpu):
                if array.dtype != self._net.dtype:
                    raise InvalidType(f"input {name!r} is {array.dtype}: the net takes {self._net.dtype}")
                found[made] = array
                continue
            found[made] = array.astype(self._net.dtype, copy=name not in inputs, casting="unsafe")
        return found


def _needed(steps: Sequence[_Step], results: Sequence[str]) -> list[_Step]:
    """Those steps that the results depend on, in order; inputs are given."""
    wanted, found = set(results), []
    for step in reversed(steps):
        if step.node.layer.type != "Input" and not wanted.isdisjoint(step.makes):
            found.append(step)
            wanted.update(step.reads)
    return found[::-1]


def _twin(net: BuiltNet) -> BuiltNet:
    """The same layers once more, by the same weights, with inputs in the place of layers of data."""
    definition = net.parameter.copy()
    layers = []
    for given, node in zip(definition.layer, net.nodes, strict=True):
        layer = given.copy()
        if not node.bottom and node.layer.type not in ("Input", "Parameter"):
            shapes = [BlobShape(dim=list(blob.shape)) for blob in node.top]
            layer = LayerParameter(
                name=given.name, type="Input", top=list(given.top), input_param=InputParameter(shape=shapes)
            )
        layers.append(layer)
    definition.layer = layers
    return net.like(definition)
