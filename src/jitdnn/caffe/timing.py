"""How long each layer takes, forward and backward, as `caffe time` tells it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from jitdnn.caffe.layers import Layer
from jitdnn.caffe.net import Net


@dataclass
class LayerTime:
    """Mean seconds of one layer; `backward` is 0 for a layer that has nothing to do there."""

    name: str
    type: str
    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True)
class NetTime:
    """Mean seconds of a pass of the whole net, measured around it, and of each layer in it; `each` has the seconds of
    every iteration."""

    iterations: int
    forward: float
    backward: float
    layers: tuple[LayerTime, ...]
    each: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        """Seconds of a forward and a backward pass."""
        return self.forward + self.backward

    def lines(self) -> list[str]:
        """The lines of `caffe time`, without its time stamp; times in milliseconds."""
        lines = ["*** Benchmark begins ***", f"Testing for {self.iterations} iterations."]
        lines += [
            f"Iteration: {number} forward-backward time: {1e3 * seconds:g} ms."
            for number, seconds in enumerate(self.each, 1)
        ]
        lines.append("Average time per layer:")
        for layer in self.layers:
            lines.append(f"{layer.name:>10}\tforward: {1e3 * layer.forward:g} ms.")
            lines.append(f"{layer.name:>10}\tbackward: {1e3 * layer.backward:g} ms.")
        return [
            *lines,
            f"Average Forward pass: {1e3 * self.forward:g} ms.",
            f"Average Backward pass: {1e3 * self.backward:g} ms.",
            f"Average Forward-Backward: {1e3 * self.total:g} ms.",
            f"Total Time: {1e3 * self.total * self.iterations:g} ms.",
            "*** Benchmark ends ***",
        ]


def time_net(net: Net, iterations: int = 50, warm_up: int = 1) -> NetTime:
    """Run forward and backward `iterations` times after `warm_up` untimed ones (which plan and compile).

    Gradients of weights pile up in their `diff`. The net's observer is put back afterwards.
    """
    times = {id(layer): LayerTime(layer.name, layer.type) for layer in net.layers}

    def note(layer: Layer, direction: str, seconds: float) -> None:
        time = times[id(layer)]
        if direction == "forward":
            time.forward += seconds / iterations
        else:
            time.backward += seconds / iterations

    forward = backward = 0.0
    each = []
    before, net.observer = net.observer, None
    try:
        for _ in range(warm_up):
            net.forward()
            net.backward()
        net.observer = note
        for _ in range(iterations):
            start = perf_counter()
            net.forward()
            middle = perf_counter()
            net.backward()
            forward += (middle - start) / iterations
            end = perf_counter()
            backward += (end - middle) / iterations
            each.append(end - start)
    finally:
        net.observer = before
    return NetTime(iterations, forward, backward, tuple(times.values()), tuple(each))
