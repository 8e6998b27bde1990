"""An iteration of a solver: gradients of its batches, and the update of the weights."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from jitdnn.caffe.data_parallel import DataParallel
from jitdnn.caffe.early_update import EarlyUpdate
from jitdnn.caffe.iteration_graph import IterationGraph
from jitdnn.caffe.loss_value import LossValue
from jitdnn.caffe.net import Net
from jitdnn.caffe.requests import Requests
from jitdnn.caffe.updates import Updates


class Iteration:
    """Runs the iterations of a net, one by one, as a CUDA graph where `graph` is one.

    `early` updates weights within the backward pass; it does where the net's blobs share memory. `passes`: the batches
    of an iteration.
    """

    def __init__(
        self,
        net: Net,
        method: Updates,
        requests: Requests,
        *,
        passes: int = 1,
        parallel: DataParallel | None = None,
        graph: IterationGraph | None = None,
        early: EarlyUpdate | None = None,
    ) -> None:
        self._net, self._method, self._requests, self._parallel = net, method, requests, parallel
        self._passes, self._graph, self._early = passes, graph, early
        self._is_updated = False

    def run(self, rate: float, iteration: int) -> float | LossValue:
        """Compute the gradients of iteration number `iteration`, and update the weights where that goes with it: else
        `finish` does. Return the loss, which on a GPU nobody waits for.
        """
        with self._net.lent_memory() as is_lent:
            early = self._early if is_lent else None
            self._is_updated = self._graph is not None or early is not None
            try:
                with nullcontext() if early is None else early.within(rate, iteration):
                    if self._graph is None:
                        return self._gradients(clears=early is None)
                    self._requests.open(0.0)
                    loss = self._graph.iterate(rate, iteration, early)
                    self._requests.close()
                    return loss
            finally:
                self._net.gradients.forget()

    def finish(self, rate: float, iteration: int) -> None:
        """Update the weights, if `run` has not."""
        if not self._is_updated:
            self._method.update(rate, iteration)

    def _gradients(self, *, clears: bool) -> float | LossValue:
        """Gradients of the weights, summed over the batches, and the mean of their losses."""
        net, parallel, requests = self._net, self._parallel, self._requests
        if clears:
            net.begin_gradients()
        losses: list[Any] = []
        for number in range(self._passes):
            net.compute()
            losses.append(net.current_loss())
            if parallel is not None and number == self._passes - 1:
                requests.open(0.0 if net.device is not None else sum(losses) / self._passes)
                parallel.buckets.open()
            net.backward()
        if clears:
            with net.running():
                net.gradients.complete(net.parameters)
        if parallel is not None:
            with net.running():
                parallel.buckets.wait()
            whole = requests.close()
            if net.device is None:
                return whole
        if net.device is not None:
            mean_loss = LossValue.mean(losses)
            if parallel is not None:
                mean_loss.add_up(parallel.group)
            return mean_loss
        mean: float = sum(losses) / len(losses)
        return mean
