"""Convolutions whose kernels add up their results by channel: what those without a prologue share."""

from __future__ import annotations

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Epilogue, KernelAlgorithm
from jitdnn.kernels.formulas.fused_convolution import SUMS_WITHOUT_EPILOGUE
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.tensor import packed_strides


def refuse_elsewhere(
    separate: Algorithm, problem: FusedConvolution, device: GpuDevice, epilogue: Epilogue | None
) -> str | None:
    """That what takes operands at any address does not take this problem; None if it does."""
    if separate.refuse(problem, device, epilogue):
        return "operands at any address are for separate kernels, which do not take this problem"
    return None


class Summed(KernelAlgorithm[FusedConvolution, GpuDevice]):
    """fprop with sums by channel of its results and of their squares, of each image or of all."""

    problem = FusedConvolution
    takes_no_epilogue = SUMS_WITHOUT_EPILOGUE

    def __init__(self, separate: Algorithm) -> None:
        """`separate`: what takes operands at any address."""
        self._separate = separate

    def refuse_sums(self, problem: FusedConvolution) -> str | None:
        """What is not sums alone, of numbers side by side; None if they are."""
        if not problem.has_sums or problem.has_prologue:
            return "sums by channel are fused with the convolution here, and no prologue"
        for name, tensor in (("sums", problem.sums), ("squares", problem.squares)):
            if tensor is not None and tensor.strides != packed_strides(tensor.shape):
                return f"{name} have strides {tensor.strides}: numbers of channels must lie side by side"
        return None
