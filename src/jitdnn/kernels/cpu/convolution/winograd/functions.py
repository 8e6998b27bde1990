"""The functions that the tasks of a correlation by minimal filtering call.

A strided dgrad is a correlation for each stride phase, which read and write the same tensors: functions that are the
same for several of them are traced once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.winograd.few_channels import trace_pack_few_channels
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.convolution.winograd.prefetch import (
    trace_prefetch_filter,
    trace_prefetch_input,
    trace_prefetch_output,
)
from jitdnn.kernels.cpu.convolution.winograd.product import Strides, trace_product
from jitdnn.kernels.cpu.convolution.winograd.transforms import (
    Kind,
    trace_data_transform,
    trace_filter_transform,
    trace_inverse_transform,
    trace_pack_input,
    trace_store_output,
)
from jitdnn.kernels.cpu.microkernel.packing import trace_panel
from jitdnn.rtcg.builder import Function, Module

Traced = dict[Hashable, Function]
"""Functions of a module by what they depend on."""


class Functions:
    """Those of one correlation, of which ``traced`` has what another one of the module needed, too."""

    def __init__(
        self, module: Module, prefix: str, p: WinogradPlan, epilogue: Epilogue | None, traced: Traced
    ) -> None:
        self.module, self.prefix, self.p, self.traced = module, prefix, p, traced
        c, lanes = p.c, p.lanes
        kinds = [
            (row, column)
            for _, _, row in p.rows.subfilter_kinds
            for _, _, column in p.columns.subfilter_kinds
        ]
        self.pack_input = self._pack_few_channels() if p.has_few_channels else self._pack_input()
        strides = p.packed_pitch * lanes, p.packed_spacing * lanes
        self.data_transforms = {
            kind: trace_data_transform(module, self._named("data", kind), p, c.dtype, *strides, kind)
            for kind in ([(False, False)] if p.has_few_channels else kinds)
        }
        self.unpacked_transforms: dict[Kind, Function] = {}
        if p.reads_unpacked:
            rows, columns = (
                axis.spacing * c.x.space[i] for axis, i in zip((p.rows, p.columns), p.tiled, strict=True)
            )
            self.unpacked_transforms = {
                kind: trace_data_transform(
                    module, self._named("unpacked_data", kind), p, c.x.dtype, rows, columns, kind
                )
                for kind in kinds
            }
        self.pack_filter = trace_panel(module, f"{prefix}pack_filter", p.in_memory_order, p.panels)
        self.filter_transforms = {
            kind: trace_filter_transform(module, self._named("filter", kind), p, kind) for kind in kinds
        }
        self.products = [self._product(rows) for rows, _ in p.register_rows]
        self.inverse_transform = trace_inverse_transform(module, f"{prefix}inverse", p)
        self.prefetch_input = trace_prefetch_input(module, f"{prefix}prefetch_input", p)
        self.prefetch_output = trace_prefetch_output(module, f"{prefix}prefetch_output", p)
        self.prefetch_filter = trace_prefetch_filter(module, f"{prefix}prefetch_filter", p)
        views = [(v.dtype, v.channels, [v.space[i] for i in p.tiled]) for v in (c.y, *c.operands)]
        key = "store_output", repr(views), p.rows.dilation, p.y_is_channels_last
        store = partial(trace_store_output, module, f"{prefix}store_output", p, epilogue)
        self.store_output = self._once(key, store)

    def _once(self, key: Hashable, trace: Callable[[], Function]) -> Function:
        if key not in self.traced:
            self.traced[key] = trace()
        return self.traced[key]

    def _named(self, name: str, kind: Kind) -> str:
        return f"{self.prefix}{name}{int(kind[0])}{int(kind[1])}"

    def _pack_input(self) -> list[tuple[int, Function]]:
        """By the channels that they pack at once: a whole vector, and the rest."""
        p, x = self.p, self.p.c.x
        whole, rest = divmod(p.c.depth, p.lanes)
        positions = [axis.positions for axis in p.c.axes]
        shape = p.rows.alpha, p.rows.spacing, p.packed_pitch, p.pack_step
        key = "pack_input", repr(x), p.tiled, repr(positions), shape, p.x_is_channels_last
        functions = []
        for count in ([p.lanes] if whole else []) + ([rest] if rest else []):
            trace = partial(trace_pack_input, self.module, f"{self.prefix}pack_input{count}", p, count)
            functions.append((count, self._once((*key, count), trace)))
        return functions

    def _pack_few_channels(self) -> list[tuple[int, Function]]:
        """By the first lane of each vector of channels and subfilters."""
        p = self.p
        return [
            (first, trace_pack_few_channels(self.module, f"{self.prefix}pack_input{first}", p, first))
            for first in range(0, p.joint_channels, p.lanes)
        ]

    def _product(self, rows: int) -> Function:
        p = self.p
        slices, a, b = p.subfilters
        step = p.u_channels * p.nr
        axes = (
            (slices, p.v_slice_pitch, a * b * step),
            (a, b * p.v_subfilter_pitch, b * step),
            (1 if p.has_few_channels else b, p.v_subfilter_pitch, step),
        )
        # the distance between subfilters matters where there are several
        of_slices, of_rows, of_columns = ((v, u) if count > 1 else (0, 0) for count, v, u in axes)
        strides = Strides(p.v_tile_pitch, (of_slices, of_rows, of_columns))
        vectors = p.register_tile.vectors
        name = f"{self.prefix}product{rows}"
        trace = partial(trace_product, self.module, name, p.c.dtype, rows, vectors, strides)
        return self._once(("product", rows, vectors, strides), trace)
