"""The code of unpooling: values scattered into planes by their indices, and gradients gathered from them.

A unit is one plane, or as many planes as a vector has lanes where channels are neighbours in memory. Forward, the
values are scattered one after the other into workspace, so that the last of several with one index remains, and the
planes are stored to the result once. An index outside of the plane becomes that of one more element after the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.microkernel.nontemporal import store_vector
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.pooling.geometry import AXES
from jitdnn.kernels.cpu.pooling.plan import UNPOOLING_SLOTS, UNPOOLING_TENSORS, UnpoolingPlan
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.rtcg.builder import Module, Pointer, Value


class _UnpoolingCode:
    """Traces one kernel."""

    def __init__(self, module: Module, plan: UnpoolingPlan) -> None:
        self.plan, self.dtype = plan, plan.computing
        with module.task("unpooling") as (k, args, task, thread):
            self.k, self.lanes = k, k.lanes(self.dtype)
            arguments = Arguments(k, args, UNPOOLING_TENSORS)
            self.n = n = UNPOOLING_SLOTS.load(arguments)
            small, large = ([n[f"{name}{a}"] for a in range(AXES)] for name in ("small", "large"))
            self.strides = [[n[f"stride{t}.{a}"] for a in range(2 + AXES)] for t in range(UNPOOLING_TENSORS)]
            self.is_forward = plan.direction == "fwd"
            self.extents = {"small": small, "large": large}
            self.scale = Scale(k, arguments, self.dtype)
            pointers = [arguments.pointer(t, plan.dtype).as_real(self.dtype) for t in (0, 2)]
            pointers.insert(1, arguments.pointer(1, plan.indices))
            self.plane = arguments.workspace(self.dtype) + thread * n["pitch"]
            lanes = self.lanes if plan.over_channels else 1
            counter = Counter(
                k, task * n["per_task"], [n["units"] // n["blocks"], n["blocks"]],
                [[s[0], s[1] * lanes] for s in self.strides],
            )  # fmt: skip
            start = task * n["per_task"]
            for _unit in k.range(start, (start + n["per_task"]).min(n["units"])):
                self.planes: list[Pointer] = [
                    p + o.get() for p, o in zip(pointers, counter.offsets, strict=True)
                ]
                self.left = n["channels"] - counter.digits[1].get() * lanes
                if self.is_forward:
                    self._zero()
                    for position, mask in self._vectors("small"):
                        self._scatter(position, mask)
                    self._write()
                else:
                    for position, mask in self._vectors("small"):
                        self._gather(position, mask)
                counter.advance()

    # ---- vectors

    def _vectors(self, which: str) -> Iterator[tuple[list[Value], Value | None]]:
        """Loops over the positions of the small or the large tensor: that of lane 0, and the mask."""
        k, (e0, e1, e2) = self.k, self.extents[which]
        for p0 in k.range(e0):
            for p1 in k.range(e1):
                if self.plan.over_channels:
                    mask = k.mask(self.left, self.lanes)
                    for p2 in k.range(e2):
                        yield [p0, p1, p2], mask
                    continue
                full = (e2 // self.lanes) * self.lanes
                for p2 in k.range(0, full, self.lanes):
                    yield [p0, p1, p2], None
                with k.when(full < e2):
                    yield [p0, p1, full], k.mask(e2 - full, self.lanes)

    def _step(self, tensor: int) -> int | Value:
        """Elements of memory from lane to lane."""
        if self.plan.is_contiguous[tensor]:
            return 1
        return self.strides[tensor][1 if self.plan.over_channels else 4]

    def _at(self, tensor: int, position: Sequence[Value]) -> Pointer:
        pointer = self.planes[tensor]
        for p, stride in zip(position, self.strides[tensor][2:], strict=True):
            pointer = pointer + p * stride
        return pointer

    def _indices(self, position: Sequence[Value], mask: Value | None) -> Value:
        """The indices of a vector of small elements; those outside of the plane become ``size``."""
        k, size = self.k, self.k.splat(self.n["size"], self.lanes)
        found = k.convert(self._at(1, position).load_strided(0, self._step(1), self.lanes, mask), "i64")
        in_plane = (found >= 0) & (found < size)
        return k.select(in_plane if mask is None else in_plane & mask, found, size)

    # ---- forward

    def _zero(self) -> None:
        zero = self.k.constant(0.0, self.dtype, self.lanes)
        for i in self.k.range(0, self.n["pitch"], self.lanes):
            self.plane.store(zero, i)

    def _scatter(self, position: Sequence[Value], mask: Value | None) -> None:
        k, plan = self.k, self.plan
        values = self._at(0, position).load_strided(0, self._step(0), self.lanes, mask)
        targets = self._indices(position, mask) * self.plan.planes
        if plan.over_channels:
            targets = targets + k.iota(self.lanes)
        for lane in range(self.lanes):
            self.plane.store(k.extract(values, lane), k.extract(targets, lane))

    def _write(self) -> None:
        k, (_, e1, e2) = self.k, self.extents["large"]
        for position, mask in self._vectors("large"):
            p0, p1, p2 = position
            value = self.plane.load(((p0 * e1 + p1) * e2 + p2) * self.plan.planes, self.lanes)
            target, step = self._at(2, position), self._step(2)
            if mask is None and self.plan.is_contiguous[2]:
                store_vector(k, self.scale, target, value, self.plan.nontemporal)
            else:
                self.scale.store(target, step, value, mask)

    # ---- backward

    def _gather(self, position: Sequence[Value], mask: Value | None) -> None:
        k, plan = self.k, self.plan
        indices = self._indices(position, mask)
        result = k.constant(0.0, self.dtype, self.lanes)
        for lane in range(self.lanes):
            index = k.extract(indices, lane)
            in_plane = index < self.n["size"]
            source = self.planes[0] + self._offset(k.select(in_plane, index, 0))
            if plan.over_channels:
                source = source + k.integer(self._step(0)) * lane
            result = k.insert(result, source.load(0, 1, in_plane), lane)
        self.scale.store(self._at(2, position), self._step(2), result, mask)

    def _offset(self, index: Value) -> Value:
        """The offset in memory of an element of a plane of the large tensor."""
        _, e1, e2 = self.extents["large"]
        s0, s1, s2 = self.strides[0][2:]
        if self.plan.is_uniform:
            return index * s2
        row, column = index // e2, index % e2
        return (row // e1) * s0 + (row % e1) * s1 + column * s2


def trace(module: Module, plan: UnpoolingPlan) -> None:
    """Trace the task "unpooling"."""
    _UnpoolingCode(module, plan)
