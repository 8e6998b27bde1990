"""The generator of GPUs for problems over random words."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.algorithm import Device, Kernel
from jitdnn.kernels.formulas.philox import Numbered
from jitdnn.kernels.gpu.elementwise.generator import refuse_elementwise
from jitdnn.kernels.gpu.random.dropout import Drop
from jitdnn.kernels.gpu.random.fill import Fill
from jitdnn.kernels.gpu.random.philox import build_parts, estimate_parts
from jitdnn.problems.dropout import PARTS, Dropout
from jitdnn.problems.random import Random
from jitdnn.tensor import TensorDescriptor


class PhiloxLoops:
    """Threads with vectors of neighbouring blocks, and the parts side by side."""

    def refuse(self, tensors: Sequence[TensorDescriptor], device: Device) -> str | None:
        return refuse_elementwise(tensors, device, "f32")

    def estimate(self, tensors: Sequence[TensorDescriptor], parts: int, device: Device) -> float:
        return estimate_parts(tensors, device)

    def dropout(self, problem: Dropout, tensors: Numbered, state: int, device: Device) -> Kernel:
        body = Drop(problem.threshold, problem.factor, problem.mask is not None)
        return build_parts(body, tensors, 1, state, PARTS, device)

    def fill(self, problem: Random, tensors: Numbered, state: int, device: Device) -> Kernel:
        return build_parts(Fill(problem), tensors, 0, state, problem.parts, device)
