"""The generator of processors for problems over random words."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu.random.dropout import Drop
from jitdnn.kernels.cpu.random.fill import Fill
from jitdnn.kernels.cpu.random.philox import build_parts, double_bits, estimate_parts
from jitdnn.kernels.formulas.philox import Numbered
from jitdnn.problems.dropout import PARTS, Dropout
from jitdnn.problems.random import FRACTION_BITS, Random
from jitdnn.tensor import TensorDescriptor


class PhiloxLoops:
    """Vectors of neighbouring blocks, and the parts side by side."""

    def refuse(self, tensors: Sequence[TensorDescriptor], device: Device) -> str | None:
        return None

    def estimate(self, tensors: Sequence[TensorDescriptor], parts: int, device: Device) -> float:
        return estimate_parts(tensors, parts, device)

    def dropout(self, problem: Dropout, tensors: Numbered, state: int, device: Device) -> CpuKernel:
        numbers = [problem.threshold, double_bits(problem.factor)]
        body = Drop(problem.mask is not None, problem.p == 1)
        return build_parts(body, numbers, tensors, 1, state, PARTS, device)

    def fill(self, problem: Random, tensors: Numbered, state: int, device: Device) -> CpuKernel:
        if problem.distribution == "bernoulli":
            numbers, bits = [problem.threshold], 32
        else:
            numbers, bits = [double_bits(problem.a), double_bits(problem.b)], FRACTION_BITS[problem.dtype]
        if problem.distribution == "normal":
            bits = 32 if problem.parts == 4 else 53
        body = Fill(problem.distribution, bits, problem.parts)
        return build_parts(body, numbers, tensors, 0, state, problem.parts, device)
