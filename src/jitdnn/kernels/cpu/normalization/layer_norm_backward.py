"""Gradients of layer and RMS normalization in one pass, where the normalized axes are a run of memory.

A task takes neighbouring rows. It goes through a few of them twice, the second time from the cache:

    first     dweight += dy * xhat, dbias += dy (the task's own, in the workspace);  a += g, b += g * xhat
    second    dx = rstd * (g - a / n - xhat * b / n)

with xhat = (x - mean) * rstd and g = dy * weight. A second phase adds up what the tasks have. How many tasks there
are depends on the problem alone, and so does what is added to what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, TypedAlgorithm
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots, task_count
from jitdnn.problems.layer_norm import LayerNorm
from jitdnn.rtcg.builder import Builder, Module, Pointer, Register, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.types import INT
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

_VECTORS = 4  # side by side: of one row, or of a few together
_ROWS = 2
_MOST_TASKS = 32
_TASK_ELEMENTS = 1 << 15  # at least
_BIG = ("dy", "x", "dx")  # tensors of all elements
_ROW = ("mean", "rstd")  # one number for each row
_COLUMN = ("weight", "dweight", "dbias")  # one number for each element of a row


@dataclass(frozen=True)
class _Code:
    """What is compiled in. `operands` are (name, dtype) in the order of the pointers."""

    operands: tuple[tuple[str, str], ...]
    compute: str
    kept: int
    streams: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.operands)

    @property
    def sums(self) -> tuple[str, ...]:
        """What the tasks add up for the second phase."""
        return tuple(name for name in ("dweight", "dbias") if name in self.names)

    @property
    def slots(self) -> Slots:
        kept = range(self.kept)
        strides = [f"{name}.{a}" for name, _ in self.operands if name not in _COLUMN for a in kept]
        return Slots("rows", "per_task", "tasks", "run", "block", *(f"kept{a}" for a in kept), *strides)


class _Rows:
    """Traces both phases."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code = code
        with module.task("rows") as (k, args, task, _):
            self._start(k, args)
            self._rows(task)
        with module.task("columns") as (k, args, task, _):
            self._start(k, args)
            self._columns(task)

    def _start(self, k: Builder, args: Pointer) -> None:
        code = self.code
        self.k, self.lanes = k, k.lanes(code.compute)
        arguments = Arguments(k, args, len(code.operands))
        self.at = code.slots.load(arguments)
        self.pointers: dict[str, Pointer] = {
            name: arguments.pointer(n, dtype) for n, (name, dtype) in enumerate(code.operands)
        }
        self.workspace: Pointer = arguments.workspace(code.compute)
        self.alpha, self.beta = arguments.alpha(code.compute), arguments.beta(code.compute)
        # 1 / n, in digits of what is computed in
        self.share = 1.0 / k.convert(self.at["run"], code.compute)

    # ---- rows

    def _rows(self, task: Value) -> None:
        k, code, at = self.k, self.code, self.at
        moving = [name for name in code.names if name not in _COLUMN]
        own = {
            name: self.workspace + (task * len(code.sums) + n) * at["run"] for n, name in enumerate(code.sums)
        }
        zero = k.constant(0.0, code.compute, self.lanes)
        for i, mask, _ in self._slots(_VECTORS):
            for pointer in own.values():
                pointer.store(zero, i, mask)
        first = task * at["per_task"]
        last = (first + at["per_task"]).min(at["rows"])
        counter = Counter(
            k,
            first,
            [at[f"kept{a}"] for a in range(code.kept)],
            [[at[f"{name}.{a}"] for a in range(code.kept)] for name in moving],
        )

        def here() -> dict[str, Pointer]:
            pointers = dict(self.pointers)
            for name, offset in zip(moving, counter.offsets, strict=True):
                pointers[name] = self.pointers[name] + offset.get()
            counter.advance()
            return pointers

        grouped = first + ((last - first) // _ROWS) * _ROWS
        for _group in k.range(first, grouped, _ROWS):
            self._together([here() for _ in range(_ROWS)], own)
        for _row in k.range(grouped, last):
            self._together([here()], own)

    def _together(self, rows: Sequence[dict[str, Pointer]], own: dict[str, Pointer]) -> None:
        """A few rows, or one, so that sums of columns are loaded and stored once for all of them."""
        k, lanes = self.k, self.lanes
        vectors = _VECTORS // len(rows)
        rstd = [row["rstd"].splat(0, lanes) for row in rows]
        mean = [row["mean"].splat(0, lanes) for row in rows] if "mean" in rows[0] else None
        zero = k.constant(0.0, self.code.compute, lanes)
        totals = [[[k.register(zero) for _ in range(vectors)] for _ in rows] for _ in "ab"]

        def loaded(
            number: int, i: Value, mask: Value | None, weight: Value | None
        ) -> tuple[Value, Value, Value]:
            row = rows[number]
            dy, x = row["dy"].load(i, lanes, mask), row["x"].load(i, lanes, mask)
            xhat = (x if mean is None else x - mean[number]) * rstd[number]
            return dy, xhat, dy if weight is None else dy * weight

        def weight_at(i: Value, mask: Value | None) -> Value | None:
            return rows[0]["weight"].load(i, lanes, mask) if "weight" in rows[0] else None

        for i, mask, slot in self._slots(vectors):
            weight = weight_at(i, mask)
            sums = {name: pointer.load(i, lanes, mask) for name, pointer in own.items()}
            for number, row in enumerate(rows):
                self._ask_for_next(row, "dy", i, len(rows))
                dy, xhat, g = loaded(number, i, mask, weight)
                for name in own:
                    sums[name] = sums[name] + (dy * xhat if name == "dweight" else dy)
                # beyond the end dy is 0
                totals[0][number][slot] += g
                totals[1][number][slot] += g * xhat
            for name, pointer in own.items():
                pointer.store(sums[name], i, mask)
        a, b = ([self._joined(registers) for registers in each] for each in totals)

        def write(streams: bool, blends: bool) -> None:
            for i, mask, _ in self._slots(vectors):
                weight = weight_at(i, mask)
                for number, row in enumerate(rows):
                    self._ask_for_next(row, "x", i, len(rows))
                    _, xhat, g = loaded(number, i, mask, weight)
                    result = g - xhat * b[number] if mean is None else g - a[number] - xhat * b[number]
                    result = result * (rstd[number] * k.splat(self.alpha, lanes))
                    if blends:
                        old = row["dx"].load(i, lanes, mask)
                        result = k.fma(k.splat(self.beta, lanes), old, result)
                    if streams and mask is None:
                        row["dx"].stream(result, i)
                    else:
                        row["dx"].store(result, i, mask)

        with k.when(self.beta != 0.0):
            write(streams=False, blends=True)
        if not self.code.streams:
            with k.when(self.beta == 0.0):
                write(streams=False, blends=False)
            return
        is_aligned = k.mask(1, 1)
        for row in rows:
            address = Value(k, k.b.ptrtoint(row["dx"].v, INT))
            is_aligned = is_aligned & ((address & (lanes * DTYPES[row["dx"].dtype] - 1)) == 0)
        with k.when((self.beta == 0.0) & is_aligned):
            write(streams=True, blends=False)
        with k.when((self.beta == 0.0) & ~is_aligned):
            write(streams=False, blends=False)

    def _ask_for_next(self, row: dict[str, Pointer], name: str, i: Value, rows: int) -> None:
        """Have the next rows come from memory while these are computed with."""
        (row[name] + self.at[f"{name}.{self.code.kept - 1}"] * rows).prefetch(i)

    def _joined(self, registers: Sequence[Register]) -> Value:
        """The mean over the row, in every lane."""
        values = [register.get() for register in registers]
        while len(values) > 1:
            values = [values[i] + values[i + 1] for i in range(0, len(values), 2)]
        return self.k.splat(self.k.reduce(values[0]) * self.share, self.lanes)

    def _slots(self, vectors: int) -> Iterator[tuple[Value, Value | None, int]]:
        """Vectors of a row, some side by side, and which of these each is."""
        k, run, width = self.k, self.at["run"], self.lanes * vectors
        whole = (run // width) * width
        for i in k.range(0, whole, width):
            for slot in range(vectors):
                yield i + slot * self.lanes, None, slot
        for i in k.range(whole, run, self.lanes):
            yield i, k.mask(run - i, self.lanes), 0

    # ---- columns

    def _columns(self, task: Value) -> None:
        """Sum what the tasks left, for one block of columns."""
        k, code, at, lanes = self.k, self.code, self.at, self.lanes
        start = task * at["block"]
        end = (start + at["block"]).min(at["run"])
        for i in k.range(start, end, lanes):
            mask = k.mask(end - i, lanes)
            for n, name in enumerate(code.sums):
                total = k.register(k.constant(0.0, "f64", lanes))
                for part in k.range(at["tasks"]):
                    place = (part * len(code.sums) + n) * at["run"]
                    total += k.convert((self.workspace + place).load(i, lanes, mask), "f64")
                result = k.register(k.convert(total.get(), code.compute) * k.splat(self.alpha, lanes))
                target = self.pointers[name]
                with k.when(self.beta != 0.0):
                    old = target.load(i, lanes, mask)
                    result.set(k.fma(k.splat(self.beta, lanes), old, result.get()))
                target.store(result.get(), i, mask)


@dataclass(frozen=True)
class _Layout:
    """The axes that are kept, joined where all tensors allow it: extents, and strides by name."""

    extents: tuple[int, ...]
    strides: dict[str, tuple[int, ...]]


def _layout(problem: LayerNorm) -> _Layout:
    tensors = {operand.name: problem.on_grid(operand.name) for operand in problem.operands}
    moving = [name for name in tensors if name not in _COLUMN]
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis in problem.sums:
        extent, steps = problem.grid[axis], tuple(tensors[name].strides[axis] for name in moving)
        if extent == 1:
            continue
        if axes and all(out == extent * step for out, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * extent, steps)
        else:
            axes.append((extent, steps))
    axes = axes or [(1, (0,) * len(moving))]
    strides = {name: tuple(steps[n] for _, steps in axes) for n, name in enumerate(moving)}
    return _Layout(tuple(extent for extent, _ in axes), strides)


def _is_run(tensor: TensorDescriptor, axes: Sequence[int]) -> bool:
    """Whether the elements over these axes are neighbours, the last axis fastest."""
    step = 1
    for axis in reversed(axes):
        if tensor.shape[axis] != 1 and tensor.strides[axis] != step:
            return False
        step *= tensor.shape[axis]
    return True


class LayerNormRows(TypedAlgorithm[LayerNorm, CpuDevice]):
    """All gradients in one pass over memory, where the normalized axes of every tensor are one run."""

    name = "rows"
    problem = LayerNorm
    deterministic = True
    takes_no_epilogue = "{kind} takes no epilogue"

    def refusal(self, problem: LayerNorm, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction != "bwd":
            return "the forward pass has no sums over the rows"
        if problem.x.size == 0:
            return "x is empty: there are no rows"
        if problem.dweight is None and problem.dbias is None:
            return "neither dweight nor dbias is wanted: there are no sums over the rows"
        for name in (*_BIG, *_COLUMN):
            if getattr(problem, name) is not None and not _is_run(problem.on_grid(name), problem.rows):
                return f"the normalized axes of {name} are not one run of memory: make it contiguous there"
        return None

    def _tasks(self, problem: LayerNorm) -> tuple[int, int]:
        """Tasks, and rows of each."""
        rows = prod(problem.grid[axis] for axis in problem.sums)
        least = -(-_TASK_ELEMENTS // problem.count)
        per_task = max(1, least, -(-rows // _MOST_TASKS))
        return -(-rows // per_task), per_task

    def workspace_of(self, plan: LayerNorm, device: CpuDevice) -> int:
        sums = (plan.dweight is not None) + (plan.dbias is not None)
        return self._tasks(plan)[0] * sums * plan.count * DTYPES[plan.statistic_dtype]

    def seconds_of(self, plan: LayerNorm, device: CpuDevice) -> float:
        tasks, _ = self._tasks(plan)
        seconds = plan.bytes / cost.memory_speed(device.isa.processor, cost.LAYER_NORM_MEMORY_RATE)
        return LAUNCH_SECONDS + seconds / min(device.threads, tasks, task_count(device, seconds))

    def error_of(self, problem: LayerNorm) -> float:
        terms = max(problem.count, problem.x.size // problem.count)
        return 4.0 * UNIT_ROUNDOFF[problem.dtype] + UNIT_ROUNDOFF[compute_dtype(problem.dtype)] * (
            16 + sqrt(terms)
        )

    def kernel_of(self, plan: LayerNorm, device: CpuDevice) -> Kernel:
        layout, run = _layout(plan), plan.count
        lanes = device.isa.lanes(plan.statistic_dtype)
        assert plan.dx is not None
        code = _Code(
            tuple((o.name, o.descriptor.dtype) for o in plan.operands), plan.statistic_dtype, len(layout.extents),
            streams=plan.dx.nbytes >= device.isa.processor.last_cache(cost.LAYER_NORM_STREAM),
        )  # fmt: skip
        tasks, per_task = self._tasks(plan)
        blocks = max(1, min(2 * device.threads, run // (64 * lanes)))
        block = -(-run // (blocks * lanes)) * lanes
        values = {
            "rows": prod(layout.extents), "per_task": per_task, "tasks": tasks, "run": run, "block": block,
            **{f"kept{a}": extent for a, extent in enumerate(layout.extents)},
            **{f"{name}.{a}": step for name, steps in layout.strides.items() for a, step in enumerate(steps)},
        }  # fmt: skip
        library = load("layer_norm", code, device.isa, lambda module: _Rows(module, code))
        seconds = plan.bytes / cost.memory_speed(device.isa.processor, cost.LAYER_NORM_MEMORY_RATE)
        threads = device.threads if tasks > 1 and task_count(device, seconds) > 1 else 1
        phases = [("rows", tasks), ("columns", -(-run // block))]
        return CpuKernel(library, phases, len(plan.operands), threads, code.slots.pack(values))
