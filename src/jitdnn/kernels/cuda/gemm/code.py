"""Source text that matrix products share, and kernels that choose or reorder others.

The files, in the order in which they make a kernel's text:

    shape.cuh           extents, strides and the like, which kernels take as an argument
    stages.cuh          stages in shared memory
    mainloop.cuh        the ring of stages, and how it is filled
    mma.cuh, fma.cuh    fragments, their products on the tensor cores or by multiply-adds, and the loop over K
    tile_scheduler.cuh  which tile, and which split of K, a thread block has
    copy.cuh            asynchronous copies into a stage
    epilogue.cuh        sums from registers to the function that finishes them
    split_k.cuh         partial sums in the workspace, and their reduction
    store.cuh           alpha, beta and wide stores

pack.cu, which brings an operand into the workspace, is a module of its own (packing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.devices.gpu import read_text
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.cuda.gemm.plan import Blocking, Tile
from jitdnn.locks import lock

MMA_FUNCTIONS = {"bf16": "mma_bf16", "f16": "mma_f16", "f32": "mma_tf32", "i8": "mma_s8"}
"""The instruction that multiplies elements of each type."""


def gemm_text(tile: Tile) -> str:
    """What comes before the text of a kernel."""
    return read_text(
        "cuda/gemm", "divisor.cuh", "shape.cuh", "stages.cuh", "mainloop.cuh", "fma.cuh" if tile.is_fma else "mma.cuh",
        "tile_scheduler.cuh", "copy.cuh", "epilogue.cuh", "split_k.cuh", "store.cuh",
    )  # fmt: skip


def _tile_defines(tile: Tile) -> tuple[tuple[str, object], ...]:
    return (
        ("BM", tile.m), ("BN", tile.n), ("BK_BYTES", tile.k_bytes), ("WM", tile.wm), ("WN", tile.wn),
        ("STAGES", tile.stages), ("FRAGMENT_BUFFERS", tile.fragment_buffers), ("RESIDENT", tile.resident),
        ("IS_FMA", int(tile.is_fma)),
    )  # fmt: skip


def blocking_defines(blocking: Blocking) -> tuple[tuple[str, object], ...]:
    """Macros of the blocking."""
    return (
        *_tile_defines(blocking.tile),
        ("IS_SPLIT", int(blocking.splits > 1)),
        ("HAS_WHOLE_TILES", int(blocking.has_whole_tiles)),
    )


def initializer(numbers: Sequence[object]) -> str:
    """Numbers as the inside of a C initializer."""
    return ", ".join(str(number).lower() if isinstance(number, bool) else str(number) for number in numbers)


@dataclass
class ByAddress:
    """A kernel for pointers that are multiples of `alignments` (bytes), and another one for all others.

    The other is made when it is first needed: hardly any caller does. By then nothing else can be chosen in its place.
    Code is loaded also while the call is captured into a graph.
    """

    aligned: GpuKernel
    make_other: Callable[[], Kernel]
    alignments: tuple[int, ...]
    _other: Kernel | None = None
    _lock: Any = field(default_factory=lock)
    _mask: int = 0

    def __post_init__(self) -> None:
        self._mask = max(self.alignments, default=1) - 1

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        bits = 0
        for pointer in pointers:
            bits |= pointer
        # nearly always all are multiples of the largest
        if not bits & self._mask or not any(p % a for p, a in zip(pointers, self.alignments, strict=False)):
            self.aligned(stream, pointers, alpha, beta, workspace)
            return
        if self._other is None:
            with self._lock:
                self._other = self._other or self.make_other()
        self._other(stream, pointers, alpha, beta, workspace)

    def frozen(self) -> Any:
        """As a kernel's own (devices/cuda_kernel.py): of the one for aligned pointers, of all of them alike."""
        found = _frozen(self.aligned)
        return found and found._replace(alignment=max(found.alignment, self._mask + 1))


@dataclass(frozen=True)
class Reordered:
    """A kernel that takes its first pointers in another order: its i-th is number `order[i]` of the problem's."""

    kernel: GpuKernel
    order: tuple[int, ...]

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        first = [pointers[number] for number in self.order]
        self.kernel(stream, [*first, *pointers[len(first) :]], alpha, beta, workspace)

    def frozen(self) -> Any:
        """As a kernel's own (devices/cuda_kernel.py)."""
        found = _frozen(self.kernel)
        return found and found._replace(
            order=tuple(self.order[one] if one < len(self.order) else one for one in found.order)
        )


def _frozen(kernel: Any) -> Any:
    """Of a kernel that can say it."""
    frozen = getattr(kernel, "frozen", None)
    return frozen and frozen()


class Nothing:
    """The kernel of a result without elements."""

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        return
