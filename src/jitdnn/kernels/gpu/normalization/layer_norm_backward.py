"""Gradients of layer and RMS normalization in one pass over memory: dx, and the sums over all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue, Kernel, PlannedAlgorithm
from jitdnn.kernels.formulas.normalization_steps import error_bound_of
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.problems.layer_norm import LayerNorm
from jitdnn.tensor import DTYPES

_COLUMN = ("weight", "dweight", "dbias")  # one number for each element of a row
_THREADS, _MOST_THREADS = 128, 512  # of a thread block
_MOST_ELEMENTS = 16  # of a row that a thread has
_MOST_OF_HALVES = 24  # of 16 bits, where the thread block has the fewest threads
_ROWS_AHEAD = {
    2: 2,
    4: 1,
}  # of a thread block of one row, by bytes of an element: there are registers for so many
_WALKERS = 16  # threads that add up what the thread blocks have of a column
_BANDWIDTH_SHARE = 0.85  # of the device's
#: threads of a multiprocessor that have registers enough, and where each has more elements than `_MOST_ELEMENTS`
_RESIDENT, _RESIDENT_OF_MORE = 512, 384
_TURNS_ALONE = 1  # of one thread block: two took longer than a second launch


@dataclass(frozen=True)
class Plan:
    """Threads of a row, elements of a vector, vectors of a thread, and thread blocks, each of which has many rows."""

    problem: LayerNorm
    threads: int
    vector: int
    vectors: int
    blocks: int

    @property
    def block_threads(self) -> int:
        """Threads of a thread block, which has several rows at a time where these have fewer."""
        return max(_THREADS, self.threads)

    @property
    def is_alone(self) -> bool:
        """Whether one thread block has all rows, so that nothing is left to add up."""
        return self.blocks == 1


def _threads(problem: LayerNorm) -> tuple[int, int, int]:
    """Threads of a row, elements of a vector, and vectors of a thread; no threads if a row is too long.

    The fewest places beyond the row's end, and two vectors, so that enough is loaded at once.
    """
    vector = 16 // DTYPES[problem.x.dtype]
    ways = []
    for threads in (1, 2, 4, 8, 16, 32, 64, 128, 256, _MOST_THREADS):
        vectors = -(-problem.count // (threads * vector))
        is_more = threads <= _THREADS and DTYPES[problem.x.dtype] == 2
        if vectors * vector <= (_MOST_OF_HALVES if is_more else _MOST_ELEMENTS):
            ways.append((threads * vectors, abs(vectors - 2), threads, vectors))
    if not ways:
        return 0, vector, 0
    *_, threads, vectors = min(ways)
    return threads, vector, vectors


def _resident(elements: int, threads: int) -> int:
    """Thread blocks of so many threads, each with so many elements of a row, that a multiprocessor's registers hold."""
    most = _RESIDENT if elements <= _MOST_ELEMENTS else _RESIDENT_OF_MORE
    return max(1, most // threads)


def _kept_axes(problem: LayerNorm) -> list[tuple[int, dict[str, int]]]:
    """The axes over which rows are counted, neighbours as one where all tensors allow it: extents and strides."""
    tensors = {o.name: problem.on_grid(o.name) for o in problem.operands if o.name not in _COLUMN}
    axes: list[tuple[int, dict[str, int]]] = []
    for axis in problem.sums:
        extent = problem.grid[axis]
        steps = {name: tensor.strides[axis] for name, tensor in tensors.items()}
        if extent == 1:
            continue
        if axes and all(out == extent * steps[name] for name, out in axes[-1][1].items()):
            axes[-1] = (axes[-1][0] * extent, steps)
        else:
            axes.append((extent, steps))
    return axes


class FusedLayerNorm(PlannedAlgorithm[LayerNorm, Plan, GpuDevice]):
    """A thread block has many rows, with its part of dweight and dbias in registers; then the parts are added up."""

    name = "fused"
    problem = LayerNorm
    deterministic = True
    version = 2
    takes_no_epilogue = "{kind} takes no epilogue"

    def refusal(self, problem: LayerNorm, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        norm = problem
        if norm.direction != "bwd":
            return "the forward pass has no sums over the rows"
        if norm.x.dtype == "f64":
            return "x is f64: numbers of f32, f16 and bf16 are summed here"
        if norm.x.size == 0:
            return "x is empty: there are no rows"
        if norm.dweight is None and norm.dbias is None:
            return "neither dweight nor dbias is wanted: there are no sums over the rows"
        if not _threads(norm)[0]:
            most = _MOST_THREADS * _MOST_ELEMENTS
            return f"a row has {norm.count} elements: at most {most} stay in the registers of a group"
        for operand in norm.operands:
            step, tensor = 1, norm.on_grid(operand.name)
            for axis in reversed(norm.rows if operand.name not in ("mean", "rstd") else ()):
                if tensor.shape[axis] != 1 and tensor.strides[axis] != step:
                    return f"the normalized axes of {operand.name} are not one run of memory: make it contiguous there"
                step *= tensor.shape[axis]
        return None

    def plan(self, problem: LayerNorm, device: GpuDevice, epilogue: Epilogue | None) -> Plan:
        threads, vector, vectors = _threads(problem)
        plan = Plan(problem, threads, vector, vectors, 1)
        rows = prod(problem.grid[axis] for axis in problem.sums)
        parts = -(-rows // (plan.block_threads // threads))
        if parts <= _TURNS_ALONE:
            return plan
        resident = device.multiprocessors * _resident(vector * vectors, plan.block_threads)
        turns = -(-parts // resident)
        return replace(plan, blocks=-(-parts // turns))

    def workspace_of(self, plan: Plan, device: GpuDevice) -> int:
        return 0 if plan.is_alone else plan.blocks * 2 * plan.problem.count * 4

    def seconds_of(self, plan: Plan, device: GpuDevice) -> float:
        moved = plan.problem.bytes + 2 * self.workspace_of(plan, device)
        return (1 if plan.is_alone else 2) * LAUNCH_SECONDS + moved / (_BANDWIDTH_SHARE * device.bandwidth)

    def error_of(self, problem: LayerNorm) -> float:
        return error_bound_of(problem)

    def kernel_of(self, plan: Plan, device: GpuDevice) -> Kernel:
        norm, axes = plan.problem, _kept_axes(plan.problem)
        extras = {"n": norm.count, "rows": prod(extent for extent, _ in axes), "groups": plan.blocks}
        for a, (extent, steps) in enumerate(axes):
            extras |= {f"extent{a}": extent, **{f"{name}_step{a}": step for name, step in steps.items()}}
        launches = [Launch("rows", plan.blocks, plan.block_threads)]
        if not plan.is_alone:
            launches.append(Launch("columns", (-(-norm.count // 32), 2), 32 * _WALKERS))
        source = Source("layer_norm", _text(plan, len(axes), list(extras)), spills=True)
        return device.kernel(source, launches, len(norm.operands), list(extras.values()))


def _text(plan: Plan, axes: int, extras: list[str]) -> str:
    """The complete text: what layer_norm_backward.c wants before it, and layer_norm_backward.c."""
    problem, threads, vector, vectors = plan.problem, plan.threads, plan.vector, plan.vectors
    names = {o.name: o.descriptor.dtype for o in problem.operands}
    data, size = problem.x.dtype, DTYPES[problem.x.dtype]
    gradient, bits = names["dy"], {2: "u16", 4: "u32"}
    written = ("dx", "dweight", "dbias")
    parameters = [
        f"GLOBAL {'' if name in written else 'const '}{dtype} *{name if name in _COLUMN else name + '_all'}"
        for name, dtype in names.items()
    ]
    parameters += [
        "GLOBAL u8 *workspace",
        "SCALE scale",
        "SCALE blend",
        *(f"i64 {extra}" for extra in extras),
    ]

    def place(tensors: dict[str, str]) -> str:
        lines = ["i64 rest = number;", *(f"i64 {name}_base = 0;" for name in tensors)]
        for a in reversed(range(axes)):
            here = "rest" if a == 0 else f"(rest - rest / extent{a} * extent{a})"
            lines += [f"{name}_base += {here} * {name}_step{a};" for name in tensors]
            lines += [f"rest /= extent{a};"] if a else []
        for name, target in tensors.items():
            const = "" if name in written else "const "
            lines.append(f"GLOBAL {const}{names[name]} *{target} = {name}_all + {name}_base;")
        return " ".join(lines)

    of_rows = [name for name in names if name not in _COLUMN]
    defines = {
        "DATA": data,
        "BITS": bits[size],
        "DY": gradient,
        "DY_BITS": bits[DTYPES[gradient]],
        "DY_IS_DATA": int(gradient == data),
        "WEIGHT": names.get("weight", "f32"),
        "GRADIENT": names.get("dweight", names.get("dbias", "f32")),
        "PARAMETERS": ", ".join(parameters),
        "PLACE(number)": place({"dx": "dx"}),
        "PLACE_NEXT(number)": place({name: f"{name}_next" for name in of_rows if name != "dx"}),
        "HAS_MEAN": int("mean" in names),
        "HAS_WEIGHT": int("weight" in names),
        "HAS_DWEIGHT": int("dweight" in names),
        "HAS_DBIAS": int("dbias" in names),
        "BLOCK_THREADS": plan.block_threads,
        "THREADS_OF_ROW": threads,
        "VECTOR": vector,
        "VECTORS": vectors,
        "WORDS": 4,
        "DY_WORDS": 4 * DTYPES[gradient] // size,
        "WEIGHT_IS_DATA": int(names.get("weight") == data),
        "RESIDENT_BLOCKS": _resident(vector * vectors, plan.block_threads),
        "ROWS_AHEAD": _ROWS_AHEAD[max(size, DTYPES[gradient])] if threads == plan.block_threads else 1,
        "IS_ALONE": int(plan.is_alone),
        "WALKERS": _WALKERS,
    }
    macros = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return (
        read_text("gpu/prelude", "reduce.h")
        + macros
        + read_text("gpu/normalization", "layer_norm_backward.c")
    )
