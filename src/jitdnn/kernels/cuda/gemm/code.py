"""Source text that matrix products on the tensor cores share, and kernels that choose or reorder others.

The files, in the order in which they make a kernel's text:

    mainloop.cuh        fragments, and the loop over K through a ring of stages in shared memory
    tile_scheduler.cuh  which tile, and which split of K, a thread block has
    copy.cuh            asynchronous copies into a stage
    epilogue.cuh        sums from registers to the function that finishes them
    split_k.cuh         partial sums in the workspace, and their reduction
    store.cuh           alpha, beta and wide stores
    pack.cu             behind the kernel: an operand into the workspace, channels innermost
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.devices.gpu import read_text
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.cuda.gemm.plan import Blocking, GemmSize, Pack, Tile, three
from jitdnn.locks import lock

MMA_FUNCTIONS = {"bf16": "mma_bf16", "f16": "mma_f16", "f32": "mma_tf32", "i8": "mma_s8"}
"""The instruction that multiplies elements of each type."""

GEMM_TEXTS = "mainloop.cuh", "tile_scheduler.cuh", "copy.cuh", "epilogue.cuh", "split_k.cuh", "store.cuh"
"""What comes before the text of a kernel, in this order."""


def _tile_defines(tile: Tile) -> tuple[tuple[str, object], ...]:
    return (
        ("BM", tile.m), ("BN", tile.n), ("BK_BYTES", tile.k_bytes), ("WM", tile.wm), ("WN", tile.wn),
        ("STAGES", tile.stages), ("FRAGMENT_BUFFERS", tile.fragment_buffers), ("RESIDENT", tile.resident),
    )  # fmt: skip


def blocking_defines(
    blocking: Blocking, gemms: Sequence[GemmSize], partials_offset: int
) -> tuple[tuple[str, object], ...]:
    """Macros of the blocking, and of where the partial sums begin in the workspace, in bytes."""
    return (
        *_tile_defines(blocking.tile),
        ("GRID_TILES", f"{max(blocking.tiles(gemm) for gemm in gemms)}u"),
        ("UNSPLIT", f"{blocking.unsplit}u"),
        ("SPLITS", blocking.splits),
        ("PARTIALS_OFFSET", f"{partials_offset}ll"),
        ("REDUCTION_THREADS", blocking.reduction_threads(gemms)),
    )


def initializer(numbers: Sequence[object]) -> str:
    """Numbers as the inside of a C initializer."""
    return ", ".join(str(number).lower() if isinstance(number, bool) else str(number) for number in numbers)


def _pack_text(pack: Pack, function: str, operand: str) -> str:
    """The kernel of that name, which packs the `first` or the `second` operand; behind pack.cu."""
    n, c, *space = pack.tensor.strides
    is_along_channels = abs(c) == 1 or pack.channels == pack.padded_channels == 1
    return f"""
struct {function}_form {{
    static constexpr i64 image = {n}, channel = {c}, at = {pack.offset};
    static constexpr int images = {pack.tensor.shape[0]}, groups = {pack.groups};
    static constexpr int channels = {pack.channels}, group_channels = {pack.padded_channels};
    static constexpr i64 strides[3] = {{{initializer(three(space, 0))}}};
    static constexpr int extents[3] = {{{initializer(three(pack.tensor.shape[2:], 1))}}};
    static constexpr bool is_along_channels = {str(is_along_channels).lower()};
}};

KERNEL(256)
void {function}(const DTYPE *first, const DTYPE *second, RESULT * EPILOGUE_PARAMETERS, u8 *workspace, SCALE, SCALE) {{
    begin_launch();
    pack<{function}_form>({operand}, workspace);
}}
"""


def packing_text(data: Pack | None, other: Pack | None, other_name: str) -> str:
    """The kernel `pack_data` and that of the other operand, for those operands that are packed."""
    texts = [_pack_text(data, "pack_data", "first")] if data else []
    texts += [_pack_text(other, other_name, "second")] if other else []
    return "".join([read_text("cuda/gemm", "pack.cu"), *texts]) if texts else ""


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


class Nothing:
    """The kernel of a result without elements."""

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        return
