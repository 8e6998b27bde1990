"""Kernels one after the other over operands and pieces of one workspace, assembled before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import (
    STANDARD_ROUNDOFFS,
    STRICT_ROUNDOFFS,
    Algorithm,
    Kernel,
    fastest,
    storing_roundoff,
    summation_bound,
)
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.rnn import Recurrent
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import TensorDescriptor, compute_dtype

_ALIGNMENT = 256
_WORKSPACE = -1
_THREADS = 256
_MOST_GROUPS = 4096
TF32_ROUNDOFF = 2.0**-11
_FEW = 2**31  # elements that 32 bits count


class At(NamedTuple):
    """Bytes from an operand's address, or that of the workspace; `NOTHING` is no address."""

    place: int
    bytes: int = 0

    def __add__(self, more: int) -> At:  # type: ignore[override]
        return At(self.place, self.bytes + more)


NOTHING = At(-2)


class _Step(NamedTuple):
    make: Callable[[], Kernel]
    pointers: tuple[At, ...]
    is_scaled: bool
    has_workspace: bool


@dataclass(frozen=True)
class _Ready:
    steps: tuple[tuple[Kernel, tuple[At, ...], bool, bool], ...]
    room: int

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        bases = {_WORKSPACE: workspace}
        for kernel, addresses, is_scaled, has_workspace in self.steps:
            given = [
                0 if place < _WORKSPACE else (bases[place] if place in bases else pointers[place]) + offset
                for place, offset in addresses
            ]
            factors = (alpha, beta) if is_scaled else (1.0, 0.0)
            kernel(stream, given, *factors, workspace + self.room if has_workspace else 0)


class Program:
    """The steps of one problem. `element`: what tensors hold; `real`: what is computed with; `state`: in which
    states are exchanged."""

    def __init__(
        self, p: Recurrent, device: GpuDevice, products: Sequence[Algorithm], precision: str, state: str
    ) -> None:
        self.p, self.device = p, device
        self.element, self.real = p.element, compute_dtype(p.element)
        self.item, self.real_item = ITEM_BYTES[self.element], ITEM_BYTES[self.real]
        self.state, self.state_item = state, ITEM_BYTES[state]
        self.seconds = 0.0
        self._products, self._is_exact = products, precision == "numbers"
        # where halves are computed with in f32, products of tf32 lose no more than they have lost
        self._rounds = precision == "rounded" or (precision == "parts" and self.real != self.element)
        self._steps: list[_Step] = []
        self._room = self._inner = self._most = 0

    # ---- addresses

    def take(self, count: int, item: int | None = None) -> At:
        """A piece of the workspace of `count` numbers."""
        at = At(_WORKSPACE, self._room)
        self._room += -(-count * (item or self.real_item) // _ALIGNMENT) * _ALIGNMENT
        return at

    def operand(self, name: str, offset: int = 0) -> At:
        """An operand, `offset` elements behind its first; nothing if the problem has none of that name."""
        place = self.p.places.get(name)
        if place is None:
            return NOTHING
        return At(place, offset * ITEM_BYTES.get(self.p.operands[place].descriptor.dtype, 4))

    def strides(self, name: str) -> tuple[int, ...]:
        place = self.p.places.get(name)
        return self.p.operands[place].descriptor.strides if place is not None else (0, 0, 0)

    # ---- steps

    @property
    def workspace(self) -> int:
        return self._room + self._inner

    def rows(
        self, function: str, count: int, pointers: Sequence[At], extras: Sequence[int], floats: Sequence[float] = (),
        is_scaled: bool = False, most_groups: int = _MOST_GROUPS,
    ) -> None:  # fmt: skip
        """A function of rows.cu over `count` elements."""
        groups = max(1, min(-(-count // _THREADS), most_groups))
        self.seconds += count * 2 * self.real_item / self.device.bandwidth
        self._most = max(self._most, count)
        self.launch(None, Launch(function, groups, _THREADS), pointers, extras, floats, is_scaled)

    def launch(
        self, source: Source | None, launch: Launch, pointers: Sequence[At], extras: Sequence[int],
        floats: Sequence[float] = (), is_scaled: bool = False,
    ) -> None:  # fmt: skip
        """A function of a source, rows.cu if it is None."""
        device, count = self.device, len(pointers)

        def make() -> Kernel:
            kernel: Kernel = device.kernel(source or self._rows_source(), [launch], count, extras, floats)
            return kernel

        self.seconds += LAUNCH_SECONDS
        self._steps.append(_Step(make, tuple(pointers), is_scaled, False))

    def product(
        self,
        a: TensorDescriptor,
        b: TensorDescriptor,
        c: TensorDescriptor,
        pointers: Sequence[At],
        is_scaled: bool = False,
    ) -> None:
        """c = a b by the fastest algorithm that may."""
        problem, device = MatMul(a, b, c), self.device
        if not prod(c.shape):
            return
        unit = max(storing_roundoff(problem), TF32_ROUNDOFF if self._rounds else 0.0)
        limit = max(
            summation_bound(problem), (STRICT_ROUNDOFFS if self._is_exact else STANDARD_ROUNDOFFS) * unit
        )

        def is_allowed(other: Algorithm) -> bool:
            return (
                other.deterministic
                and other.only_by_name is None
                and other.error_bound(problem) <= limit
                and (other.has_exact_products or not self._is_exact)
                and (self._rounds or other.arithmetic(problem) != "tf32")
            )

        best = fastest(self._products, problem, device, None, is_allowed)
        assert best is not None
        self.seconds += best.estimate(problem, device)
        self._inner = max(self._inner, best.workspace(problem, device))
        self._steps.append(_Step(lambda: best.build(problem, device), tuple(pointers), is_scaled, True))

    def build(self) -> Kernel:
        made = [(step.make(), *step[1:]) for step in self._steps]
        return _Ready(tuple(made), self._room)

    def _rows_source(self) -> Source:
        """rows.cu for the types of the problem."""
        names = (
            ("REAL", self.real), ("ELEMENT", self.element), ("STATE", self.state), ("INDEX", self.p.index),
            ("GRU", int(self.p.cell == "gru")), ("COUNT", "u32" if self._most < _FEW else "u64"),
        )  # fmt: skip
        text = read_text("gpu/prelude", "philox.h") + "\n" + read_text("cuda/rnn", "rows.cu")
        # blocks of 1024 threads leave 64 registers to each, which f64 may need more than
        return Source("rnn_rows", text, names, dialect="cuda", spills=self.real == "f64")
