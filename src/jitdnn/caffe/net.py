"""Net: layers built from a NetParameter, run forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jitdnn import limits
from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.graph import Node, Observer, Parameter, plan_gradients
from jitdnn.caffe.layers import LAYERS, Context, Layer
from jitdnn.caffe.layers.input import InputLayer
from jitdnn.caffe.memory import Memory
from jitdnn.caffe.paths import find
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetState
from jitdnn.caffe.splits import insert_splits
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.caffe.weights import collect_parameters, load_weights, save_weights
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, JitdnnError, NotSupported
from jitdnn.planner.recompute import RecomputePlan
from jitdnn.settings import parse_bytes

DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


class Net:
    """A net built for one phase.

    `blobs` maps names to blobs (those of Split layers too, named as Caffe names them), `nodes` are the layers
    in order with their blobs, `inputs` and `outputs` the names of the blobs that the caller fills and that no
    layer reads. `parameters` are the weights that a solver trains, shared ones once. Arrays of blobs are
    overwritten by the next pass: copy what must last. One net must not be used by two threads at a time.
    """

    def __init__(
        self,
        parameter: NetParameter,
        state: NetState | None = None,
        *,
        base: Path | None = None,
        seed: int | np.random.SeedSequence | None = None,
        dtype: str = "f32",
        algorithm: str | None = None,
    ) -> None:
        """Build the net for `state` (phase TEST if None), merged over the net's own.

        `base` is the folder that relative paths in the net may start from, `seed` that of the fillers and of
        all that is random in the layers (None: another one each time), `dtype` "f32" or "f64", `algorithm`
        the name of the algorithm that convolutions must use.

        Raises InvalidArgument (with the line) for a net that is wrong, NotSupported for what the library
        lacks.
        """
        if dtype not in DTYPES:
            raise InvalidArgument(f"dtype is {dtype!r}: there are {', '.join(DTYPES)}")
        self.state = parameter.state.copy() if parameter.has("state") else NetState()
        if state is not None:
            self.state.merge(state)
        self.parameter = insert_splits(filter_net(upgrade_net(parameter), self.state))
        if len(self.parameter.layer) > limits.NET_LAYERS:
            raise InvalidArgument(
                f"this net has {len(self.parameter.layer):,} layers with those that split: at most "
                f"{limits.NET_LAYERS:,} are built"
            )
        self.name = self.parameter.name
        if parameter.debug_info:
            raise NotSupported(f"debug_info: true{parameter.where('debug_info')}: take the line out")
        self.dtype = DTYPES[dtype]
        self.blobs: dict[str, Blob] = {}
        self.nodes: list[Node] = []
        self.observer: Observer | None = None
        self._memory: Memory | None = None
        self._memory_options: dict[str, Any] | None = None  # of limit_memory, while there is a limit
        self._base, self._algorithm = base, algorithm
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        fillers, *seeds = sequence.spawn(1 + len(self.parameter.layer))
        self._fillers = np.random.Generator(np.random.PCG64(fillers))

        # the last layer that works in place on each blob
        self._overwrites = {
            name: index
            for index, layer in enumerate(self.parameter.layer)
            for name in set(layer.bottom).intersection(layer.top)
        }
        unread: dict[str, None] = {}
        for layer_parameter, layer_seed in zip(self.parameter.layer, seeds, strict=True):
            self._append(layer_parameter, layer_seed, unread)
        self.outputs = list(unread)
        self.inputs = [blob.name for node in self.nodes if node.layer.type == "Input" for blob in node.top]
        self.parameters: list[Parameter] = collect_parameters(self.layers)
        plan_gradients(self.nodes, self.parameter.force_backward)

    @property
    def layers(self) -> list[Layer]:
        """The layers in order, Split layers included."""
        return [node.layer for node in self.nodes]

    @property
    def weights(self) -> dict[str, list[Blob]]:
        """The weights of each layer that has some, by the layer's name."""
        return {node.layer.name: node.layer.weights for node in self.nodes if node.layer.weights}

    @property
    def weight_count(self) -> int:
        """The number of trained values, shared ones counted once."""
        return sum(parameter.blob.size for parameter in self.parameters)

    # ---- running

    def forward(self, **inputs: ArrayLike) -> dict[str, Array]:
        """Run all layers and return the outputs by name (views, valid until the next pass).

        `inputs` are copied into the input blobs of those names first; their shapes must agree (see
        `reshape`).
        """
        for name, values in inputs.items():
            self._fill(name, values)
        if self._memory_options is not None:
            self._planned_memory().forward()
            return {name: self.blobs[name].data for name in self.outputs}
        observer = self.observer
        for node in self.nodes:
            start = perf_counter() if observer else 0.0
            node.layer.forward(node.bottom, node.top)
            if observer:
                observer(node.layer, "forward", perf_counter() - start)
        return {name: self.blobs[name].data for name in self.outputs}

    @property
    def loss(self) -> float:
        """The sum of all tops that have a loss weight, times it, after a forward pass."""
        total = 0.0
        for node in self.nodes:
            for blob, weight in zip(node.top, node.loss_weights, strict=True):
                if weight:
                    total += weight * float(blob.data.sum(dtype=np.float64))
        return total

    def backward(self) -> None:
        """Compute the gradients by the loss of the last forward pass; those of weights are added to their
        `diff`.
        """
        if self._memory_options is not None:
            self._planned_memory().backward()
            return
        observer = self.observer
        for node in reversed(self.nodes):
            if node.needs_backward:
                start = perf_counter() if observer else 0.0
                node.layer.backward(node.top, node.propagate, node.bottom)
                if observer:
                    observer(node.layer, "backward", perf_counter() - start)

    def clear_gradients(self) -> None:
        """Set the gradients of all weights to 0."""
        for parameter in self.parameters:
            parameter.blob.diff.fill(0)

    def limit_memory(
        self,
        limit: int | str | None,
        *,
        extra: int | str = 0,
        is_trained: bool = True,
        is_timed: bool | None = None,
        beside: Net | None = None,
    ) -> RecomputePlan | None:
        """Keep the memory of training within `limit` from now on, and return the plan; None lifts the limit.

            plan = net.limit_memory("64 MiB")
            print(plan.explain())

        The limit counts weights, their gradients, data and gradients of blobs, what layers keep beside them, and
        workspace; `extra` bytes of it belong to others (a solver's history). "least" is the smallest there is. Memory
        is released as soon as nobody needs it; convolutions are divided or run by slower algorithms, in less workspace,
        and results of layers are computed again in the backward pass, whatever costs the least time. For that every
        layer is run twice now, on zeros. Times are those that the planner expects, so a net is planned alike each time;
        with `is_timed` (None: if the setting `choice` is "find") they are measured. Without `is_trained` only forward
        passes are run. `beside` is another net under a limit that never runs at the same time (one that tests, and one
        that is trained): they share their workspace.

        After a pass only inputs, outputs and what has a loss weight have data; reading other blobs is an error, and
        each backward pass needs a forward pass before it. After `reshape` the next pass plans anew.

        Raises InvalidArgument, naming the least, if the limit is too small; the net has none then. NotSupported
        without SciPy.
        """
        if self._memory is not None:
            self._memory.lift()
        self._memory = self._memory_options = None
        if limit is None or (isinstance(limit, str) and limit.strip().lower() in ("none", "unlimited")):
            return None
        is_least = isinstance(limit, str) and limit.strip().lower() == "least"
        options: dict[str, Any] = {
            "limit": None if is_least else parse_bytes(limit),
            "extra": parse_bytes(extra) or 0,
            "is_trained": is_trained,
            "is_timed": is_timed,
            "beside": None if beside is None else beside._memory,
        }
        self._memory = Memory(self, **options)
        self._memory_options = options
        return self._memory.plan

    @property
    def memory_plan(self) -> RecomputePlan | None:
        """The plan that `limit_memory` made, None without a limit."""
        return None if self._memory_options is None else self._planned_memory().plan

    def release_memory(self) -> None:
        """Under a limit on memory: release what the last forward pass keeps for a backward pass that will not come."""
        if self._memory is not None:
            self._memory.release()

    def _planned_memory(self) -> Memory:
        if self._memory is None:  # shapes changed since the last plan
            assert self._memory_options is not None
            self._memory = Memory(self, **self._memory_options)
        return self._memory

    def reshape(self, **shapes: Sequence[int]) -> None:
        """Give input blobs other shapes (another batch, another image size) and carry them through all
        layers.
        """
        for name, shape in shapes.items():
            if name not in self.inputs:
                raise InvalidArgument(f"{name!r} is no input of this net: {_listed(self.inputs)}")
            for node in self.nodes:
                if isinstance(node.layer, InputLayer):
                    for index, blob in enumerate(node.top):
                        if blob.name == name:
                            node.layer.shapes[index] = tuple(shape)
        if self._memory is not None:
            self._memory.lift()
            self._memory = None
        for node in self.nodes:
            self._guarded(node.layer.parameter, partial(node.layer.reshape, node.bottom, node.top))
            self._set_loss_weights(node)

    def save_weights(self, path: str | Path) -> None:
        """Write all weights to a file, whole or not at all: .npz (arrays LAYER/INDEX), .caffemodel, .caffemodel.h5."""
        save_weights(self, self.parameter, Path(path))

    def load_weights(self, path: str | Path) -> list[str]:
        """Copy weights from .npz, .caffemodel, .caffemodel.h5 or a snapshot into the layers of the same names; return
        those names.

        Raises InvalidShape if a shape differs, InvalidArgument if no name fits or the file cannot be read.
        """
        return load_weights(self, find(path, self._base))

    # ---- building

    def _append(
        self, parameter: LayerParameter, seed: np.random.SeedSequence, unread: dict[str, None]
    ) -> None:
        kind = LAYERS.get(parameter.type)
        if kind is None:
            raise NotSupported(_unknown_type(parameter))
        if not parameter.has("phase"):
            parameter.phase = self.state.phase
        context = Context(
            parameter.phase,
            self.dtype,
            self._base,
            self._fillers,
            np.random.Generator(np.random.PCG64(seed)),
            self._algorithm,
        )
        layer = kind(parameter, context)
        is_loss_alone = kind.is_loss and not parameter.top
        if is_loss_alone:  # it gets a top that nobody can read, and that is no output
            parameter.top = [f"({parameter.name})"]
        _check_count(layer, "bottom", len(parameter.bottom), kind.bottoms)
        _check_count(layer, "top", len(parameter.top), kind.tops)
        if parameter.propagate_down and len(parameter.propagate_down) != len(parameter.bottom):
            raise layer.invalid(
                f"{len(parameter.propagate_down)} propagate_down for {len(parameter.bottom)} bottoms: "
                "give one each, or none"
            )
        bottom = [self.blobs[name] for name in parameter.bottom]
        for name in parameter.bottom:
            unread.pop(name, None)
        top = [self._top(layer, index, name, bottom) for index, name in enumerate(parameter.top)]
        for name in () if is_loss_alone else parameter.top:
            unread[name] = None
        node = Node(layer, bottom, top, _loss_weights(layer))
        layer.is_overwritten = any(self._overwrites.get(name, -1) > len(self.nodes) for name in parameter.top)
        self.nodes.append(node)

        def build() -> None:
            layer.setup(bottom, top)
            layer.reshape(bottom, top)

        self._guarded(parameter, build)
        self._set_loss_weights(node)

    def _top(self, layer: Layer, index: int, name: str, bottom: list[Blob]) -> Blob:
        names = [blob.name for blob in bottom]
        if index < len(names) and names[index] == name:
            if not layer.may_be_in_place:
                raise layer.invalid(f"top {name!r} is its bottom too, and this layer cannot work in place")
            return bottom[index]
        if name in self.blobs:
            raise layer.invalid(
                f"top {name!r} exists already: two layers make it, or this one would work in place on what "
                "another layer reads too; give it a name of its own",
                "top",
            )
        blob = Blob(name, self.dtype)
        self.blobs[name] = blob
        return blob

    def _guarded(self, parameter: LayerParameter, action: Callable[[], None]) -> None:
        """Run the action; an error that does not name the layer gets the layer's name and line."""
        try:
            action()
        except (InvalidArgument, InvalidType, NotSupported) as error:
            message = str(error)
            if message.startswith("layer "):
                raise
            where = f"layer {parameter.name!r} ({parameter.type}){parameter.where()}: "
            kind: type[JitdnnError] = (
                type(error) if type(error) in (InvalidShape, InvalidType, NotSupported) else InvalidArgument
            )
            raise kind(where + message) from error

    def _set_loss_weights(self, node: Node) -> None:
        for blob, weight in zip(node.top, node.loss_weights, strict=True):
            if weight:
                blob.diff.fill(weight)

    def _fill(self, name: str, values: ArrayLike) -> None:
        if name not in self.inputs:
            raise InvalidArgument(f"{name!r} is no input of this net: {_listed(self.inputs)}")
        array = np.asarray(values)
        blob = self.blobs[name]
        if array.shape != blob.shape:
            raise InvalidShape(
                f"input {name!r} has shape {blob.shape}, these values {array.shape}: "
                f"call reshape({name}={array.shape}) first"
            )
        np.copyto(blob.data, array, casting="unsafe")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return f"there are {', '.join(names)}" if names else "it has none"


def _unknown_type(parameter: LayerParameter) -> str:
    if parameter.type == "Python":
        return (
            f"layer {parameter.name!r}{parameter.where()} is a layer of Python: code that a net names is never run; "
            "write it as a layer that the library has, or run it between two nets"
        )
    known = ", ".join(sorted(LAYERS))
    what = f"type {parameter.type!r}" if parameter.type else "no type"
    return f"layer {parameter.name!r}{parameter.where()} has {what}; the library has {known}"


def _check_count(layer: Layer, what: str, count: int, limits: tuple[int, int | None]) -> None:
    low, high = limits
    if count < low or (high is not None and count > high):
        needed = f"{low}" if low == high else f"at least {low}" if high is None else f"{low} to {high}"
        raise layer.invalid(f"it has {count} {what}s and needs {needed}")


def _loss_weights(layer: Layer) -> list[float]:
    given = layer.parameter.loss_weight
    tops = len(layer.parameter.top)
    if given:
        if len(given) != tops:
            raise layer.invalid(f"{len(given)} loss_weight for {tops} tops: give one each, or none")
        return list(given)
    return [1.0 if layer.is_loss and index == 0 else 0.0 for index in range(tops)]
