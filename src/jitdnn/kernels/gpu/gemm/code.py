"""The kernel of a contraction: `gemm.c` with all but structure as arguments, so that it serves every size."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.gpu import GpuDevice, Kernel, Launch, Source, read_text
from jitdnn.kernels.gpu.gemm.plan import Contraction, GemmPlan, Tiling
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.tensor import FLOAT8_DTYPES, REAL_DTYPES, compute_dtype

_THREADS = 256


def build(plan: GemmPlan, device: GpuDevice) -> Kernel:
    """The kernel; pointers in the order of the operands, then those of the epilogue."""
    c, tiling, epilogue = plan.contraction, plan.tiling, plan.epilogue
    tiles_g, tiles_p = -(-c.row_count // tiling.rows), -(-c.columns[0] // tiling.columns)
    numbers: dict[str, int] = {
        "tiles_g": tiles_g, "tiles_p": tiles_p, "splits": plan.splits, "split_steps": plan.split_steps,
        "batches": c.batch_count, "p_base": c.p_base, "y_base": c.y_base,
        "rows_free": c.rows[0], "row_free_g": c.rows[1], "row_free_y": c.rows[2],
        "k_free": c.terms[0], "k_free_g": c.terms[1], "k_free_p": c.terms[2],
        "columns": c.columns[0], "column_p": c.columns[1], "column_y": c.columns[2],
    }  # fmt: skip
    for name in (
        "grid", "g_mul", "g_off", "taps", "g_step", "extent", "g_stride", "p_stride", "y_stride", "t_start",
        "t_step", "y_mul", "y_off",
    ):  # fmt: skip
        numbers |= {f"{name}{a}": getattr(axis, name) for a, axis in enumerate(c.axes)}
    for number, name in enumerate(("stride", "before", "dilation", "result", "period")):
        numbers |= {
            f"{name}{a}": axis.stride_phases[number] for a, axis in enumerate(c.axes) if axis.stride_phases
        }
    for name in ("extent", "g", "p", "y"):
        numbers |= {f"batch_{name}{a}": getattr(batch, name) for a, batch in enumerate(c.batches)}
    fused = epilogue_source(epilogue, c.operands[2], compute_dtype(c.dtype), 3)
    source = Source(
        "contraction",
        fused.functions + read_text("gpu/gemm", "gemm.c"),
        (*_structure(c, tiling).items(), ("PARAMETERS", ", ".join(f"i64 {name}" for name in numbers)),
         ("EPILOGUE_PARAMETERS", fused.parameters), ("EPILOGUE(sum)", fused.apply("sum", c.place))),
        # conversions of 8-bit reals need some that NVRTC 13.0 has not left
        spills=any(operand.dtype in FLOAT8_DTYPES for operand in c.operands),
    )  # fmt: skip
    blocks = tiles_g * tiles_p * plan.splits * c.batch_count * c.stride_phase_count
    launches = [Launch("contract", blocks, _THREADS)]
    if plan.splits > 1:
        launches.append(Launch("finish", -(-c.results // _THREADS), _THREADS))
    pointers = 3 + (len(epilogue.operands) if epilogue else 0)
    return device.kernel(source, launches, pointers, list(numbers.values()))


def _structure(c: Contraction, tiling: Tiling) -> dict[str, object]:
    """What is compiled in."""
    g, p, y = c.operands
    computing = compute_dtype(c.dtype)
    most = max(max(map(abs, tensor.span())) for tensor in c.operands)
    lists = [[f"name##{a}" for a in range(len(parts))] for parts in (c.axes, c.batches)]
    counts = max(c.row_count * max(c.stride_phase_count, 1), c.term_count, c.batch_count * c.row_count)
    return {
        "G_TYPE": g.dtype, "P_TYPE": p.dtype, "Y_TYPE": y.dtype, "SUM": c.sum_dtype, "REAL": computing,
        "Y_IS_WHOLE": int(y.dtype not in REAL_DTYPES),
        "INDEX": "i32" if most < 2**31 - 2**20 else "i64", "NUMBER": "u32" if counts < 2**31 else "u64",
        "AXES": len(c.axes), "BATCH_AXES": len(c.batches), "STRIDE_PHASES": int(c.has_stride_phases),
        "TG": tiling.rows, "TP": tiling.columns, "TK": tiling.depth, "RG": tiling.thread_rows,
        "RP": tiling.thread_columns, "BLOCK_THREADS": _THREADS,
        "G_ALONG_K": int(_is_nearer(c.terms[1], c.rows[1], [axis.g_stride for axis in c.axes], c)),
        "P_ALONG_K": int(_nearest(c.terms[2], [axis.p_stride for axis in c.axes]) < abs(c.columns[1])),
        "FREE_INNER": int(_is_first(c.terms[1], [axis.g_stride for axis in c.axes])),
        "ROW_FREE_INNER": int(_is_first(c.rows[1], [axis.g_stride for axis in c.axes])),
        "LANES_ALONG_P": int(abs(c.columns[2]) <= _nearest(c.rows[2], [axis.y_stride for axis in c.axes])),
        "LIST(name)": f"{{{', '.join('(i32)' + name for name in lists[0])}}}",
        "STRIDE_LIST(name)": f"{{{', '.join(lists[0])}}}", "BATCH_LIST(name)": f"{{{', '.join(lists[1])}}}",
    }  # fmt: skip


def _nearest(free: int, steps: Sequence[int]) -> int:
    """The smallest step that leads anywhere."""
    return min((abs(step) for step in (free, *steps) if step), default=0)


def _is_first(free: int, steps: Sequence[int]) -> bool:
    return 0 < abs(free) <= min((abs(step) for step in steps if step), default=abs(free))


def _is_nearer(term: int, row: int, steps: Sequence[int], c: Contraction) -> bool:
    """Whether neighbouring terms of the gathered operand are closer than neighbouring rows."""
    if _is_first(term, steps):
        return True
    # where rows are pixels, neighbours are close enough
    return c.place[0] != "free_digit" and not _is_first(row, steps)
