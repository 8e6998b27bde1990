"""Pointers of traced kernels: loads and stores of scalars and vectors, strided and masked, of any element type."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from jitdnn.rtcg import storage
from jitdnn.rtcg.types import (
    BOOL,
    ELEMENTS,
    INT32,
    POINTER,
    STORED,
    align_of,
    constant_of,
    suffix,
    vector_type,
)
from jitdnn.rtcg.values import Emitter, Value

_SHUFFLED_STRIDES = (2, 3, 4)  # here loading whole vectors and shuffling is faster than a gather


class Pointer:
    """A pointer to elements of one type; offsets count elements. Nothing is assumed of its alignment.

    What is loaded has the type ``real``, and what is stored is given in it: for numbers of half precision that is
    f32. For integers it is None, and they stay what they are, unless ``as_real`` asks for another one, or the type is
    written with it, as "i8:f32".
    """

    __slots__ = ("dtype", "k", "real", "v")

    def __init__(self, k: Emitter, v: Any, dtype: str, real: str | None = None) -> None:
        self.k, self.v = k, v
        self.dtype, _, wanted = dtype.partition(":")
        self.real = real or wanted or ("f32" if self.dtype in STORED else None)

    @property
    def element(self) -> ir.Type:
        """The type in memory."""
        return STORED.get(self.dtype) or ELEMENTS[self.dtype]

    def as_real(self, real: str) -> Pointer:
        """The same address for values of type ``real``: f32 or f64, or i64 where all is integers.

        Reals that are stored as integers are rounded to the nearest and saturated; NaN becomes 0, and a bool
        whether the value differs from 0. An i64 that is stored to a shorter type wraps.
        """
        return Pointer(self.k, self.v, self.dtype, real)

    def __add__(self, offset: int | Value) -> Pointer:
        if isinstance(offset, int) and offset == 0:
            return self
        moved = self.k.b.gep(self.v, [self.k.index(offset)], source_etype=self.element)
        return Pointer(self.k, moved, self.dtype, self.real)

    def _widen(self, stored: Value) -> Value:
        return stored if self.real is None else storage.widen(self.k, stored, self.dtype, self.real)

    def _narrow(self, value: Value) -> Value:
        return value if self.real is None else storage.narrow(self.k, value, self.dtype)

    def load(self, offset: int | Value = 0, lanes: int = 1, mask: Value | None = None) -> Value:
        """``lanes`` consecutive elements; those whose ``mask`` bit is off are not read and are zero."""
        k, at = self.k, (self + offset).v
        kind = vector_type(self.element, lanes)
        if mask is None:
            return self._widen(Value(k, k.b.load(at, align=align_of(self.element), typ=kind)))
        if lanes == 1:
            return self._load_if(offset, mask)
        name = suffix(kind)
        function = k.declare(f"llvm.masked.load.{name}.p0", kind, [POINTER, vector_type(BOOL, lanes), kind])
        loaded = k.b.call(function, [at, mask.v, self._zero(lanes)])
        return self._widen(Value(k, self._apart(loaded, lanes)))

    def _apart(self, loaded: Any, lanes: int) -> Any:
        """A masked load that stays an instruction of its own.

        LLVM folds it into the operation that uses it under the same mask; where it later takes the two apart again
        (for want of registers), the load comes out without its mask and reads beyond the array (seen with 22.1).
        """
        bits = 8 * align_of(self.element) * lanes
        if self.k.isa.name != "avx512" or bits not in (128, 256, 512):
            return loaded
        kind = ir.FunctionType(loaded.type, [loaded.type])
        return self.k.b.asm(kind, "", "=v,0", [loaded], side_effect=False)

    def _zero(self, lanes: int) -> ir.Constant:
        return constant_of(vector_type(self.element, lanes), 0)

    def _load_if(self, offset: int | Value, mask: Value) -> Value:
        result = self.k.register(self.k.constant(0, self.real or self.dtype))
        with self.k.when(mask):
            result.set(self.load(offset))
        return result.get()

    def store(self, value: Value, offset: int | Value = 0, mask: Value | None = None) -> None:
        """Store a scalar or consecutive lanes; those whose ``mask`` bit is off are not touched."""
        k, at = self.k, (self + offset).v
        if mask is None:
            k.b.store(self._narrow(value).v, at, align=align_of(self.element))
        elif value.lanes == 1:
            with k.when(mask):
                self.store(value, offset)
        else:
            stored = self._narrow(value).v
            function = k.declare(
                f"llvm.masked.store.{suffix(stored.type)}.p0",
                ir.VoidType(),
                [stored.type, POINTER, vector_type(BOOL, value.lanes)],
            )
            is_cut = stored.type.element != value.v.type.element
            k.b.call(function, [stored, at, _unknown(k, mask) if is_cut else mask.v])

    def stream(self, value: Value, offset: int | Value = 0) -> None:
        """Store past the caches; the address must be aligned to the whole vector."""
        k, at = self.k, (self + offset).v
        node = k.b.store(self._narrow(value).v, at, align=align_of(self.element) * value.lanes)
        node.set_metadata("nontemporal", k.ir_module.add_metadata([INT32(1)]))

    def prefetch(self, offset: int | Value = 0, write: bool = False, nearest: bool = True) -> None:
        """Ask for the cache line of an element, of any address at all; into the nearest cache, or the second one."""
        k = self.k
        function = k.declare("llvm.prefetch.p0", ir.VoidType(), [POINTER, INT32, INT32, INT32])
        k.b.call(function, [(self + offset).v, INT32(int(write)), INT32(3 if nearest else 2), INT32(1)])

    def splat(self, offset: int | Value, lanes: int) -> Value:
        """One element in every lane."""
        return self.k.splat(self.load(offset), lanes)

    def load_strided(
        self, offset: int | Value, stride: int | Value, lanes: int, mask: Value | None = None
    ) -> Value:
        """``lanes`` elements at ``stride``; zero where the ``mask`` bit is off (it is ignored at stride 0).

        One load at stride 1, a broadcast at 0, shuffled loads at a few small strides, else a gather.
        """
        if isinstance(stride, int) and stride == 1:
            return self.load(offset, lanes, mask)
        if isinstance(stride, int) and stride == 0:
            return self.splat(offset, lanes)
        if lanes == 1:
            return self.load(offset, 1, mask)
        k = self.k
        everything = k.mask(lanes, lanes) if mask is None else mask
        if isinstance(stride, int) and stride in _SHUFFLED_STRIDES:
            parts = [
                self.load(offset + part * lanes, lanes, k.spread_mask(everything, stride, part))
                for part in range(stride)
            ]
            return k.pick_every(parts, stride)
        return self._gather(self._addresses(offset, stride, lanes), lanes, everything)

    def load_at(self, offsets: Value, mask: Value | None = None) -> Value:
        """The elements at a vector of offsets, lane by lane; zero where the ``mask`` bit is off."""
        k, lanes = self.k, offsets.lanes
        if lanes == 1:
            return self.load(offsets, 1, mask)
        return self._gather(
            self._addresses_at(offsets), lanes, k.mask(lanes, lanes) if mask is None else mask
        )

    def _gather(self, addresses: Any, lanes: int, mask: Value) -> Value:
        k, kind = self.k, vector_type(self.element, lanes)
        function = k.declare(
            f"llvm.masked.gather.{suffix(kind)}.v{lanes}p0",
            kind,
            [addresses.type, vector_type(BOOL, lanes), kind],
        )
        return self._widen(Value(k, k.b.call(function, [addresses, mask.v, self._zero(lanes)])))

    def store_strided(
        self, value: Value, offset: int | Value, stride: int | Value, mask: Value | None = None
    ) -> None:
        """Store the lanes at ``stride``, which must not be 0 unless one lane is active."""
        lanes = value.lanes
        if lanes == 1 or (isinstance(stride, int) and stride == 1):
            self.store(value, offset, mask)
            return
        k = self.k
        everything = k.mask(lanes, lanes) if mask is None else mask
        if isinstance(stride, int) and stride in _SHUFFLED_STRIDES:
            for part in range(stride):
                spread = k.shuffle(value, value, [(part * lanes + j) // stride for j in range(lanes)])
                self.store(spread, offset + part * lanes, k.spread_mask(everything, stride, part))
            return
        addresses, stored = self._addresses(offset, stride, lanes), self._narrow(value).v
        function = k.declare(
            f"llvm.masked.scatter.{suffix(stored.type)}.v{lanes}p0",
            ir.VoidType(),
            [stored.type, addresses.type, vector_type(BOOL, lanes)],
        )
        k.b.call(function, [stored, addresses, everything.v])

    def _addresses(self, offset: int | Value, stride: int | Value, lanes: int) -> Any:
        k = self.k
        steps = k.iota(lanes) * (stride if isinstance(stride, Value) else k.integer(stride))
        return (self + offset)._addresses_at(steps)

    def _addresses_at(self, offsets: Value) -> Any:
        """The address at each of a vector of offsets."""
        addresses = self.k.b.gep(self.v, [offsets.v], source_etype=self.element)
        addresses.type = ir.VectorType(POINTER, offsets.lanes)  # llvmlite takes the scalar base's type
        return addresses


def _unknown(k: Emitter, mask: Value) -> Any:
    """The mask, of which LLVM knows nothing.

    Where it knows that one lane alone is on, it stores one element, but of the type before it was cut to fewer
    bits: a bf16 as 32 bits, over its neighbour.
    """
    bits = ir.IntType(mask.lanes)
    wide = k.b.bitcast(mask.v, bits)
    if mask.lanes < INT32.width:
        wide = k.b.zext(wide, INT32)
    wide = k.b.asm(ir.FunctionType(wide.type, [wide.type]), "", "=r,0", [wide], side_effect=False)
    if mask.lanes < INT32.width:
        wide = k.b.trunc(wide, bits)
    return k.b.bitcast(wide, mask.v.type)
