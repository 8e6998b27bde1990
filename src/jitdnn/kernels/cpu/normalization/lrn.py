"""Local response and divisive normalization: how a tensor is cut for `window_norm_trace`, and what that costs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.microkernel.nontemporal import is_streamed
from jitdnn.kernels.cpu.normalization.lrn_code import AXES, MOST_UNROLLED, NUMBERS, POWERS, NormCode, trace
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.parallel import split_units
from jitdnn.problems.divisive_norm import DivisiveNorm
from jitdnn.problems.lrn import LRN
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

Axis = tuple[int, tuple[int, ...]]  # its extent, and the stride of each tensor

_VECTORS = 4
_ROWS = 8  # of sums in a unit, with vectors along them
_CHUNK_VECTORS = 32  # of one position, forward: neighbours of a plane of channels that are read in one go
_BLOCK_BYTES = 256 << 10  # of sums that are kept at once, backward; beyond that fewer vectors go together


@dataclass(frozen=True)
class _Cut:
    """A problem's axes: those that no window lies on, that of the lanes, and the three of the window."""

    kept: tuple[Axis, ...]
    lanes: Axis
    window: tuple[Axis, Axis, Axis]

    @staticmethod
    def of(problem: LRN | DivisiveNorm, is_along: bool) -> _Cut:
        tensors = [operand.descriptor for operand in problem.operands]
        axes = [
            (extent, tuple(tensor.strides[a] for tensor in tensors))
            for a, extent in enumerate(problem.output.shape)
        ]
        nothing: Axis = (1, (0,) * len(tensors))
        inside = [axes[a] for a in problem.window_axes]
        first, last = inside[: len(inside) - 1], inside[-1]
        window = [*first, *[nothing] * (AXES - len(first) - 1), last]
        kept = _joined([axis for a, axis in enumerate(axes) if a not in problem.window_axes])
        if is_along:
            if len(inside) == 1 and kept:  # rows that no window connects: the first axis goes through them
                window[0] = kept.pop()
            return _Cut(tuple(kept), last, (window[0], window[1], nothing))
        units = [axis for axis in kept if all(step == 1 for step in axis[1])]
        lanes: Axis = (1, (1,) * len(tensors))
        if kept:
            lanes = units[0] if units else kept[-1]
            kept.remove(lanes)
        return _Cut(tuple(kept), lanes, (window[0], window[1], window[2]))

    @property
    def box(self) -> int:
        """Positions of the window."""
        return prod(extent for extent, _ in self.window)


def _joined(axes: Sequence[Axis]) -> list[Axis]:
    """Axes from the outermost in the memory of the last tensor inwards, joined where all tensors allow it."""
    joined: list[Axis] = []
    for extent, strides in sorted((a for a in axes if a[0] != 1), key=lambda axis: -abs(axis[1][-1])):
        if joined and all(
            outer == extent * inner for outer, inner in zip(joined[-1][1], strides, strict=True)
        ):
            joined[-1] = (joined[-1][0] * extent, strides)
        else:
            joined.append((extent, strides))
    return joined


