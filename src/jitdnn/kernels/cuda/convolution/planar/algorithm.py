"""Convolutions with few channels in a group, channels first, on the CUDA cores: planes are copied to shared memory.

A depthwise layer of small images moves few bytes for each plane, and a grouped one multiplies too little for the tensor
cores. The planes of a group are contiguous, so that a thread block copies them as one run, at the speed of memory
whatever their extents are, and multiplies from shared memory.

Floors on an H200: 64 images of 576 channels of 14 x 14, 3x3 depthwise, f32: 13 us by bytes; of 256 channels of 28 x 28
in 32 groups, 3x3: 24 us by bytes, 28 by f32 products.
"""

from __future__ import annotations

import functools

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Epilogue, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.planar import plan as plans
from jitdnn.kernels.cuda.convolution.planar.code import launch
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.problems.convolution import Convolution


class Planar(KernelAlgorithm[Convolution, GpuDevice]):
    """Depthwise and grouped layers of channels first: the planes of a group go through shared memory."""

    name = "planar"
    problem = Convolution
    takes_float8 = False

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if reason := plans.refuse(problem):
            return reason
        if self.sizes(problem, device) is None:
            taps = "x".join(map(str, problem.filter_spatial))
            return (
                f"the planes of a group, or the {taps} taps of a thread, are too many: {device.shared_bytes} bytes of "
                "shared memory hold the former, registers the latter; direct takes any"
            )
        return None

    def sizes(self, problem: Convolution, device: GpuDevice) -> plans.Plan | None:
        """The cheapest plan; None if nothing fits."""
        return _cheapest(problem, device)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = self.sizes(problem, device)
        assert plan is not None
        return PlannedKernel(0, plans.seconds(plan, device), lambda: _kernel(plan, device, epilogue))


@functools.lru_cache(4096)
def _cheapest(problem: Convolution, device: GpuDevice) -> plans.Plan | None:
    return plans.cheapest(problem, device)


def _kernel(plan: plans.Plan, device: GpuDevice, epilogue: Epilogue | None) -> GpuKernel | ByAddress:
    pointers = 3 + (len(epilogue.operands) if epilogue else 0)

    def kernel(is_aligned: bool) -> GpuKernel:
        source, launches, numbers = launch(plan, epilogue, is_aligned)
        return device.kernel(source, launches, pointers, numbers)

    if not plan.is_aligned:
        return kernel(False)
    return ByAddress(kernel(True), lambda: kernel(False), (16, plan.element, plan.element))
