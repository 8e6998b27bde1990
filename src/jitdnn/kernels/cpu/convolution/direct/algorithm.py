"""Convolution as its definition reads, from the caller's tensors to the caller's tensors.

Three families of plans compute a correlation, and three more a filter's gradient (``wgrad_over_*``). They are named
after what the lanes of a vector hold: what lies side by side in memory.

    over_pixels         neighbouring pixels of a row             channels first
    over_channels       result channels, or summed ones          channels last
    over_groups         groups of a depthwise convolution        channels last
    over_groups_packed  the same, of planes that are packed      small planes under large filters

Sums stay in registers, those of a gradient with many taps in some KiB of the stack. ``Direct`` takes every convolution
and needs no workspace. ``Depthwise`` and ``DepthwiseWgrad`` take groups of few channels, and also offer what needs a
workspace: packed planes, filters too large for the stack, and gradients with their rows split (split-K).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch, code_key
from jitdnn.kernels.cpu.convolution.direct.code import pointer_count
from jitdnn.kernels.cpu.convolution.direct.over_channels import code as channels_code
from jitdnn.kernels.cpu.convolution.direct.over_channels import cost as channels_cost
from jitdnn.kernels.cpu.convolution.direct.over_channels.plan import OverChannels
from jitdnn.kernels.cpu.convolution.direct.over_groups import code as groups_code
from jitdnn.kernels.cpu.convolution.direct.over_groups import cost as groups_cost
from jitdnn.kernels.cpu.convolution.direct.over_groups.plan import OverGroups, divide_together
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed import code as packed_code
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed import cost as packed_cost
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed.plan import OverGroupsPacked, fits
from jitdnn.kernels.cpu.convolution.direct.over_pixels import code as pixels_code
from jitdnn.kernels.cpu.convolution.direct.over_pixels import cost as pixels_cost
from jitdnn.kernels.cpu.convolution.direct.over_pixels.plan import OverPixels, lower_rows
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan, nearest_axis_last
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels import code as wgrad_channels_code
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels import cost as wgrad_channels_cost
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels.plan import WgradOverChannels
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups import code as wgrad_groups_code
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups import cost as wgrad_groups_cost
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups.plan import WgradOverGroups
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels import code as wgrad_pixels_code
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels import cost as wgrad_pixels_cost
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels.plan import WgradOverPixels
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import Isa

SMALL_GROUP = 4  # channels that a group may have and still be worth a lane

# by the type of a plan: what estimates its cycles, and what traces it, with an epilogue unless it is a gradient
_FAMILIES: dict[type[DirectPlan], tuple[Callable[[Any], float], Callable[..., Any]]] = {
    OverPixels: (pixels_cost.cycles, pixels_code.trace),
    OverChannels: (channels_cost.cycles, channels_code.trace),
    OverGroups: (groups_cost.cycles, groups_code.trace),
    OverGroupsPacked: (packed_cost.cycles, packed_code.trace),
    WgradOverPixels: (wgrad_pixels_cost.cycles, wgrad_pixels_code.trace),
    WgradOverChannels: (wgrad_channels_cost.cycles, wgrad_channels_code.trace),
    WgradOverGroups: (wgrad_groups_cost.cycles, wgrad_groups_code.trace),
}


class Direct(CpuAlgorithm[Convolution]):
    """Direct convolution in all three directions, without a workspace."""

    name = "direct"
    problem = Convolution
    may_overwrite_operands = True
    takes_workspace: ClassVar[bool] = False

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter" and epilogue is not None:
            return "a filter's gradient takes no epilogue: apply it to the result"
        return None

    def plans(
        self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None = None
    ) -> Sequence[DirectPlan]:
        """The plans that together compute the convolution, one after the other."""
        return _cheapest(problem, device.isa, epilogue, self.takes_workspace)

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plans = self.plans(problem, device, epilogue)
        each = [_cycles(plan) for plan in plans]
        # what waits for its operands is worth dividing too: a filter that is read once, few taps over a large image
        waiting = problem.bytes / device.isa.processor.memory_rate
        longer = max(1.0, waiting / max(1.0, sum(each)))
        alone = [plan.divide(device, longer * own) for plan, own in zip(plans, each, strict=True)]
        together = _together(plans)
        divided = [together] * len(plans) if together else alone
        prefixes = [f"part{number}_" for number in range(len(plans))]

        def generate(
            module: Module, code: tuple[tuple[DirectPlan, ...], tuple[int, ...], bool, bool]
        ) -> None:
            own, counts, are_together, is_gradient = code
            given = () if is_gradient else (epilogue,)
            extra, parts = 0, []
            for plan, prefix, count in zip(own, prefixes, counts, strict=True):
                _, trace = _FAMILIES[type(plan)]
                parts.append(trace(module, prefix, plan, extra, *given))
                extra += count
            if are_together:
                with module.task("tiles") as (k, args, task, thread):
                    for part in parts:
                        k.call(part, args, task, thread)

        phases = [
            phase
            for plan, prefix, (tasks, _) in zip(plans, prefixes, divided, strict=True)
            for phase in plan.phases(prefix, tasks)
        ]
        over_groups = isinstance(plans[0], OverGroups | OverGroupsPacked | WgradOverGroups)
        return Launch(
            problem, self.name, code_key(epilogue), generate,
            [("tiles", together[0])] if together else phases, pointer_count(plans[0].c), sum(each),
            sum(tasks for tasks, _ in alone), max(plan.workspace(device.threads) for plan in plans),
            [n for _, extras in divided for n in extras], threads=device.threads,
            further_cycles=0.0 if over_groups else channels_last_group_cycles(problem, device),
            code=(
                tuple(plans), tuple(len(extras) for _, extras in divided), bool(together),
                problem.direction == "bwd_filter",
            ),
        )  # fmt: skip


class Depthwise(Direct):
    """Direct convolution of groups of few channels, forward and backward data; planes and filters may be packed."""

    name = "depthwise"
    takes_workspace = True

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: depthwise_filter computes the filter's gradient"
        return not_depthwise(problem)


class DepthwiseWgrad(Direct):
    """Filter gradient of groups of few channels; its rows may be divided among tasks."""

    name = "depthwise_filter"
    takes_workspace = True

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: depthwise computes forward and backward data"
        return super().refusal(problem, device, epilogue) or not_depthwise(problem)


def not_depthwise(problem: Convolution) -> str | None:
    """Why a convolution is not depthwise, nor nearly so, if it is not."""
    channels, results = problem.w.shape[1], problem.k // problem.groups
    if channels == 1 or (problem.groups > 1 and max(channels, results) <= SMALL_GROUP):
        return None
    return (
        f"a group has {channels} channels of x and {results} of y (c={problem.c}, k={problem.k}, "
        f"groups={problem.groups}): it takes one of x, or up to {SMALL_GROUP} of both"
    )


def _cycles(plan: DirectPlan) -> float:
    """Cycles of one thread."""
    cycles, _ = _FAMILIES[type(plan)]
    return cycles(plan)


@lru_cache(256)
def _cheapest(
    problem: Convolution, isa: Isa, epilogue: Epilogue | None, takes_workspace: bool
) -> Sequence[DirectPlan]:
    if problem.direction == "bwd_filter":
        found = _wgrad_candidates(problem, isa, takes_workspace)
    else:
        found = _candidates(problem, isa, epilogue, takes_workspace)
    return min(found, key=lambda plans: sum(map(_cycles, plans)))


def _candidates(
    problem: Convolution, isa: Isa, epilogue: Epilogue | None, takes_workspace: bool
) -> list[Sequence[DirectPlan]]:
    """Forward or backward data by each family."""
    operands = epilogue.operands if epilogue else ()
    parts = [part.merged() for part in lower_convolution(problem, operands)]
    found: list[Sequence[DirectPlan]] = [
        [pixels_cost.choose(c, last_axes, isa) for c, last_axes in lower_rows(problem, operands)]
    ]
    if not takes_workspace:  # which only those with groups of few channels do: these fill no vector
        found.append([channels_cost.choose(nearest_axis_last(part), isa) for part in parts])
    if not_depthwise(problem) is not None:
        return found
    over_groups = [groups_cost.choose(part, isa) for part in parts]
    if takes_workspace or all(plan.is_on_stack for plan in over_groups):
        found.append(over_groups)
    if takes_workspace and len(parts) == 1 and fits(parts[0], isa):
        found.append([packed_cost.choose(parts[0], isa)])
    return found


def _wgrad_candidates(problem: Convolution, isa: Isa, takes_workspace: bool) -> list[Sequence[DirectPlan]]:
    """A filter's gradient by each family."""
    whole = lower_convolution(problem)[0].merged()
    found: list[Sequence[DirectPlan]] = [[wgrad_pixels_cost.choose(nearest_axis_last(whole), isa)]]
    if not takes_workspace:
        found.append([wgrad_channels_cost.choose(nearest_axis_last(whole), isa)])
    if not_depthwise(problem) is not None:
        return found
    over_groups = wgrad_groups_cost.choose(whole, isa, may_split=takes_workspace)
    if takes_workspace or over_groups.is_on_stack:
        found.append([over_groups])
    return found


def _together(plans: Sequence[DirectPlan]) -> tuple[int, tuple[int, ...]] | None:
    """The tasks and extras of interleaved correlations that go through the image together, if they can."""
    over_groups = [plan for plan in plans if isinstance(plan, OverGroups) and plan.is_on_stack]
    return divide_together(over_groups) if len(over_groups) == len(plans) > 1 else None
