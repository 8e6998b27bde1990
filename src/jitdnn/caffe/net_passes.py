"""How the layers of a net run, forward and backward: base of Net (net.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jitdnn.caffe.blob import Array, Blob, Shape
from jitdnn.caffe.compile_ahead import compile_passes
from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.fusion import Fusion
from jitdnn.caffe.graph import Node, Observer, Parameter
from jitdnn.caffe.layers import Layer
from jitdnn.caffe.loss_value import LossValue
from jitdnn.caffe.memory import Memory
from jitdnn.caffe.net_builder import guarded, set_loss_weights
from jitdnn.caffe.net_run import run_backward, run_forward
from jitdnn.caffe.new_gradients import NewGradients
from jitdnn.caffe.parts import Turns
from jitdnn.caffe.shared_memory import SharedMemory
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported
from jitdnn.planner.recompute import RecomputePlan


class NetPasses:
    """What of a net concerns its passes; Net makes the attributes, and explains them."""

    nodes: list[Node]
    blobs: dict[str, Blob]
    inputs: list[str]
    outputs: list[str]
    parameters: list[Parameter]
    device: NetDevice | None
    observer: Observer | None
    shared: SharedMemory | None
    fusion: Fusion
    gradients: NewGradients
    before_backward: Callable[[int], None] | None
    after_backward: Callable[[int], None] | None
    reshapes: int
    _turns: Turns | None
    _memory: Memory | None
    _memory_options: dict[str, Any] | None
    _input_shapes: list[Shape]
    _is_fused: bool
    _has_code: bool

    @property
    def layers(self) -> list[Layer]:
        """The layers in order, Split layers included."""
        return [node.layer for node in self.nodes]

    @property
    def weights(self) -> dict[str, list[Blob]]:
        """The weights of each layer that has some, by the layer's name."""
        return {node.layer.name: node.layer.weights for node in self.nodes if node.layer.weights}

    def forward(self, **inputs: ArrayLike) -> dict[str, Array]:
        """Run all layers and return the outputs by name (views, valid until the next pass).

        `inputs` are copied into the input blobs of those names first; their shapes must agree (see
        `reshape`).
        """
        for name, values in inputs.items():
            self._fill(name, values)
        self.compute()
        return {name: self.blobs[name].data for name in self.outputs}

    def compute(self) -> None:
        """Run all layers, as `forward` does, and return nothing: on a GPU it is not waited for."""
        self.forward_layers()
        if self._turns is not None:
            self._turns.passed += 1

    def forward_layers(self, first: int = 0, last: int | None = None) -> None:
        """Run the layers from number `first` to `last` (None: the last one), what is in their blobs now being what
        they read. Under a limit on memory all of them must run; where a part of them runs, nothing is fused.
        """
        self.reshape_if_needed()
        if self.shared is not None:
            self.shared.step_aside(is_start=first == 0)
        end = len(self.nodes) if last is None else last + 1
        if self._memory_options is not None:
            self._check_whole(first == 0 and end == len(self.nodes))
            self._planned_memory().forward()
            return
        is_whole = first == 0 and end == len(self.nodes)
        self.fusion.switch(self._is_fused and is_whole)
        if is_whole:
            self.prepare_code()
        with self.running():
            for node in self.nodes[first:end]:
                self._observed(self._run_forward, node, "forward")
            if is_whole:
                self.fusion.statistics.update()

    @property
    def is_my_turn(self) -> bool:
        """Whether the next batch is this process's, where several take turns."""
        return self._turns is None or self._turns.is_mine

    def skip_batch(self) -> None:
        """Leave out a batch that is another process's turn: sources of data go on, and nothing is computed."""
        for node in self.nodes:
            if not node.bottom and node.layer.parts_of_top == "rows":
                node.layer.skip()
        if self._turns is not None:
            self._turns.passed += 1

    def prepare_code(self, *, backward: bool = False, more: Callable[[], object] | None = None) -> None:
        """On a GPU compile, once, what a pass forward needs, and one backward, and `more`, all at the same time."""
        if self.device is None or self._has_code:
            return
        self._has_code = True
        self.reshape_if_needed()
        self.fusion.switch(self._is_fused)
        compile_passes(self, backward=backward, more=more)

    def reshape_if_needed(self) -> None:
        """Carry the shapes of input blobs that were reshaped through all layers."""
        if self._shapes_of_inputs() != self._input_shapes:
            self.reshape()

    def running(self) -> AbstractContextManager[Any]:
        """A block whose calls go to the net's GPU and its stream."""
        return nullcontext() if self.device is None else self.device.handle

    def _observed(self, run: Callable[[Node, bool], None], node: Node, direction: str) -> None:
        observer = self.observer
        start = perf_counter() if observer else 0.0
        run(node, self.device is not None)
        if observer:
            if self.device is not None:
                self.device.synchronize()
            observer(node.layer, direction, perf_counter() - start)

    @property
    def loss(self) -> float:
        """The sum of all tops that have a loss weight, times it, after a forward pass; waits for a GPU."""
        return sum(
            weight * float(blob.read().sum(dtype=np.float64)) for blob, weight in self.weighted_blobs()
        )

    def current_loss(self) -> float | LossValue:
        """`loss`; on a GPU a number that is waited for when `float` is asked for it, whatever passes follow."""
        return self.loss if self.device is None else LossValue(self.device, self.weighted_blobs())

    def weighted_blobs(self) -> list[tuple[Blob, float]]:
        """The tops that have a loss weight, with it."""
        return [
            (blob, weight)
            for node in self.nodes
            for blob, weight in zip(node.top, node.loss_weights, strict=True)
            if weight
        ]

    def backward(self) -> None:
        """Compute the gradients by the loss of the last forward pass; those of weights are added to their
        `diff`.
        """
        self.backward_layers()

    def backward_layers(self, first: int | None = None, last: int = 0) -> None:
        """Run the backward pass from layer number `first` (None: the last one) down to `last`, what is in the gradients
        of their tops now being what they read. Under a limit on memory all of them must run.
        """
        start_index = len(self.nodes) - 1 if first is None else first
        if self.shared is not None:
            self.shared.step_aside(is_start=False)
        if self._memory_options is not None:
            self._check_whole(start_index == len(self.nodes) - 1 and last == 0)
            self._planned_memory().backward()
            return
        with self.running():
            if self.fusion.leaves_nothing_for_backward:
                self._is_fused = False  # this net goes backward though it tests: it is not fused any more
                self.fusion.switch(False)
                for node in self.nodes:
                    if node.bottom:
                        run_forward(node, self.device is not None)
            for index in range(start_index, last - 1, -1):
                if self.before_backward is not None:
                    self.before_backward(index)
                if self.nodes[index].needs_backward:
                    self._observed(run_backward, self.nodes[index], "backward")
                if self.after_backward is not None:
                    self.after_backward(index)

    @contextmanager
    def lent_memory(self) -> Iterator[bool]:
        """A block of an iteration: passes inside run whole, with blobs in memory that they share, if they do (what the
        block gives).
        """
        if self.shared is None:
            yield False
            return
        self.reshape_if_needed()
        self.fusion.switch(self._is_fused)
        with self.redirected(), self.shared.lent() as is_lent:
            if not is_lent:
                self.fusion.backward.redirect(False)
            yield is_lent

    @contextmanager
    def redirected(self) -> Iterator[None]:
        """A block in which layers read gradients where they lie in a solver's passes (backward_fusion.py)."""
        self.fusion.backward.redirect(self._is_fused)  # where blobs lie follows from who reads what
        try:
            yield
        finally:
            self.fusion.backward.redirect(False)

    def _check_whole(self, is_whole: bool) -> None:
        if not is_whole:
            raise NotSupported(
                "under a limit on memory a net runs whole: call limit_memory(None) to run some of its layers"
            )

    def clear_gradients(self) -> None:
        """Set the gradients of all weights to 0."""
        if self.shared is not None:
            self.shared.give_gradients()
        with self.running():
            self.gradients.clear(self.parameters)

    def begin_gradients(self) -> None:
        """In place of `clear_gradients`, where `gradients.complete` follows the passes."""
        if self.shared is not None:
            self.shared.give_gradients()
        with self.running():
            self.gradients.begin(self.parameters)

    def settle(self) -> None:
        """Make what the calls of an iteration need before they are captured."""
        self.gradients.settle(self.parameters)
        self.fusion.statistics.settle()

    def _run_forward(self, node: Node, is_on_gpu: bool) -> None:
        """Run a layer, and reshape the layers behind it if it gives its tops other shapes."""
        before = [blob.shape for blob in node.top] if node.layer.may_resize else []
        run_forward(node, is_on_gpu)
        if node.layer.may_resize and [blob.shape for blob in node.top] != before:
            set_loss_weights(node)
            behind = next(index for index, other in enumerate(self.nodes) if other is node)
            self._reshape(self.nodes[behind + 1 :])

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
        blob.overwrite_host()
        np.copyto(blob.data, array, casting="unsafe")

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
        """Give input blobs other shapes (another batch, another image size) and carry them through all layers.

        Where an input blob was reshaped itself (`net.blobs["data"].reshape(shape)`), a call without arguments carries
        its shape on; a forward pass does so, too.
        """
        for name, shape in shapes.items():
            if name not in self.inputs:
                raise InvalidArgument(f"{name!r} is no input of this net: {_listed(self.inputs)}")
            self.blobs[name].reshape(tuple(shape))
        if self._memory is not None:
            self._memory.lift()
            self._memory = None
        if self.shared is not None:
            self.shared.forget()
        self._reshape(self.nodes)
        self._input_shapes = self._shapes_of_inputs()
        self.reshapes += 1

    def _shapes_of_inputs(self) -> list[Shape]:
        return [self.blobs[name].shape for name in self.inputs]

    def _reshape(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            guarded(node.layer.parameter, partial(node.layer.reshape, node.bottom, node.top))
            set_loss_weights(node)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return f"there are {', '.join(names)}" if names else "it has none"
