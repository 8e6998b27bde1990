"""What a solver tells while it runs. Each event can print itself as Caffe's log lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jitdnn.caffe.loss_value import LossValue


@dataclass(frozen=True)
class Output:
    """One number of an output blob; `weight` is its loss weight."""

    name: str
    value: float
    weight: float

    def line(self, phase: str, index: int) -> str:
        """The log line of a "Train" or "Test" net output."""
        loss = f" (* {self.weight:g} = {self.weight * self.value:g} loss)" if self.weight else ""
        return f"    {phase} net output #{index}: {self.name} = {self.value:g}{loss}"


@dataclass(frozen=True)
class Event:
    """Base of all events; `iteration` counts the updates done so far."""

    iteration: int

    def lines(self) -> list[str]:
        """The lines that Caffe would log, without its time stamp."""
        return []


@dataclass(frozen=True)
class Started(Event):
    """Training begins, or goes on, at `iteration`; `policy` is that of the learning rate."""

    max_iteration: int
    net: str
    policy: str

    def lines(self) -> list[str]:
        return [f"Solving {self.net}".rstrip(), f"Learning Rate Policy: {self.policy}"]


@dataclass(frozen=True)
class Iterated(Event):
    """An update is done; `loss` is that of its batch: of a net on a GPU a LossValue, for which `float` waits.

    `gradient_norm` is what clip_gradients was compared with, None without it and on GPUs.
    """

    loss: float | LossValue
    rate: float
    gradient_norm: float | None = None


@dataclass(frozen=True)
class Displayed(Event):
    """Every `display` iterations, before the update: the loss averaged over `average_loss` iterations.

    `rate` is the learning rate, None after the last update; `iterations_per_second` None the first time.
    """

    loss: float
    outputs: tuple[Output, ...] = ()
    rate: float | None = None
    iterations_per_second: float | None = None
    display: int = 0

    def lines(self) -> list[str]:
        speed = ""
        if self.iterations_per_second:
            seconds = self.display / self.iterations_per_second
            speed = f" ({self.iterations_per_second:g} iter/s, {seconds:g}s/{self.display} iters)"
        lines = [f"Iteration {self.iteration}{speed}, loss = {self.loss:g}"]
        lines += [output.line("Train", index) for index, output in enumerate(self.outputs)]
        if self.rate is not None:
            lines.append(f"Iteration {self.iteration}, lr = {self.rate:g}")
        return lines


@dataclass(frozen=True)
class WaitedForData(Event):
    """With each display but the first: of so many seconds, how many the net stood still for batches of its data layers.
    It prints a line where that is 1 % or more.
    """

    seconds: float
    elapsed: float

    @property
    def share(self) -> float:
        """The part of the time, 0 to 1."""
        return self.seconds / self.elapsed if self.elapsed else 0.0

    def lines(self) -> list[str]:
        if self.share < 0.01:
            return []
        return [f"    Waited {self.seconds:.3g} s of {self.elapsed:.3g} s for data ({self.share:.0%})"]


@dataclass(frozen=True)
class Tested(Event):
    """A test net has run: the mean of each of its outputs, and of its loss with `test_compute_loss`."""

    net: int
    outputs: tuple[Output, ...]
    loss: float | None

    def lines(self) -> list[str]:
        lines = [f"Iteration {self.iteration}, Testing net (#{self.net})"]
        if self.loss is not None:
            lines.append(f"Test loss: {self.loss:g}")
        return lines + [output.line("Test", index) for index, output in enumerate(self.outputs)]


@dataclass(frozen=True)
class Debugged(Event):
    """A line of `debug_info`."""

    line: str

    def lines(self) -> list[str]:
        return [self.line]


@dataclass(frozen=True)
class Snapshotted(Event):
    """A snapshot is on the disk, with Caffe's pair of files `beside` it if the solver writes them."""

    path: Path
    beside: tuple[Path, ...] = ()

    def lines(self) -> list[str]:
        return [f"Snapshotting to {path}" for path in (self.path, *self.beside)]


@dataclass(frozen=True)
class Finished(Event):
    """Training is over; `is_stopped` tells that `stop` ended it early."""

    is_stopped: bool

    def lines(self) -> list[str]:
        return ["Optimization stopped early." if self.is_stopped else "Optimization Done."]


Listener = Callable[[Event], None]
