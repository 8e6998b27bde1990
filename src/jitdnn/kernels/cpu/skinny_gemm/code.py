"""The code of products with few rows: tiles of sums, and the loops of a unit over them (drawn in plan.py)."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.microkernel.add_lanes import add_lanes
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides, trace_store
from jitdnn.kernels.cpu.schedule.boundary import when
from jitdnn.kernels.cpu.schedule.offsets import scale
from jitdnn.kernels.cpu.skinny_gemm.plan import Matrix, SkinnyPlan
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value


def trace(module: Module, plan: SkinnyPlan, pointers: int, epilogue: Epilogue | None) -> None:
    """Trace the task ``units``; the kernel's first extra is the number of units of a task."""
    p = plan.product
    full, rest = divmod(p.n, plan.width)
    blocks: list[tuple[bool, _Block]] = []
    if full:
        blocks.append((True, _Block(module, "whole", plan, plan.width)))
    if rest:
        blocks.append((False, _Block(module, "rest", plan, rest)))
    store = trace_store(module, "store", _tile_store(plan, epilogue))
    with module.task("units") as (k, args, task, _):
        arguments = Arguments(k, args, pointers)
        order = (1, 0, 2) if p.is_turned else (0, 1, 2)
        a, b, *results = (
            arguments.pointer(number, matrix.dtype)
            for number, matrix in zip(
                (*order, *range(3, pointers)), (p.a, p.b, p.c, *p.operands), strict=True
            )
        )
        sums = k.local(p.dtype, plan.sum_elements)
        panel = k.local(p.dtype, plan.kc * plan.width) if plan.copies_b else None
        for unit in plan.units.each(k, task, arguments.extra(0)):
            group = [unit[f"group{i}"] for i in range(len(p.groups))]
            column, fits = unit["block"] * plan.width, unit["block"] < full
            x, w = a + _offset(p.a, group), b + (_offset(p.b, group) + column * p.b.columns)
            for is_whole, block in blocks:
                with when(k, None if len(blocks) == 1 else fits if is_whole else ~fits):
                    block.sum_up(k, x, w, sums, panel)
            targets = [
                t + (_offset(matrix, group) + column * matrix.columns)
                for t, matrix in zip(results, (p.c, *p.operands), strict=True)
            ]
            valid = (k.integer(p.n) - column).min(plan.width)
            k.call(store, sums, scale(k, args, pointers), *targets, valid, p.m)


def _offset(matrix: Matrix, group: Sequence[Value]) -> Value | int:
    offset: Value | int = matrix.offset
    for index, stride in zip(group, matrix.groups, strict=True):
        if stride:
            offset = index * stride + offset
    return offset


def _tile_store(plan: SkinnyPlan, epilogue: Epilogue | None) -> TileStore:
    p = plan.product
    strides = [TileStrides(m.dtype, (m.rows,), m.columns) for m in (p.c, *p.operands)]
    vectors = plan.tile.columns if plan.form == "columns" else 1
    return TileStore(p.dtype, (max(1, p.m),), (p.m,), vectors, strides[0], tuple(strides[1:]), epilogue)


