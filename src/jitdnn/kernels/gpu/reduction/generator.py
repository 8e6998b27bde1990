"""Programs over rows (`row_programs`) as kernels for GPUs, and the algorithms that are nothing else."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.formulas.row_programs import Program
from jitdnn.kernels.gpu.reduction.code import Text
from jitdnn.kernels.gpu.reduction.key import RowsCode
from jitdnn.kernels.gpu.reduction.layout import Layout, common_shape, computing_dtype, lay_out
from jitdnn.kernels.gpu.reduction.split_rows import partial_states, region_bytes
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES, TensorDescriptor

LAUNCH_SECONDS = 3e-6


@dataclass(frozen=True)
class RowsKernel:
    """A program over tensors, inputs first, then outputs, each broadcast to one shape.

    Tensors may have extent 1 where others have more; row outputs must, or stride 0, along the reduced axes. `plain`:
    outputs (by position among them) that alpha and beta do not touch. `operands`: the number of each tensor's pointer
    (in order if None) among the kernel's `pointers`; a state is an input and an output of one number. `compute`: "f32"
    or "f64" to compute in, by default what the tensors' dtypes ask for.

    An output may be the very tensor of an input that has every element of the row: elements are read before they are
    written.
    """

    program: Program
    tensors: tuple[TensorDescriptor, ...]
    axes: tuple[int, ...]
    device: GpuDevice
    plain: tuple[int, ...] = ()
    operands: tuple[int, ...] | None = None
    pointers: int | None = None
    compute: str | None = None

    @functools.cached_property
    def code(self) -> RowsCode:
        shape = common_shape(self.tensors)
        tensors = [tensor.broadcast_to(shape) for tensor in self.tensors]
        count = len(tensors)
        compute = self.compute or computing_dtype(tensors, count - self.program.outputs)
        axes = tuple(axis % len(shape) for axis in self.axes)
        layout = lay_out(self.program, tensors, axes, self.device, compute)
        operands = tuple(range(count)) if self.operands is None else self.operands
        pointers = count if self.pointers is None else self.pointers
        dtypes = tuple(tensor.dtype for tensor in tensors)
        return RowsCode(self.program, dtypes, operands, pointers, self.plain, compute, layout)

    @property
    def layout(self) -> Layout:
        return self.code.layout

    def workspace(self) -> int:
        """Bytes for what the parts of rows leave."""
        if not self.code.is_split:
            return 0
        states = partial_states(self.program, self.code.compute, self.code.index)
        return len(states) * region_bytes(self.layout)

    def estimate(self) -> float:
        """Expected seconds: the bytes of each time that memory is gone through."""
        loops = [sweep for sweep in self.program.sweeps if sweep.loops]
        inputs, moved = len(self.tensors) - self.program.outputs, 0
        seen: set[int] = set()
        for sweep in loops:
            expressions = [*(e for _, e in sweep.folds), *(e for _, e in sweep.writes), *sweep.keeps]
            used = {i for e in expressions for i in e.used() if i < inputs}
            for t in used - seen if self.layout.is_held else used:
                moved += _reach(self.tensors[t])
            seen |= used
            moved += sum(_reach(self.tensors[inputs + output]) for output, _ in sweep.writes)
        launches = 1 if not self.code.is_split else 2 * len(loops)
        return launches * LAUNCH_SECONDS + moved / (0.9 * self.device.bandwidth)

    def source(self) -> tuple[Source, list[Launch]]:
        """The text and what is launched of it."""
        writer, layout = Text(self.code), self.layout
        body = writer.complete()
        launches = [
            Launch(name, layout.join_groups, layout.join_threads)
            if name.startswith("join")
            else Launch(name, (layout.groups, layout.parts), layout.threads)
            for name in writer.names
        ]
        text = read_text("gpu/prelude", "reduce.h") + body
        # rows that fill the registers leave a few numbers no place
        return Source("rows", text, spills=True), launches

    def build(self) -> Kernel:
        source, launches = self.source()
        extras = [value for _, value in self.code.extras]
        return self.device.kernel(source, launches, self.code.pointers, extras, self.program.parameters)


def _reach(tensor: TensorDescriptor) -> int:
    size = DTYPES[tensor.dtype]
    for extent, stride in zip(tensor.shape, tensor.strides, strict=True):
        size *= extent if stride else 1
    return size


class Rows(NamedTuple):
    """A program, its tensors (inputs first, then outputs), the axes that make a row, and what alpha leaves alone."""

    program: Program
    tensors: Sequence[TensorDescriptor]
    axes: Sequence[int]
    plain: tuple[int, ...] = ()

    def kernel(self, device: Device, compute: str | None = None) -> RowsKernel:
        return RowsKernel(
            self.program, tuple(self.tensors), tuple(self.axes), cast(GpuDevice, device), self.plain,
            compute=compute,
        )  # fmt: skip


class RowsAlgorithm(Algorithm):
    """An algorithm of which only the program differs from others."""

    name = "rows"
    deterministic = True

    @abstractmethod
    def rows(self, problem: Problem, device: Device) -> Rows:
        """What to compute."""

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return f"{problem.kind} takes no epilogue"
        return refuse_f64(problem, device)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self.rows(problem, device).kernel(device).workspace()

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self.rows(problem, device).kernel(device).estimate()

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return self.rows(problem, device).kernel(device).build()


def refuse_f64(problem: Problem, device: Device) -> str | None:
    """What a device without double precision cannot do."""
    is_double = any(operand.descriptor.dtype == "f64" for operand in problem.operands)
    if is_double and not cast(GpuDevice, device).has_f64:
        return f"{device.name} has no double precision: use f32"
    return None
