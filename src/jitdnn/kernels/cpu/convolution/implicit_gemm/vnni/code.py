"""The code of implicit GEMM of 8-bit integers: what differs from ../code.py."""

from __future__ import annotations

from dataclasses import replace

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.implicit_gemm.code import TileFunctions, trace_tiles
from jitdnn.kernels.cpu.convolution.implicit_gemm.pack_weights import panels_of_part
from jitdnn.kernels.cpu.convolution.implicit_gemm.prefetch_plan import PrefetchPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.packing import trace_vnni_input_tile, trace_vnni_panel
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.plan import VnniPlan
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore
from jitdnn.kernels.cpu.microkernel.gemm import Products
from jitdnn.kernels.cpu.schedule.offsets import group_offset, split_index
from jitdnn.rtcg.builder import Builder, Function, Module


def trace(plan: VnniPlan, module: Module, pointers: int, epilogue: Epilogue | None) -> None:
    """Trace the tasks of ``plan.phases("")``; the pointers begin with x, w and y."""
    _trace_pack(plan, module, pointers)
    trace_tiles(_VnniFunctions(plan, module, epilogue), module, "", pointers, (0, 1, 2))


def _trace_pack(plan: VnniPlan, module: Module, pointers: int) -> None:
    c, panels = plan.c, plan.vnni_panels
    pack = trace_vnni_panel(module, "panel", c, panels, plan.channels_read)
    with module.task("pack") as (k, args, task, _):
        arguments = Arguments(k, args, pointers)
        group, panel = split_index(task, (c.group_count, panels.count))
        w = arguments.pointer(1, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
        to = panels_of_part(plan, arguments) + task * panels.panel_size
        k.call(pack, w, to, panel * panels.lanes)


class _VnniFunctions(TileFunctions):
    def __init__(self, plan: VnniPlan, module: Module, epilogue: Epilogue | None) -> None:
        self._vnni = plan
        super().__init__(plan, module, "", epilogue)

    def trace_input_tile(self, module: Module, name: str) -> Function:
        plan = self._vnni
        return trace_vnni_input_tile(
            module, name, self.c, plan.input_tile, plan.channels_read, plan.is_shifted
        )

    def plan_prefetch(self) -> PrefetchPlan | None:
        """Nothing: x is read by single channels, not by words."""
        return None

    @property
    def products(self) -> Products:
        lanes, at = self.plan.lanes, self._vnni.vnni_panels.initial_sums
        if self.plan.vectorizes_pixels:
            products = Products(
                lambda k, one, vector, total: k.dot(vector, one, total),
                lambda panel, _, row, vector: panel.splat(at + row, lanes),
            )
        else:
            products = Products(
                Builder.dot, lambda _, panel, row, vector: panel.load(at + vector * lanes, lanes)
            )
        return products if self._vnni.is_shifted else replace(products, start=None)

    def tile_store(self, epilogue: Epilogue | None) -> TileStore:
        store, computing = super().tile_store(epilogue), self._vnni.computing
        vectors = store.vectors * self.plan.lanes // self.plan.isa.lanes(computing)
        return replace(store, dtype=computing, vectors=vectors, sums=f"i32:{computing}")