class _Block:
    """The functions of blocks of ``width`` columns: all of a plan's, or the last ones."""

    def __init__(self, module: Module, name: str, plan: SkinnyPlan, width: int) -> None:
        self.plan, self.width = plan, width
        p, lanes = plan.product, plan.lanes
        self.columns = -(-width // lanes) if plan.form == "columns" else width
        self.cut = width % lanes if plan.form == "columns" else 0  # lanes of the last vector; 0: all
        full, rest = divmod(p.m, plan.tile.rows)
        self.tiles = (
            [(full, plan.tile.rows, self._tile(module, f"{name}_tile", plan.tile.rows))] if full else []
        )
        if rest:
            self.tiles.append((1, rest, self._tile(module, f"{name}_last", rest)))
        self.copy = self._copy(module, f"{name}_copy") if plan.copies_b else None
        self.add_up = (
            self._add_up(module, f"{name}_add_up") if plan.is_blocked and plan.form == "dots" else None
        )

    def sum_up(self, k: Builder, x: Pointer, w: Pointer, sums: Pointer, panel: Pointer | None) -> None:
        """All sums of a block, as `trace_store` reads them."""
        plan, p = self.plan, self.plan.product
        if plan.is_blocked or not p.k:
            zero = k.constant(0, p.dtype, plan.lanes)
            for i in k.range(0, plan.sum_elements, plan.lanes):
                sums.store(zero, i)
        row_sums = plan.tile.columns * plan.lanes
        if not plan.is_blocked and plan.form == "dots":
            row_sums = plan.lanes
        for first in k.range(0, p.k, plan.kc):
            depth = (k.integer(p.k) - first).min(plan.kc)
            b = w + first * p.b.rows
            if self.copy is not None and panel is not None:
                k.call(self.copy, b, panel, depth)
                b = panel
            begin = 0
            for count, rows, function in self.tiles:
                for number in k.range(count):
                    row = number * rows + begin
                    k.call(
                        function, x + (row * p.a.rows + first * p.a.columns), b, sums + row * row_sums, depth
                    )
                begin += count * rows
        if self.add_up is not None:
            k.call(self.add_up, sums)

    # ---- functions

    def _mask(self, k: Builder, column: int) -> Value | None:
        return k.mask(self.cut, self.plan.lanes) if self.cut and column == self.columns - 1 else None

    def _copy(self, module: Module, name: str) -> Function:
        """Trace ``name(b, panel, depth)``: vectors of columns side by side, zeros beyond the last column."""
        plan, p = self.plan, self.plan.product
        with module.function(name, b=p.b.dtype, panel=p.dtype, depth=None) as (
            k,
            (b, panel, depth),
            function,
        ):
            for i in k.range(depth):
                self._prefetch(k, b, i + plan.kc)
                for column in range(self.columns):
                    value = (b + (i * p.b.rows + column * plan.lanes)).load(
                        0, plan.lanes, self._mask(k, column)
                    )
                    panel.store(value, i * plan.width + column * plan.lanes)
        return function

    def _prefetch(self, k: Builder, b: Pointer, row: Value) -> None:
        """Ask for the lines of a row of b: the next ones lie a row apart, which the hardware does not follow."""
        if self.plan.is_far:
            line = self.plan.isa.processor.line_bytes // self.plan.item
            for column in range(0, self.width, line):
                b.prefetch(row * self.plan.product.b.rows + column)

    def _add_up(self, module: Module, name: str) -> Function:
        """Trace ``name(sums)``: the lanes of each sum become one number; rows are one vector each."""
        plan, lanes = self.plan, self.plan.lanes
        with module.function(name, "aliasing", sums=plan.product.dtype) as (k, (sums,), function):
            for row in k.range(plan.product.m):
                at = sums + row * (plan.tile.columns * lanes)
                total = add_lanes(k, [at.load(i * lanes, lanes) for i in range(self.columns)])
                sums.store(total, row * lanes)
        return function

    def _tile(self, module: Module, name: str, rows: int) -> Function:
        """Trace ``name(a, b, sums, depth)``: sums of so many rows, added to those in memory if the plan is blocked."""
        plan, p, lanes = self.plan, self.plan.product, self.plan.lanes
        b_dtype = p.dtype if plan.copies_b else p.b.dtype
        with module.function(name, a=p.a.dtype, b=b_dtype, sums=p.dtype, depth=None) as (
            k, (a, b, sums, depth), function,
        ):  # fmt: skip
            stride = plan.tile.columns * lanes
            zero = k.constant(0, p.dtype, lanes)
            acc = [
                [[k.register(zero) for _ in range(self.columns)] for _ in range(rows)]
                for _ in range(plan.tile.unroll)
            ]
            if plan.is_blocked:
                for i, row in enumerate(acc[0]):
                    for j, register in enumerate(row):
                        register.set(sums.load(i * stride + j * lanes, lanes))
            (self._columns if plan.form == "columns" else self._dots)(k, a, b, depth, acc)
            totals = [
                [_tree([part[i][j].get() for part in acc]) for j in range(self.columns)] for i in range(rows)
            ]
            for i, row_totals in enumerate(totals):
                if plan.form == "dots" and not plan.is_blocked:
                    sums.store(add_lanes(k, row_totals), i * lanes)
                    continue
                for j, total in enumerate(row_totals):
                    sums.store(total, i * stride + j * lanes)
        return function

    def _columns(
        self, k: Builder, a: Pointer, b: Pointer, depth: Value, acc: list[list[list[Register]]]
    ) -> None:
        """Step by step of the depth: vectors of columns of b times each row's number of a."""
        p, lanes, unroll = self.plan.product, self.plan.lanes, len(acc)
        step = self.plan.width if self.plan.copies_b else p.b.rows

        def add(i: Value, part: int, ahead: int) -> None:
            if not self.plan.copies_b:
                self._prefetch(k, b, i + (ahead + self.plan.rows_ahead))
            line, column = b + (i * step + ahead * step), a + (i * p.a.columns + ahead * p.a.columns)
            vectors = [line.load(j * lanes, lanes, self._load_mask(k, j)) for j in range(self.columns)]
            for row, sums in enumerate(acc[part]):
                one = column.splat(row * p.a.rows, lanes)
                for vector, register in zip(vectors, sums, strict=True):
                    register.set(k.fma(one, vector, register.get()))

        whole = depth - depth % unroll if unroll > 1 else depth
        for i in k.range(0, whole, unroll):
            for part in range(unroll):
                add(i, part, part)
        if unroll > 1:
            for i in k.range(whole, depth):
                add(i, 0, 0)

    def _load_mask(self, k: Builder, column: int) -> Value | None:
        return None if self.plan.copies_b else self._mask(k, column)

    def _dots(
        self, k: Builder, a: Pointer, b: Pointer, depth: Value, acc: list[list[list[Register]]]
    ) -> None:
        """Vector by vector of the depth: each column of b times each row of a."""
        p, lanes, unroll = self.plan.product, self.plan.lanes, len(acc)

        def add(i: Value, part: int, mask: Value | None) -> None:
            at = i + part * lanes
            vectors = [(b + (at + j * p.b.columns)).load(0, lanes, mask) for j in range(self.columns)]
            for row, sums in enumerate(acc[part]):
                one = (a + (at + row * p.a.rows)).load(0, lanes, mask)
                for vector, register in zip(vectors, sums, strict=True):
                    register.set(k.fma(one, vector, register.get()))

        wide = lanes * unroll
        whole = depth - depth % wide
        for i in k.range(0, whole, wide):
            for part in range(unroll):
                add(i, part, None)
        for i in k.range(whole, depth, lanes):
            add(i, 0, k.mask(depth - i, lanes))


def _tree(values: list[Value]) -> Value:
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=False)] + values[len(values) & ~1 :]
    return values[0]