class _WindowNorm(Algorithm):
    deterministic = True
    is_along: ClassVar[bool]

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return f"{problem.kind} takes no epilogue"
        if not self.is_along:
            return None
        norm = cast(LRN | DivisiveNorm, problem)
        axis = norm.window_axes[-1]
        for operand in problem.operands:
            if operand.descriptor.strides[axis] != 1 and operand.descriptor.shape[axis] > 1:
                return (
                    f"neighbours of {operand.name} along axis {axis}, the last of the window, are "
                    f"{operand.descriptor.strides[axis]} elements apart: they must be adjacent"
                )
        return None

    def _vectors(self, problem: Problem, cut: _Cut, device: Device) -> int:
        """Vectors of lanes that go together: with the sums of a whole box, no more than stay in a cache."""
        if self.is_along:
            return 1
        if problem.kind.endswith("fwd"):
            return _VECTORS
        dtype = compute_dtype(problem.dtype)
        vector = 2 * cut.box * cast(CpuDevice, device).isa.vector_bytes
        lanes = cast(CpuDevice, device).isa.lanes(dtype)
        most = -(-cut.lanes[0] // lanes)
        return next((v for v in (4, 2) if v * vector <= _BLOCK_BYTES and v <= most), 1)

    def _rows(self, problem: LRN | DivisiveNorm, cut: _Cut) -> int:
        """Positions of the first axis in a unit, with vectors along the window."""
        (extent, _), (inner, _), _ = cut.window
        if problem.direction == "bwd" and len(problem.window_axes) > 1:
            return extent  # the windows connect them all
        return max(1, min(extent, _ROWS // inner))

    def _front(self, problem: LRN | DivisiveNorm, lanes: int) -> int:
        """Elements before a row of sums: zeros for windows that begin before it, a whole number of vectors."""
        return -(-problem.size // lanes) * lanes

    def _pitch(self, problem: LRN | DivisiveNorm, cut: _Cut, lanes: int) -> int:
        return 2 * self._front(problem, lanes) + (cut.lanes[0] // lanes + 2) * lanes

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        norm, processor, dtype = (
            cast(LRN | DivisiveNorm, problem),
            cast(CpuDevice, device),
            compute_dtype(problem.dtype),
        )
        lanes, cut = processor.isa.lanes(dtype), _Cut.of(norm, self.is_along)
        is_forward = problem.kind.endswith("fwd")
        if self.is_along:
            rows = self._rows(norm, cut) * cut.window[1][0]
            elements = self._pitch(norm, cut, lanes) * rows * (1 if is_forward else 3)
        else:
            elements = 0 if is_forward else 2 * cut.box * self._vectors(problem, cut, device) * lanes
        return device.threads * elements * ITEM_BYTES[dtype]

    def _cycles(self, problem: LRN | DivisiveNorm, cut: _Cut, lanes: int) -> float:
        """Cycles of one thread."""
        extent, strides = cut.lanes
        axes = len(problem.window_axes)
        taps: int = problem.size ** (axes - 1) + problem.size if self.is_along else problem.size**axes
        gathers = sum(stride != 1 for stride in strides) * 2.0 * lanes
        power = (20.0 if problem.beta in POWERS else 45.0) * (
            1 if compute_dtype(problem.dtype) == "f32" else 2
        )
        vector = power + taps * (2.0 + (gathers if not self.is_along else 0)) + gathers
        if problem.kind.endswith("bwd"):
            vector *= 2.2
        rows = prod(e for e, _ in cut.kept) * cut.box
        return rows * (-(-extent // lanes) * vector + 30.0)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        norm, processor = cast(LRN | DivisiveNorm, problem), cast(CpuDevice, device)
        lanes = processor.isa.lanes(compute_dtype(problem.dtype))
        cycles = self._cycles(norm, _Cut.of(norm, self.is_along), lanes)
        return seconds_of(problem, processor, cycles, max(1, int(cycles / 5e4)))

    def error_bound(self, problem: Problem) -> float:
        # sums of squares, roots or an exponential of a logarithm, and a difference that may cancel in part
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        norm, processor = cast(LRN | DivisiveNorm, problem), cast(CpuDevice, device)
        cut, lanes = _Cut.of(norm, self.is_along), processor.isa.lanes(compute_dtype(problem.dtype))
        vectors, is_forward = self._vectors(problem, cut, device), problem.kind.endswith("fwd")
        extent, steps = cut.lanes
        code = NormCode(
            direction=norm.direction,
            is_along=self.is_along,
            is_row=len(norm.window_axes) == 1,
            has_means=isinstance(norm, DivisiveNorm) and norm.means is not None,
            dtype=problem.dtype,
            power=POWERS.get(norm.beta, "any"),
            kept=len(cut.kept),
            vectors=vectors,
            size=norm.size if norm.size <= MOST_UNROLLED else 0,
            is_unit=tuple(step == 1 or extent == 1 for step in steps),
            streams=is_streamed(problem.output),
        )
        library = load("window_norm", code, processor.isa, lambda module: trace(module, code))
        units = prod(e for e, _ in cut.kept)
        if self.is_along:
            chunk = self._rows(norm, cut)
            units *= -(-cut.window[0][0] // chunk)
        else:
            chunk = lanes * (_CHUNK_VECTORS if is_forward else vectors)
            units *= -(-extent // chunk) * (cut.window[0][0] if is_forward else 1)
        if problem.output.size == 0:
            units = 0
        tasks, per_task = split_units(units, device, self.estimate(problem, device) * device.threads)
        behind = (norm.size - 1) // 2
        numbers = {
            "units": units,
            "per_task": per_task,
            "run": extent,
            "chunk": chunk,
            "behind": behind,
            "ahead": norm.size - 1 - behind,
            "size": norm.size,
            "pitch": self._pitch(norm, cut, lanes),
            "front": self._front(norm, lanes),
            **{f"extent{a}": e for a, (e, _) in enumerate(cut.window)},
        }
        axes = [*cut.kept, cut.lanes, *cut.window]
        extras = [
            *(numbers[name] for name in NUMBERS), *map(_bits, (norm.k, norm.scale, norm.beta)),
            *(e for e, _ in axes), *(s[t] for t in range(len(steps)) for _, s in axes),
        ]  # fmt: skip
        threads = device.threads if tasks > 1 else 1
        return CpuKernel(library, [("window_norm", tasks)], len(steps), threads, extras)


def _bits(value: float) -> int:
    """A double as the integer of the same bits."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


class LRNAlong(_WindowNorm):
    """Vectors along the window: over the channels of a channels-last tensor, or the rows of a channels-first one."""

    name = "along"
    problem = LRN
    is_along = True


class LRNBeside(_WindowNorm):
    """Vectors beside the window, each lane summing for itself: for every memory layout."""

    name = "beside"
    problem = LRN
    is_along = False


class DivisiveNormAlong(_WindowNorm):
    """Vectors along the rows that windows lie on: for channels-first tensors."""

    name = "along"
    problem = DivisiveNorm
    is_along = True


class DivisiveNormBeside(_WindowNorm):
    """Vectors beside the window, each lane summing for itself: for every memory layout."""

    name = "beside"
    problem = DivisiveNorm
    is_along = False
