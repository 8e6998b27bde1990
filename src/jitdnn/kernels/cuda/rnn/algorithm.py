"""Recurrent layers on NVIDIA GPUs: one launch runs all steps, and its thread blocks keep the weights on chip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Algorithm,
    Epilogue,
    KernelAlgorithm,
    PlannedKernel,
    version_over,
)
from jitdnn.kernels.cuda.rnn.backward import BackwardData, BackwardWeights
from jitdnn.kernels.cuda.rnn.forward import Forward
from jitdnn.kernels.cuda.rnn.layers import Layers
from jitdnn.kernels.cuda.rnn.program import TF32_ROUNDOFF, Program
from jitdnn.problems.problem import Problem
from jitdnn.problems.rnn import Recurrent
from jitdnn.tensor import TensorDescriptor, compute_dtype

_MOST_NUMBERS = 2**31 - 1
_PROGRAMS: dict[str, type[Layers]] = {
    "fwd": Forward, "bwd_data": BackwardData, "bwd_weights": BackwardWeights
}  # fmt: skip


class PersistentSteps(KernelAlgorithm[Recurrent, GpuDevice]):
    """All steps of a layer in one launch of thread blocks that wait for each other, products on CUDA cores."""

    name = "persistent"
    problem = Recurrent
    takes_no_epilogue = "recurrent layers take no epilogue"
    precision = "numbers"  # of products: `passes_of`

    def __init__(self, products: Sequence[Algorithm]) -> None:
        """`products`: those that may run the matrix products, best first."""
        self._program = lru_cache(64)(self._make)
        self.products = tuple(products)
        self.version = version_over(self.version, products)  # type: ignore[misc]

    def refusal(self, problem: Recurrent, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        for operand in problem.operands:
            if operand.name in ("saved", "dgates") and not _is_packed(operand.descriptor):
                strides = operand.descriptor.strides
                return f"{operand.name} has strides {strides}: it must be packed"
        if problem.rows * problem.directions >= _MOST_NUMBERS:
            return f"there are {problem.rows} rows of all steps: the tables hold up to {_MOST_NUMBERS}"
        if self._program(problem, device) is None:
            return f"a thread block's sums do not fit its {device.shared_bytes} bytes of shared memory"
        return None

    def error_of(self, problem: Recurrent) -> float:
        """Rounding errors of the sums of each layer; from step to step they decay on well-conditioned data."""
        rows = problem.rows if problem.direction == "bwd_weights" else 0
        depth = max(problem.inputs_size, problem.gates * problem.hidden, rows)
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        rounded = max(own, TF32_ROUNDOFF) if self.precision == "rounded" else own
        # products with inputs, inputs of layers, and operands of products
        stored = 6.0 * rounded * problem.layers if rounded > computing else 0.0
        return 2.0 * own + stored + computing * problem.layers * (16.0 + 2.0 * sqrt(depth))

    def plan(self, problem: Recurrent, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        program = self._program(problem, device)
        assert program is not None, problem
        return PlannedKernel(program.workspace, program.seconds, program.build)

    def _make(self, problem: Recurrent, device: GpuDevice) -> Program | None:
        made = _PROGRAMS[problem.direction](problem, device, self.products, self.precision)
        return made.program()


class PersistentStepsTensorCores(PersistentSteps):
    """`persistent` on tensor cores: numbers of f32 are the sums of two of tf32."""

    name = "persistent_tensor_cores"
    precision = "parts"
    has_exact_products = False

    def refusal(self, problem: Recurrent, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.element == "f64":
            return "products of tf32 make no f64: persistent takes it"
        return super().refusal(problem, device, epilogue)


class PersistentStepsTf32(PersistentStepsTensorCores):
    """`persistent` on tensor cores, with numbers of f32 rounded to tf32."""

    name = "persistent_tf32"
    precision = "rounded"

    def arithmetic(self, problem: Problem) -> str:
        return "tf32"

    def refusal(self, problem: Recurrent, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.element != "f32":
            return f"it rounds f32, and the tensors are {problem.element}"
        return super().refusal(problem, device, epilogue)


def _is_packed(tensor: TensorDescriptor) -> bool:
    packed = TensorDescriptor.packed(tensor.shape, tensor.dtype).strides
    return all(n == 1 or s == p for n, s, p in zip(tensor.shape, tensor.strides, packed, strict=True))
