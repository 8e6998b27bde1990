"""Running the plan of a problem in the workspace that the caller gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.errors import DeviceError
from jitdnn.frameworks.cudnn_api.memory import aligned, space, with_room
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.gpu_call import GpuCall, common_device
from jitdnn.ops.shared_memory import is_shared
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.problem import Problem
from jitdnn.tensor import Array, DeviceId

Named = Sequence[tuple[str, Array]]


def plan_of(
    handle: Handle,
    device_id: DeviceId | None,
    problem: Problem,
    request: Request | None = None,
    epilogue: Epilogue | None = None,
) -> Plan:
    """The plan of a problem where the arrays are, with its kernel ready."""
    plan = handle.at(device_id).plan(problem, request, epilogue)
    if plan.pending is not None:  # the workspace that was asked for is that of the chosen kernel
        plan.pending.wait()
    return plan


def device_of(arrays: Named) -> DeviceId | None:
    """The device that has all arrays. Raises BadParam."""
    try:
        return common_device(arrays)
    except DeviceError as error:
        raise BadParam(str(error)) from None


def launch(
    handle: Handle,
    plan: Plan,
    inputs: Named,
    outputs: Named,
    alpha: float = 1.0,
    beta: float = 0.0,
    workSpace: Any = None,
    workSpaceSizeInBytes: int = 0,
    operands: Named = (),
) -> None:
    """Run a plan. `operands` are those of its epilogue, of which one may be the output itself."""
    scratch = space(workSpace, workSpaceSizeInBytes, with_room(plan.workspace), "workSpace")
    lent = [] if scratch is None else [("workSpace", scratch)]
    device_of([*inputs, *outputs, *operands, *lent])
    _require_apart(inputs, outputs, operands, lent)
    arrays = [array for _, array in (*inputs, *outputs, *operands)]
    pointers = [array.pointer for array in arrays]
    if plan.device_id is None:
        plan.run(handle.stream, pointers, alpha, beta, aligned(scratch))
        return
    runner = handle.at(plan.device_id)
    gpu = GpuCall(handle, runner, [array.library for array in arrays])
    read = [array for _, array in (*inputs, *operands)]
    written = [array for _, array in (*outputs, *lent)]
    stream = gpu.stream(handle, read, written)
    try:
        plan.run(stream, pointers, alpha, beta, aligned(scratch))
    except DeviceError as error:
        raise runner.explained(error, plan) from None
    gpu.after(handle, stream, (*read, *written))


def _require_apart(inputs: Named, outputs: Named, operands: Named, lent: Named) -> None:
    written = [*outputs, *lent]
    for number, (name, output) in enumerate(written):
        for other, array in (*inputs, *written[:number], *operands):
            if is_shared(array, output):
                same = array.pointer == output.pointer and array.descriptor.coincides(output.descriptor)
                if same and any(other == operand for operand, _ in operands):
                    continue
                raise BadParam(f"{name} shares memory with {other}, which would be overwritten")
