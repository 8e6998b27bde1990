"""The functions that the tasks of a WinogradPlan correlation call.

A strided backward data is several correlations, which read and write the same tensors: what their functions do alike
is traced once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.winograd.few_channels import trace_folded_fill
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.convolution.winograd.prefetch import (
    trace_ask_data,
    trace_ask_filter,
    trace_ask_results,
)
from jitdnn.kernels.cpu.convolution.winograd.product import Strides, trace_product
from jitdnn.kernels.cpu.convolution.winograd.transforms import (
    Kind,
    trace_data,
    trace_drain,
    trace_fill,
    trace_filter,
    trace_result,
)
from jitdnn.kernels.cpu.microkernel.packing import trace_panel
from jitdnn.rtcg.builder import Function, Module

Shared = dict[Hashable, Function]
"""Functions of a module by what they depend on."""


class Functions:
    """Those of one correlation, of which ``shared`` has what another one of the module needed too."""

    def __init__(
        self, module: Module, prefix: str, p: WinogradPlan, epilogue: Epilogue | None, shared: Shared
    ) -> None:
        self.module, self.prefix, self.p, self.shared = module, prefix, p, shared
        c, lanes = p.c, p.lanes
        kinds = [(row, column) for _, _, row in p.rows.phase_kinds for _, _, column in p.columns.phase_kinds]
        self.fills = self._folded_fills() if p.folds else self._fills()
        strides = p.read_pitch * lanes, p.laid_gap * lanes
        self.data = {
            kind: trace_data(module, self._named("data_tile", kind), p, c.dtype, *strides, kind)
            for kind in ([(False, False)] if p.folds else kinds)
        }
        self.direct: dict[Kind, Function] = {}
        if p.reads_directly:
            rows, columns = (
                axis.gap * c.x.space[i] for axis, i in zip((p.rows, p.columns), p.tiled, strict=True)
            )
            self.direct = {
                kind: trace_data(module, self._named("data_far", kind), p, c.x.dtype, rows, columns, kind)
                for kind in kinds
            }
        self.stage = trace_panel(module, f"{prefix}stage", p.as_it_lies, p.panels)
        self.filters = {kind: trace_filter(module, self._named("filter", kind), p, kind) for kind in kinds}
        self.products = [self._product(rows) for rows, _ in p.row_groups]
        self.result = trace_result(module, f"{prefix}result", p)
        self.ask_data = trace_ask_data(module, f"{prefix}ask_data", p)
        self.ask_results = trace_ask_results(module, f"{prefix}ask_results", p)
        self.ask_filter = trace_ask_filter(module, f"{prefix}ask_filter", p)
        views = [(v.dtype, v.channels, [v.space[i] for i in p.tiled]) for v in (c.y, *c.operands)]
        key = "drain", repr(views), p.rows.spread, p.writes_channels
        self.drain = self._once(key, partial(trace_drain, module, f"{prefix}drain", p, epilogue))

    def _once(self, key: Hashable, trace: Callable[[], Function]) -> Function:
        if key not in self.shared:
            self.shared[key] = trace()
        return self.shared[key]

    def _named(self, name: str, kind: Kind) -> str:
        return f"{self.prefix}{name}{int(kind[0])}{int(kind[1])}"

    def _fills(self) -> list[tuple[int, Function]]:
        """By the channels that they lay out at once: a whole vector, and the rest."""
        p, x = self.p, self.p.c.x
        whole, rest = divmod(p.c.depth, p.lanes)
        positions = [axis.positions for axis in p.c.axes]
        shape = p.rows.places, p.rows.gap, p.read_pitch
        key = "fill", repr(x), p.tiled, repr(positions), shape, p.reads_channels
        fills = []
        for count in ([p.lanes] if whole else []) + ([rest] if rest else []):
            trace = partial(trace_fill, self.module, f"{self.prefix}fill{count}", p, count)
            fills.append((count, self._once((*key, count), trace)))
        return fills

    def _folded_fills(self) -> list[tuple[int, Function]]:
        """By the first lane of each vector of channels and phases."""
        p = self.p
        return [
            (first, trace_folded_fill(self.module, f"{self.prefix}fill{first}", p, first))
            for first in range(0, p.folded, p.lanes)
        ]

    def _product(self, rows: int) -> Function:
        p = self.p
        slices, a, b = p.sources
        step = p.chunk * p.panel_lanes
        sources = (
            (slices, p.slice_pitch, a * b * step),
            (a, b * p.channel_pitch, b * step),
            (1 if p.folds else b, p.channel_pitch, step),
        )
        # the distance between sources matters where there are several
        first, second, third = ((x, y) if count > 1 else (0, 0) for count, x, y in sources)
        strides = Strides(p.row_pitch, (first, second, third))
        name = f"{self.prefix}product{rows}"
        trace = partial(trace_product, self.module, name, p.c.dtype, rows, p.tile.vectors, strides)
        return self._once(("product", rows, p.tile.vectors, strides), trace)
