"""Cross-entropy of classes, forward, where rows or classes are neighbours in memory: every score is read once.

    rows          rows are neighbours (channels first): a vector of rows, class by class transposed    short rows of
    neighbours (channels last): a few vectors of rows, transposed into a buffer, then the same classes       long rows
    of neighbours: one row at a time, its vectors summed up

Of each row the greatest score, then the sum of the exponentials while the scores are in the nearest cache. Losses that
are added up are kept in f64 for chunks of rows, always the same ones, and a second phase adds the chunks in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import Epilogue, Kernel, PlannedAlgorithm
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.kernels.formulas.cross_entropy import error_bound_of, refusal
from jitdnn.problems.cross_entropy import CrossEntropy
from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Builder, Module, Pointer, Register, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.power_of_two import LOG2E, power_of_two
from jitdnn.tensor import compute_dtype

_LONG = 128  # classes from which on a row is worth its own vectors
_CHUNK = 1 << 16  # scores of a chunk, about
_PARTIAL = 64  # bytes of a chunk's sums
_SLOTS = Slots(
    "inner", "classes", "chunk", "chunks", "all", "room", "x_outer", "x_row", "x_class", "target_outer", "loss_outer",
    "lse_outer", "weight", "ignore",
)  # fmt: skip


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    form: str  # "rows", "transposed" or "classes"
    dtype: str
    target: str
    names: tuple[str, ...]
    reduction: str

    @property
    def real(self) -> str:
        return compute_dtype(self.dtype)

    @property
    def vectors(self) -> int:
        """Of rows that are done together."""
        return 4 if self.form == "rows" else 2


@dataclass(frozen=True)
class _Rows:
    """Rows as `outer` times `inner` of them; the strides of an outer step in each tensor."""

    form: str
    outer: int
    inner: int
    steps: dict[str, int]
    class_step: int
    row_step: int  # from a row of x to the next


def _lay_out(problem: CrossEntropy) -> _Rows | None:
    """How the rows lie in memory; None if in another way than the kernel takes."""
    x, (n, classes, *space) = problem.x, problem.x.shape
    named = {"target": problem.target, "lse": problem.lse}
    if problem.reduction == "none":
        named["loss"] = problem.loss
    inner = math.prod(space)
    # the distance of neighbouring rows in space, which must be the same all over it
    pitch = _pitch(space, x.strides[2:])
    if (
        any(t is not None and _pitch(space, t.strides[1:]) not in (None, 1) for t in named.values())
        or pitch is None
    ):
        return None
    if any(t is not None and _pitch(space, t.strides[1:]) is None for t in named.values()):
        return None
    steps = {name: 0 if t is None else t.strides[0] for name, t in named.items()}
    if inner > 1 and pitch == 1 and x.strides[1] != 1:
        return _Rows("rows", n, inner, {"x": x.strides[0], **steps}, x.strides[1], 1)
    if x.strides[1] != 1 and classes > 1:
        return None
    pitch = pitch if inner > 1 else x.strides[0]
    form = "classes" if classes >= _LONG else "transposed"
    is_dense = all(t is None or n == 1 or t.strides[0] == inner for t in named.values())
    if is_dense and (n == 1 or x.strides[0] == inner * pitch):
        return _Rows(form, 1, n * inner, {"x": 0, **dict.fromkeys(steps, 0)}, 1, pitch)
    return _Rows(form, n, inner, {"x": x.strides[0], **steps}, 1, pitch) if inner > 1 else None


def _pitch(space: Sequence[int], strides: Sequence[int]) -> int | None:
    """The one distance from each element of space to the next; 1 where there is but one."""
    found, extent = None, 1
    for size, stride in reversed(list(zip(space, strides, strict=True))):
        if size == 1:
            continue
        if found is None:
            found = stride
        elif stride != found * extent:
            return None
        extent *= size
    return 1 if found is None else found


class _Kernel:
    """Traces the kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.real = code, code.real
        self.lanes = module.isa.lanes(code.real)
        with module.task("rows") as (k, args, task, thread):
            self._enter(k, args)
            start = self._partials("i8") + (self.at["room"] * thread + self.at["all"] * _PARTIAL)
            self.buffer = Pointer(k, start.v, self.real)
            self._chunk(k, task)
        if code.reduction != "none":
            with module.task("total") as (k, args, _, _):
                self._enter(k, args)
                self._total(k)

    def _enter(self, k: Builder, args: Pointer) -> None:
        code = self.code
        self.arguments = Arguments(k, args, len(code.names))
        self.at = _SLOTS.load(self.arguments)
        kinds = {"target": code.target, "lse": self.real, "total": self.real}
        self.pointers = {
            name: self.arguments.pointer(n, kinds.get(name, code.dtype)) for n, name in enumerate(code.names)
        }
        self.pointers["target"] = self.pointers["target"].as_real(self.real)
        self.scale = Scale(k, self.arguments, code.dtype)
        self.classes = k.convert(self.at["classes"], self.real)
        self.ignored = k.convert(self.at["ignore"], self.real)

    def _partials(self, dtype: str) -> Pointer:
        return cast(Pointer, self.arguments.workspace(dtype))

    def _chunk(self, k: Builder, task: Value) -> None:
        """Some rows of one outer step."""
        at, code, lanes = self.at, self.code, self.lanes
        outer, first = task // at["chunks"], task % at["chunks"] * at["chunk"]
        count = (at["inner"] - first).min(at["chunk"])
        base = {name: outer * at[f"{name}_outer"] + first for name in ("target", "loss", "lse")}
        base["x"] = outer * at["x_outer"] + first * at["x_row"]
        width = lanes * code.vectors
        kept = code.reduction == "none"
        self.here = {
            name: self.pointers[name] + base[name]
            for name in ("x", "target", "loss", "lse")
            if name in self.pointers and (kept or name != "loss")
        }
        self.sums = [
            k.register(k.constant(0.0, "f64", 1 if code.form == "classes" else lanes)) for _ in range(2)
        ]
        if code.form == "classes":
            for row in k.range(count):
                self._over_classes(k, row)
        elif code.form == "rows":
            whole = count // width * width
            for row in k.range(0, whole, width):
                self._columns(k, row, self.here["x"] + row, at["x_class"], code.vectors, None)
            for row in k.range(whole, count, lanes):
                self._columns(k, row, self.here["x"] + row, at["x_class"], 1, k.mask(count - row, lanes))
        else:
            for row in k.range(0, count, width):
                self._turn(k, row, count)
                for v in range(code.vectors):
                    with k.when(count > row + v * lanes):
                        keep = k.mask(count - (row + v * lanes), lanes)
                        self._columns(k, row + v * lanes, self.buffer + v * lanes, k.integer(width), 1, keep)
        if not kept:
            for number, total in enumerate(self.sums):
                self._partials("f64").store(k.reduce(total.get()), task * (_PARTIAL // 8) + number)

    def _turn(self, k: Builder, row: Value, count: Value) -> None:
        """A few vectors of rows as columns of the buffer: [class][row]."""
        at, lanes = self.at, self.lanes
        width = lanes * self.code.vectors
        for v in range(self.code.vectors):
            first = row + v * lanes
            with k.when(count > first):
                for c in k.range(0, at["classes"], lanes):
                    left = (at["classes"] - c).min(lanes)
                    loaded = []
                    for lane in range(lanes):
                        keep = k.mask(k.select(count > first + lane, left, 0), lanes)
                        place = self.here["x"] + ((first + lane) * at["x_row"] + c)
                        loaded.append(place.load(0, lanes, keep))
                        # rows or classes side by side are more streams than a processor follows by itself
                        place.prefetch(at["x_row"] * (2 * width))
                    # rows of the buffer behind the last class are there, and are never read
                    for i, column in enumerate(transpose(k, loaded)):
                        (self.buffer + ((c + i) * width + v * lanes)).store(column, 0)

    def _columns(
        self, k: Builder, row: Value, x: Pointer, step: Value, vectors: int, mask: Value | None
    ) -> None:
        """Rows in the lanes, class by class."""
        real, lanes, places = self.real, self.lanes, [v * self.lanes for v in range(vectors)]
        labels = [(self.here["target"] + row).load(place, lanes, mask) for place in places]
        zero = k.constant(0.0, real, lanes)
        most = [k.register(k.constant(-math.inf, real, lanes)) for _ in places]
        total = [k.register(zero) for _ in places]
        for c in k.range(self.at["classes"]):
            here = x + c * step
            for v, place in enumerate(places):
                value = here.load(place, lanes, mask)
                if self.code.form == "rows":
                    here.prefetch(place + 2 * lanes * vectors)
                most[v].set(value.max(most[v].get()))
        tops = [register.get() for register in most]
        for c in k.range(self.at["classes"]):
            here = x + c * step
            for v, place in enumerate(places):
                total[v] += power_of_two(k, (here.load(place, lanes, mask) - tops[v]) * LOG2E, real)
        for v, place in enumerate(places):
            lse = tops[v] + vector_math.log(k, total[v].get())
            is_known = (labels[v] >= 0.0) & (labels[v] < k.splat(self.classes, lanes))
            is_known = is_known if mask is None else is_known & mask
            number = k.convert(k.select(is_known, labels[v], 0.0), "i64")
            picked = (x + place).load_at(number * step + k.iota(lanes), is_known)
            share = None
            if "weight" in self.pointers:
                share = self.pointers["weight"].load_at(number * self.at["weight"], is_known)
            self._finish(k, row + place, labels[v], lse, picked, share, mask)

    def _over_classes(self, k: Builder, row: Value) -> None:
        """One row in four vectors at a time."""
        at, real, lanes = self.at, self.real, self.lanes
        x = self.here["x"] + row * at["x_row"]
        label = (self.here["target"] + row).load(0)
        most = [k.register(k.constant(-math.inf, real, lanes)) for _ in range(4)]
        total = [k.register(k.constant(0.0, real, lanes)) for _ in range(4)]
        whole = at["classes"] // (4 * lanes) * (4 * lanes)

        def each(use: Callable[[int, Value, Value | None], None]) -> None:
            for c in k.range(0, whole, 4 * lanes):
                for v in range(4):
                    use(v, (x + c).load(v * lanes, lanes), None)
            for c in k.range(whole, at["classes"], lanes):
                mask = k.mask(at["classes"] - c, lanes)
                use(0, (x + c).load(0, lanes, mask), mask)

        def raise_most(v: int, value: Value, mask: Value | None) -> None:
            value = value if mask is None else k.select(mask, value, -math.inf)
            most[v].set(value.max(most[v].get()))

        each(raise_most)
        top = k.reduce(self._four(most, lambda a, b: a.max(b)), "max")
        tops = k.splat(top, lanes)

        def add(v: int, value: Value, mask: Value | None) -> None:
            power = power_of_two(k, (value - tops) * LOG2E, real)
            total[v] += power if mask is None else k.select(mask, power, 0.0)

        each(add)
        lse = top + vector_math.log(k, k.reduce(self._four(total, lambda a, b: a + b)))
        is_known = (label >= 0.0) & (label < self.classes)
        number = k.convert(k.select(is_known, label, 0.0), "i64")
        weight = self.pointers["weight"].load(number * at["weight"]) if "weight" in self.pointers else None
        self._finish(k, row, label, lse, x.load(number), weight, None)

    def _four(self, registers: Sequence[Register], join: Callable[[Value, Value], Value]) -> Value:
        a, b, c, d = (register.get() for register in registers)
        return join(join(a, b), join(c, d))

    def _finish(
        self, k: Builder, row: Value, label: Value, lse: Value, picked: Value, weight: Value | None,
        mask: Value | None,
    ) -> None:  # fmt: skip
        """The loss of some rows, from all that is known of them."""
        lanes = label.lanes
        is_ignored = label == k.splat(self.ignored, lanes)
        is_known = (label >= 0.0) & (label < k.splat(self.classes, lanes))
        loss = lse - picked if weight is None else (lse - picked) * weight
        loss = k.select(is_ignored, 0.0, k.select(is_known, loss, math.nan))
        if "lse" in self.here:
            self.here["lse"].store(lse, row, mask)
        if self.code.reduction == "none":
            self.scale.store(self.here["loss"] + row, 1, loss, mask)
            return
        share = k.constant(1.0, self.real, lanes) if weight is None else weight
        for total, value in zip(self.sums, (loss, k.select(is_ignored, 0.0, share)), strict=True):
            total += k.convert(value if mask is None else k.select(mask, value, 0.0), "f64")

    def _total(self, k: Builder) -> None:
        """The chunks' sums, in order."""
        totals = [k.register(k.constant(0.0, "f64")) for _ in range(2)]
        for chunk in k.range(self.at["all"]):
            for number, total in enumerate(totals):
                total += self._partials("f64").load(chunk * (_PARTIAL // 8) + number)
        loss, shares = (total.get() for total in totals)
        if self.code.reduction == "mean":
            loss = loss / shares
        self.scale.store(self.pointers["loss"], 1, k.convert(loss, self.real))
        if "total" in self.pointers:
            self.pointers["total"].store(k.convert(shares, self.real))


# of a vector of scores, and of a row beside them, by form
_CYCLES = {"rows": (9.0, 2.0), "transposed": (14.0, 4.0), "classes": (7.0, 110.0)}
_CHUNK_CYCLES = 200.0


@dataclass(frozen=True)
class _Plan:
    """Sizes: rows of a chunk, chunks of an outer step, and bytes of a thread's buffer."""

    problem: CrossEntropy
    rows: _Rows
    code: _Code
    chunk: int
    chunks: int
    room: int

    @property
    def all(self) -> int:
        return self.rows.outer * self.chunks


def _plan(problem: CrossEntropy, device: CpuDevice) -> _Plan | None:
    rows = _lay_out(problem)
    if rows is None:
        return None
    names = tuple(operand.name for operand in problem.operands)
    code = _Code(rows.form, problem.dtype, problem.target.dtype, names, problem.reduction)
    lanes = device.isa.lanes(code.real)
    width = lanes * code.vectors
    # the same whatever runs it: sums of chunks are added in order
    chunk = ceil_div(max(1, _CHUNK // problem.classes), 64) * 64
    room = (
        ceil_div(problem.classes, lanes) * lanes * width * ITEM_BYTES[code.real]
        if rows.form == "transposed"
        else 0
    )
    return _Plan(problem, rows, code, chunk, ceil_div(rows.inner, chunk), room)


class CrossEntropyRows(PlannedAlgorithm[CrossEntropy, _Plan, CpuDevice]):
    """Losses of classes where rows or classes are neighbours in memory: each score is read from memory once."""

    name = "rows"
    problem = CrossEntropy
    deterministic = True
    takes_no_epilogue = "cross_entropy takes no epilogue"

    def refusal(self, problem: CrossEntropy, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if not problem.has_classes or problem.smoothing:
            return "targets are probabilities or smoothed labels: only plain classes are looked up"
        reason = refusal(problem)
        if reason is None and _lay_out(problem) is None:
            return "neither rows nor classes are neighbours in memory, or the rows of target, lse and loss are not"
        return reason

    def plan(self, problem: CrossEntropy, device: CpuDevice, epilogue: Epilogue | None) -> _Plan:
        plan = _plan(problem, device)
        assert plan is not None, "refused"
        return plan

    def workspace_of(self, plan: _Plan, device: CpuDevice) -> int:
        return plan.all * _PARTIAL + plan.room * device.threads

    def seconds_of(self, plan: _Plan, device: CpuDevice) -> float:
        return seconds_of(plan.problem, device, _cycles(plan, device), max(1, plan.all))

    def error_of(self, problem: CrossEntropy) -> float:
        return error_bound_of(problem)

    def kernel_of(self, plan: _Plan, device: CpuDevice) -> Kernel:
        entropy = plan.problem
        library = load("cross_entropy_rows", plan.code, device.isa, lambda module: _Kernel(module, plan.code))
        steps = plan.rows.steps
        values = {
            "inner": plan.rows.inner, "classes": entropy.classes, "chunk": plan.chunk, "chunks": plan.chunks,
            "all": plan.all, "room": plan.room, "x_outer": steps["x"], "x_row": plan.rows.row_step,
            "x_class": plan.rows.class_step, "target_outer": steps["target"], "loss_outer": steps.get("loss", 0),
            "lse_outer": steps.get("lse", 0), "ignore": entropy.ignore_index,
            "weight": entropy.weight.strides[0] if entropy.weight is not None else 0,
        }  # fmt: skip
        phases = [("rows", plan.all)]
        if entropy.reduction != "none":
            phases.append(("total", 1))
        threads = min(useful_threads(device, _cycles(plan, device)), max(1, plan.all))
        return CpuKernel(library, phases, len(entropy.operands), threads, _SLOTS.pack(values))


def _cycles(plan: _Plan, device: CpuDevice) -> float:
    """Cycles of one thread."""
    lanes = device.isa.lanes(plan.code.real)
    a_vector, a_row = _CYCLES[plan.code.form]
    rows = plan.rows.outer * plan.rows.inner
    return rows * (a_row + plan.problem.classes * a_vector / lanes) + _CHUNK_CYCLES * plan.all
