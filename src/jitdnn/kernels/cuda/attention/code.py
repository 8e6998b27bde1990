"""Source text of attention on the tensor cores, from a plan, and its launches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.cuda.attention.plan import Plan, copy_bytes, integers_of, read_of, written_of
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.kernels.gpu.attention.algorithm import masks_of, parameters_of

_STORES = (16,)  # bytes of a store that is worth turning sums around for


def kernel_of(plan: Plan, device: GpuDevice) -> Kernel:
    """The kernel for pointers as they mostly are, and behind it one for any others."""
    problem = plan.problem
    copy_in, copy_out = copy_bytes(read_of(problem)), copy_bytes(written_of(problem), _STORES)
    aligned = _kernel(plan, device, copy_in, copy_out)
    wide = dict.fromkeys(("q", "k", "v", "dy"), copy_in)
    wide |= dict.fromkeys(("dq", "dk", "dv") if plan.is_backward else ("y",), copy_out)
    alignments = tuple(max(1, wide.get(operand.name, 1)) for operand in problem.operands)
    if max(alignments) == 1:
        return aligned
    return ByAddress(aligned, partial(_kernel, plan, device, 0, 0), alignments)


def _kernel(plan: Plan, device: GpuDevice, copy_in: int, copy_out: int) -> GpuKernel:
    integers = integers_of(plan)
    source = replace(source_of(plan, copy_in, copy_out), spills=True)  # of heads of any size
    return device.kernel(
        source, launches_of(plan), len(plan.problem.operands), list(integers.values()), [plan.problem.scale]
    )


def launches_of(plan: Plan) -> list[Launch]:
    """The kernels one after the other."""
    problem, tile = plan.problem, plan.tile
    threads, rows = tile.warps * 32, -(-plan.rows_of_all // 4)
    if not plan.is_backward:
        launches = [Launch("attend", plan.units * plan.blocks * plan.splits, threads, plan.shared)]
        return [*launches, Launch("combine", rows, 128)] if plan.splits > 1 else launches
    n, key_heads, keys, _ = problem.k.shape
    groups = n * key_heads * -(-keys // tile.rows)
    names = ("gradients_of_keys",) if plan.is_joint else ("gradient_of_keys", "gradient_of_values")
    return [
        Launch("prepare", rows, 128),
        Launch("gradients_of_queries", plan.units * plan.blocks, threads, plan.shared),
        *(Launch(name, groups, threads, plan.shared) for name in names),
    ]


def source_of(plan: Plan, copy_in: int, copy_out: int) -> Source:
    """The text; extents and strides are arguments, so that it serves every size of its kind."""
    problem, tile = plan.problem, plan.tile
    parameters, names = parameters_of(problem, integers_of(plan))
    defines: dict[str, object] = {
        "DTYPE": problem.dtype, "D_SIZE": plan.d_size, "E_SIZE": plan.e_size, "WARPS": tile.warps,
        "HAS_THREE_PRODUCTS": int(plan.has_three_products), **masks_of(problem), "COPY_IN": copy_in,
        "COPY_OUT": copy_out, "KEYS": tile.passing,
    }  # fmt: skip
    if plan.is_backward:
        defines |= {"TILES": tile.tiles, "PASSING": tile.passing, "IS_JOINT": int(plan.is_joint)}
    else:
        defines |= {
            "TILES": tile.tiles, "SHARES_ROWS": int(tile.share), "HAS_LSE": int(problem.lse is not None),
            "IS_SPLIT": int(plan.splits > 1), "IS_SCALED_FIRST": int(defines["MASK"] == 2 or problem.scale <= 0),
        }  # fmt: skip
    macros = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    macros += f"#define PARAMETERS {', '.join(parameters)}\n#define ARGUMENTS {', '.join(names)}\n"
    name = "backward" if plan.is_backward else "forward"
    text = macros + read_text("cuda/attention", "tile.cuh", f"{name}.cu")
    return Source(f"attention_{name}", text, dialect="cuda")
