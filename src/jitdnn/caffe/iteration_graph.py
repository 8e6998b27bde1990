"""A training iteration of a net on a GPU as one launch: its calls are captured into a CUDA graph, and run again.

Sources of data, random numbers, checks of labels and the rate of learning are the host's, and come before the launch;
the graph reads what they wrote from memory that stays where it is. The first iterations run call by call, which
compiles and loads every kernel and takes all memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from jitdnn import log, targets
from jitdnn.caffe.blob import Blob
from jitdnn.caffe.data_parallel import DataParallel
from jitdnn.caffe.early_update import EarlyUpdate
from jitdnn.caffe.graph import Parameter
from jitdnn.caffe.loss_value import LossValue
from jitdnn.caffe.net import Net
from jitdnn.caffe.net_run import is_on_host, run_forward
from jitdnn.caffe.split_calls import Action, left_out
from jitdnn.caffe.updates import Updates
from jitdnn.errors import DeviceError

WARM = 2  # iterations that run call by call before one is captured


class IterationGraph:
    """Runs iterations of a net: gradients cleared, forward, backward, update."""

    def __init__(self, net: Net, method: Updates, parallel: DataParallel | None = None) -> None:
        """`refusal` says why there can be no graph, None where there can. With `parallel` other processes take part:
        what they exchange stands between several graphs (split_calls.py).
        """
        self._net, self._method, self._parallel = net, method, parallel
        self._pieces: list[Action] = []  # replays of graphs, and what the host does between them
        self._captured: Any = None  # what the graph was captured with
        self._done = 0
        self._early: EarlyUpdate | None = None
        self.refusal = _refusal(net)
        if self.refusal is not None and net.device is not None:
            log.fallback_once(
                ("caffe iteration graph", self.refusal),
                f"iterations are no CUDA graph: {self.refusal}; every call is launched on its own",
            )

    @property
    def is_captured(self) -> bool:
        """Whether iterations are launched as a graph by now."""
        return bool(self._pieces)

    def iterate(self, rate: float, iteration: int, early: EarlyUpdate | None = None) -> LossValue:
        """Run one iteration and return its loss, for which nobody waits. With `early` weights are updated within the
        backward pass.
        """
        self._early = early
        net = self._net
        assert net.device is not None
        self._method.prepare(rate, iteration)
        if not self._done:
            with self._splitting(left_out):
                net.prepare_code(backward=True, more=self._method.apply)
        if self._done < WARM or self.refusal is not None or net.observer is not None:
            self._done += 1
            if early is None:
                net.begin_gradients()
            net.compute()
            with net.running():
                self._backward()
        else:
            self._launch()
        loss = LossValue(net.device, net.weighted_blobs())
        if self._parallel is not None:
            loss.add_up(self._parallel.group)
        return loss

    def _launch(self) -> None:
        net = self._net
        assert net.device is not None
        net.reshape_if_needed()
        with net.running():
            for node in net.nodes:
                if not node.bottom:
                    run_forward(node, True)
            for node in net.nodes:
                if node.bottom:
                    node.layer.prepare(node.bottom)
            # what the host has written goes up; and where arrays are others by now, another graph is needed
            pointers = [array.pointer for blob in self._blobs() for array in blob.settle()]
            state = (net.device.handle.settings.serial, net.reshapes, pointers)
            if not self._pieces or state != self._captured:
                self._pieces = []
                try:
                    self._capture()
                except DeviceError as error:
                    self.refusal = f"its capture failed: {error}"
                    log.fallback_once(
                        ("caffe iteration graph", id(net)),
                        f"iterations are no CUDA graph: {self.refusal}; every call is launched on its own",
                    )
                    self._calls()
                    return
                finally:
                    for layer in net.layers:
                        layer.is_captured = False
                self._captured = state
            for piece in self._pieces:
                piece()

    def _capture(self) -> None:
        net, device = self._net, self._net.device
        assert device is not None
        net.settle()
        if self._early is None:
            self._method.settle(self._groups())
        else:
            self._early.settle()
        for layer in net.layers:
            layer.is_captured = True
        pieces: list[Action] = []

        def begin() -> None:
            pieces.append(capturing.enter_context(device.handle.capture()).replay)

        def split(action: Action) -> None:
            capturing.close()
            pieces.append(action)
            begin()

        with ExitStack() as capturing, self._splitting(split):
            begin()
            self._calls()
        self._pieces = pieces

    def _splitting(self, split: Callable[[Action], None]) -> AbstractContextManager[None]:
        return nullcontext() if self._parallel is None else self._parallel.group.splitting(split)

    def _calls(self) -> None:
        """The calls of an iteration behind what is the host's."""
        net = self._net
        if self._early is None:
            net.begin_gradients()
        for node in net.nodes:
            if node.bottom:
                run_forward(node, True)
        net.fusion.statistics.update()
        self._backward()

    def _backward(self) -> None:
        """The backward pass and the update."""
        net, method = self._net, self._method
        buckets = None if self._parallel is None else self._parallel.buckets
        if buckets is not None:
            buckets.open()
        net.backward()
        if self._early is not None:
            return
        net.gradients.complete(net.parameters)
        groups = self._groups()
        if groups is None:
            if buckets is not None:
                buckets.wait()
            method.apply()
            return
        assert buckets is not None
        for left, parameters in zip((1, 0), groups, strict=True):
            buckets.wait(but=left)
            method.apply_to(parameters)

    def _groups(self) -> tuple[list[Parameter], list[Parameter]] | None:
        """Of several processes the parameters that are updated while the last gradients are still on their way, and
        those of these; None where all are updated at once.
        """
        if self._parallel is None or self._method.needs_all_gradients:
            return None
        return self._parallel.buckets.before_last

    def _blobs(self) -> Iterator[Blob]:
        """All that the calls read or write."""
        yield from self._net.blobs.values()
        yield from self._method.blobs
        for layer in self._net.layers:
            yield from layer.weights
            yield from layer.saved.values()


def _refusal(net: Net) -> str | None:
    if net.device is None:
        return "the net is on the processor"
    target = targets.find(net.device.gpu.target)
    if target is None or not target.has_graphs:
        return f"{net.device.name} has no graphs"
    for node in net.nodes:
        if is_on_host(node):
            return f"layer {node.layer.name!r} ({node.layer.type}) computes on the host"
        if node.layer.may_resize:
            return f"layer {node.layer.name!r} ({node.layer.type}) has tops whose shapes change"
    return None
