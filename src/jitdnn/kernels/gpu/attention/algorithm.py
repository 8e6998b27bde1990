"""Attention on ordinary cores: scores of a tile in shared memory, sums in registers."""

from __future__ import annotations

import math
from math import sqrt

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.problems.attention import Attention
from jitdnn.tensor import compute_dtype

NO_REACH = 1 << 42
"""Places before or after a query that are as good as all."""
AXES = {
    **dict.fromkeys(("q", "dq"), "nhtd"), **dict.fromkeys(("k", "dk"), "nhsd"), **dict.fromkeys(("v", "dv"), "nhse"),
    **dict.fromkeys(("y", "dy"), "nhte"), "lse": "nht", "mask": "nhts", "lengths": "n", "lo": "t", "hi": "t",
}  # fmt: skip
"""What the axes of each operand are, for the names of their strides."""
_THREADS, _ROWS, _WIDTH = 128, 16, 128  # those of attention.c
_EFFICIENCY = 0.12  # of the peak
_MOST_GROUPS = 2**31 - 1


class TiledAttention(KernelAlgorithm[Attention, GpuDevice]):
    """Tiles of keys stream past 16 queries, and the other way round for the gradients of keys and values."""

    name = "tiled"
    problem = Attention
    takes_no_epilogue = "attention takes no epilogue"

    def refusal(self, problem: Attention, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if compute_dtype(problem.dtype) == "f64" and not device.has_f64:
            return f"{device.name} has no double precision"
        groups = max(_blocks(problem, "q"), _blocks(problem, "k"))
        return (
            f"{groups} thread blocks: at most {_MOST_GROUPS} are launched" if groups > _MOST_GROUPS else None
        )

    def plan(self, problem: Attention, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        is_forward, real = problem.direction == "fwd", compute_dtype(problem.dtype)
        d, e = problem.q.shape[3], problem.v.shape[3]
        chunks = (-(-e // _WIDTH), -(-d // _WIDTH))
        # scores are computed again for every WIDTH columns of the results
        terms = d * chunks[0] + e if is_forward else 2 * (d + e) * chunks[1] + d * chunks[0] + 2 * d + e
        share = min(1.0, _blocks(problem, "q") / (4 * device.multiprocessors))
        work = 2.0 * problem.pairs * terms / (_EFFICIENCY * device.peak_flops(real) * max(share, 1e-3))
        seconds = LAUNCH_SECONDS * (1 if is_forward else 4) + max(work, problem.bytes / device.bandwidth)
        workspace = 0 if is_forward else math.prod(problem.q.shape[:3]) * (8 if real == "f64" else 4)
        return PlannedKernel(workspace, seconds, lambda: _kernel(problem, device))

    def error_of(self, problem: Attention) -> float:
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        terms = sqrt(problem.q.shape[3]) + sqrt(max(1, problem.k.shape[2]))
        is_forward = problem.direction == "fwd"
        return 2.0 * own + computing * (40.0 + 2.0 * terms) * (1.0 if is_forward else 4.0)


def _blocks(problem: Attention, name: str) -> int:
    """Thread blocks that have rows of q, or of k."""
    n, h, t, _ = (problem.q if name == "q" else problem.k).shape
    return n * h * max(1, -(-t // _ROWS))


def integers_of(problem: Attention) -> dict[str, int]:
    """What kernels are told of a problem: extents, who sees what, and the strides of all operands."""
    n, h, t, d = problem.q.shape
    integers = {
        "batch": n, "keys": problem.k.shape[2], "queries": t, "heads": h, "group": h // problem.k.shape[1], "d": d,
        "e": problem.v.shape[3], "rows_of_all": n * h * t, "past": problem.past,
        "left": NO_REACH if problem.left is None else problem.left,
        "right": NO_REACH if problem.right is None else problem.right,
    }  # fmt: skip
    for operand in problem.operands:
        for axis, stride in zip(AXES[operand.name], operand.descriptor.strides, strict=True):
            integers[f"{operand.name}_{axis}"] = stride
    return integers


def parameters_of(problem: Attention, integers: dict[str, int]) -> tuple[list[str], list[str]]:
    """The parameters of kernels, and their names."""
    written = {operand.name for operand in problem.outputs}
    parameters, names = [], []
    for operand in problem.operands:
        dtype = "u8" if operand.descriptor.dtype == "bool" else operand.descriptor.dtype
        parameters.append(f"GLOBAL {'' if operand.name in written else 'const '}{dtype} *{operand.name}")
        names.append(operand.name)
    parameters += ["GLOBAL u8 *workspace", "SCALE alpha", "SCALE beta"]
    parameters += [*(f"i64 {name}" for name in integers), "SCALE scale"]
    return parameters, [*names, "workspace", "alpha", "beta", *integers, "scale"]


def masks_of(problem: Attention) -> dict[str, object]:
    """The macros that say what hides keys."""
    mask = 0 if problem.mask is None else 1 if problem.mask.dtype == "bool" else 2
    given = {name: int(getattr(problem, name) is not None) for name in ("lengths", "lo", "hi")}
    return {"MASK": mask, **{f"HAS_{name.upper()}": is_given for name, is_given in given.items()}}


def _kernel(problem: Attention, device: GpuDevice) -> Kernel:
    is_backward = problem.direction == "bwd"
    integers = integers_of(problem)
    integers |= {"blocks": max(1, -(-problem.q.shape[2] // _ROWS))}
    integers |= {"key_blocks": max(1, -(-problem.k.shape[2] // _ROWS))}
    d, e = (max(1, -(-size // _WIDTH)) for size in (problem.q.shape[3], problem.v.shape[3]))
    queries, keys = max(1, _blocks(problem, "q")), max(1, _blocks(problem, "k"))
    if is_backward:
        launches = [
            Launch("prepare", max(1, -(-integers["rows_of_all"] // _THREADS)), _THREADS),
            Launch("gradient_of_queries", (queries, d), _THREADS),
            Launch("gradient_of_keys", (keys, d), _THREADS),
            Launch("gradient_of_values", (keys, e), _THREADS),
        ]
    else:
        launches = [Launch("attend", (queries, e), _THREADS)]
    defines = {
        "DTYPE": problem.dtype, "REAL": compute_dtype(problem.dtype), "IS_BACKWARD": int(is_backward),
        "HAS_LSE": int(problem.lse is not None), **masks_of(problem),
        "PARAMETERS": ", ".join(parameters_of(problem, integers)[0]),
    }  # fmt: skip
    macros = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    source = Source("attention", macros + read_text("gpu/attention", "attention.c"), spills=True)
    return device.kernel(source, launches, len(problem.operands), list(integers.values()), [problem.scale])
