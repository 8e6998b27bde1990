"""A training iteration of a net on a GPU as one launch: its calls are captured into a CUDA graph, and run again.

Sources of data, random numbers, checks of labels and the rate of learning are the host's, and come before the launch;
the graph reads what they wrote from memory that stays where it is. The first iterations run call by call, which
compiles and loads every kernel and takes all memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jitdnn import log, targets
from jitdnn.caffe.blob import Blob
from jitdnn.caffe.loss_value import LossValue
from jitdnn.caffe.net import Net
from jitdnn.caffe.net_run import is_on_host, run_backward, run_forward
from jitdnn.caffe.updates import Updates
from jitdnn.errors import DeviceError

WARM = 2  # iterations that run call by call before one is captured


class IterationGraph:
    """Runs iterations of a net: gradients cleared, forward, backward, update."""

    def __init__(self, net: Net, method: Updates) -> None:
        """`refusal` says why there can be no graph, None where there can."""
        self._net, self._method = net, method
        self._graph: Any = None
        self._captured: Any = None  # what the graph was captured with
        self._done = 0
        self.refusal = _refusal(net)
        if self.refusal is not None and net.device is not None:
            log.fallback_once(
                ("caffe iteration graph", self.refusal),
                f"iterations are no CUDA graph: {self.refusal}; every call is launched on its own",
            )

    @property
    def is_captured(self) -> bool:
        """Whether iterations are launched as a graph by now."""
        return self._graph is not None

    def iterate(self, rate: float, iteration: int) -> LossValue:
        """Run one iteration and return its loss, for which nobody waits."""
        net = self._net
        assert net.device is not None
        self._method.prepare(rate, iteration)
        if not self._done:
            net.prepare_code(backward=True, more=self._method.apply)
        if self._done < WARM or self.refusal is not None or net.observer is not None:
            self._done += 1
            net.clear_gradients()
            net.compute()
            net.backward()
            with net.running():
                self._method.apply()
        else:
            self._launch()
        return LossValue(net.device, net.weighted_blobs())

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
            state = (net.device.handle.settings.serial, pointers)
            if self._graph is None or state != self._captured:
                self._graph = None
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
            self._graph.replay()

    def _capture(self) -> None:
        device = self._net.device
        assert device is not None
        for layer in self._net.layers:
            layer.is_captured = True
        with device.handle.capture() as graph:
            self._calls()
        self._graph = graph

    def _calls(self) -> None:
        """The calls of an iteration behind what is the host's."""
        net = self._net
        net.clear_gradients()
        for node in net.nodes:
            if node.bottom:
                run_forward(node, True)
        for node in reversed(net.nodes):
            if node.needs_backward:
                run_backward(node, True)
        self._method.apply()

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
