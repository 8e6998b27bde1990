"""First layers with sums by channel of their results and of their squares, of each image or of all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitdnn.devices.gpu import GpuDevice, Launch, Source
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel, PlannedKernel, version_over
from jitdnn.kernels.cuda.convolution.few_channels import code
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import FewChannels, with_few_inputs
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan
from jitdnn.kernels.cuda.convolution.half_precision.arguments import with_arguments
from jitdnn.kernels.cuda.convolution.summed import Summed, refuse_elsewhere
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution

_MOST_PARTS = 8 << 20
"""Bytes of sums of all thread blocks."""
_LAUNCH, _SUMMED = 2.5e-6, 1.06


@dataclass(frozen=True)
class _Sums:
    """Where sums are in shared memory and in the workspace, and the bytes of both."""

    shared: int
    place: int
    workspace: int


class FewChannelsSummed(Summed):
    """fprop of few channels of half precision with sums, where results leave from registers."""

    name = "stem"

    def __init__(self, separate: Algorithm) -> None:
        """`separate`: what takes operands at any address."""
        super().__init__(separate)
        self._plain = FewChannels()
        self.version = version_over(self.version, [self._plain])  # type: ignore[misc]

    def refusal(self, problem: FusedConvolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        own = problem.convolution
        if reason := self.refuse_sums(problem):
            return reason
        if reason := self._plain.refusal(own, device, None):
            return reason
        if with_few_inputs(own) is not own:
            return "the few channels are those of the result"
        if reason := refuse_elsewhere(self._separate, problem, device, epilogue):
            return reason
        plan = self._plain.sizes(own, device)
        assert plan is not None
        if dict(plan.defines)["STAGES_RESULTS"]:
            return "results go through shared memory: sums are those of results that leave from registers"
        sums = _sums_of(plan, problem)
        if sums.shared * int(str(dict(plan.defines)["RESIDENT"])) > device.shared_bytes:
            return f"there is no room for sums in {device.shared_bytes} bytes of shared memory"
        if sums.workspace - sums.place > _MOST_PARTS:
            return f"sums of thread blocks take {sums.workspace - sums.place} bytes: at most {_MOST_PARTS}"
        return None

    def error_of(self, problem: FusedConvolution) -> float:
        return self._plain.error_of(problem.convolution)

    def plan(self, problem: FusedConvolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        own = problem.convolution
        plan = self._plain.sizes(own, device)
        assert plan is not None
        sums = _sums_of(plan, problem)
        # another kernel takes operands at other addresses, in the same workspace
        room = max(sums.workspace, self._separate.workspace(problem, device, epilogue))

        def build() -> Kernel:
            source, numbers = with_arguments(
                _source(own, plan, sums, problem.is_by_image), code.arguments(plan)
            )
            kernel = device.kernel(replace(source, spills=True), _launches(plan, sums, problem), 5, numbers)
            if plan == plan.unaligned:
                return kernel
            return ByAddress(kernel, lambda: self._separate.build(problem, device), (*plan.alignments, 1, 1))

        return PlannedKernel(room, _SUMMED * plan.seconds + _LAUNCH, build)


def _sums_of(plan: Plan, problem: FusedConvolution) -> _Sums:
    names = {name: int(str(value)) for name, value in plan.defines if name in ("TILE_N", "COLUMN_GROUPS")}
    warps, (blocks, channel_blocks) = plan.threads // 32, plan.grid
    shared = -(-plan.shared // 16) * 16 + warps * 2 * names["TILE_N"] * 8 * 4
    place = -(-plan.workspace // 256) * 256
    row = 2 * channel_blocks * names["COLUMN_GROUPS"] * names["TILE_N"] * 8
    groups = problem.convolution.n if problem.is_by_image else 1
    return _Sums(shared, place, place + 4 * row * blocks * groups)


def _source(problem: Convolution, plan: Plan, sums: _Sums, by_image: bool) -> Source:
    plain = code.source(problem, plan, has_sums=True)
    hooks: dict[str, object] = {
        "HAS_SUMS": 1, "BY_IMAGE": int(by_image), "SUMS_PLACE": sums.place, "SUM_BLOCKS": plan.grid[0],
        "SUMS_SHARED": -(-plan.shared // 16) * 16,
        "EPILOGUE_PARAMETERS": ", f32 *first_sums, f32 *second_sums",
    }  # fmt: skip
    defines = tuple((name, value) for name, value in plain.defines if name not in hooks)
    return replace(plain, defines=(*defines, *hooks.items()))


def _launches(plan: Plan, sums: _Sums, problem: FusedConvolution) -> list[Launch]:
    own = problem.convolution
    main = Launch("few_channels_fprop", plan.grid, plan.threads, sums.shared)
    last = Launch("few_channels_sums", -(-own.k // 32) * (own.n if problem.is_by_image else 1), 1024)
    return [*([replace(plan.pack, is_early=False)] if plan.pack else []), main, last]
