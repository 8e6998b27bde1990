"""What a traced kernel computes with: values and registers, and the emitter that makes LLVM IR of their use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import llvmlite.ir as ir

from jitdnn.rtcg.extents import Extent, Extents
from jitdnn.rtcg.isa import Isa
from jitdnn.rtcg.types import (
    BOOL,
    ELEMENTS,
    INT,
    INT32,
    constant_of,
    integer_lanes,
    scalar_type,
    suffix,
    undefined,
    vector_type,
)

# Sums may be contracted to fused multiply-adds; nothing is reordered, so that results do not depend on LLVM.
_CONTRACT = ("contract",)


class Value:
    """An integer, a truth value, a floating-point number or a vector of them, with Python's operators."""

    __slots__ = ("k", "v")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, k: Emitter, v: Any) -> None:
        self.k, self.v = k, v

    @property
    def is_float(self) -> bool:
        return isinstance(scalar_type(self.v.type), (ir.FloatType, ir.DoubleType))

    @property
    def lanes(self) -> int:
        """Number of lanes; 1 for a scalar."""
        return int(self.v.type.count) if isinstance(self.v.type, ir.VectorType) else 1

    def _lift(self, other: Any) -> Any:
        if isinstance(other, Extent) and scalar_type(self.v.type) == INT:
            other = self.k.extent(other)
        if not isinstance(other, Value):
            return constant_of(self.v.type, other)
        if self.lanes > 1 and other.lanes == 1:
            return self.k.splat(other, self.lanes).v
        return other.v

    def _binary(self, other: Any, integer: str, floating: str, swap: bool = False) -> Value:
        if isinstance(other, Value) and other.lanes > 1 and self.lanes == 1:
            return self.k.splat(self, other.lanes)._binary(other, integer, floating, swap)
        a, b = self.v, self._lift(other)
        if swap:
            a, b = b, a
        build = self.k.b
        if self.is_float:
            return Value(self.k, getattr(build, floating)(a, b, flags=_CONTRACT))
        return Value(self.k, getattr(build, integer)(a, b))

    def __add__(self, other: Any) -> Value:
        if isinstance(other, int) and other == 0 and not self.is_float:
            return self
        return self._binary(other, "add", "fadd")

    def __sub__(self, other: Any) -> Value:
        if isinstance(other, int) and other == 0 and not self.is_float:
            return self
        return self._binary(other, "sub", "fsub")

    def __mul__(self, other: Any) -> Value:
        if isinstance(other, int) and other == 1 and not self.is_float:
            return self
        return self._binary(other, "mul", "fmul")

    def __truediv__(self, other: Any) -> Value:
        return self._binary(other, "sdiv", "fdiv")

    def __rtruediv__(self, other: Any) -> Value:
        return self._binary(other, "sdiv", "fdiv", swap=True)

    def __floordiv__(self, other: Any) -> Value:
        """Quotient of two integers that are not negative."""
        return self._binary(other, "udiv", "fdiv")

    def __mod__(self, other: Any) -> Value:
        """Remainder of two integers that are not negative."""
        return self._binary(other, "urem", "frem")

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Value:
        return self._binary(other, "sub", "fsub", swap=True)

    def __neg__(self) -> Value:
        build = self.k.b
        return Value(self.k, build.fneg(self.v) if self.is_float else build.neg(self.v))

    def __and__(self, other: Any) -> Value:
        return self._binary(other, "and_", "and_")

    def __or__(self, other: Any) -> Value:
        return self._binary(other, "or_", "or_")

    def __xor__(self, other: Any) -> Value:
        return self._binary(other, "xor", "xor")

    def __lshift__(self, other: Any) -> Value:
        return self._binary(other, "shl", "shl")

    def __rshift__(self, other: Any) -> Value:
        """Arithmetic shift to the right."""
        return self._binary(other, "ashr", "ashr")

    def __invert__(self) -> Value:
        return Value(self.k, self.k.b.not_(self.v))

    def _compare(self, operator: str, other: Any) -> Value:
        if isinstance(other, Value) and other.lanes > 1 and self.lanes == 1:
            return self.k.splat(self, other.lanes)._compare(operator, other)
        b = self._lift(other)
        build = self.k.b
        if self.is_float:  # ordered, but for !=: a NaN differs from everything
            compare = build.fcmp_unordered if operator == "!=" else build.fcmp_ordered
            return Value(self.k, compare(operator, self.v, b))
        return Value(self.k, build.icmp_signed(operator, self.v, b))

    def __lt__(self, other: Any) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Value:
        return self._compare(">=", other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._compare("!=", other)

    def min(self, other: Any) -> Value:
        """The smaller one; of two floating-point numbers the second where they are unordered."""
        return self.k.select(self < other, self, other)

    def max(self, other: Any) -> Value:
        """The greater one; of two floating-point numbers the second where they are unordered."""
        return self.k.select(self > other, self, other)


class Register:
    """A value that changes: ``+=`` updates it in place. LLVM keeps it in a register."""

    __slots__ = ("k", "slot", "type")

    def __init__(self, k: Emitter, initial: Value) -> None:
        self.k, self.type = k, initial.v.type
        with k.b.goto_entry_block():
            self.slot = k.b.alloca(self.type)
        self.set(initial)

    def get(self) -> Value:
        return Value(self.k, self.k.b.load(self.slot, typ=self.type))

    def set(self, value: Value) -> None:
        self.k.b.store(value.v, self.slot)

    def __iadd__(self, other: Any) -> Register:
        self.set(self.get() + other)
        return self


class Emitter:
    """Emits what a function computes with values: arithmetic, lanes, loops and branches. `b` is llvmlite's builder."""

    def __init__(self, module: ir.Module, node: ir.Function, isa: Isa) -> None:
        self.ir_module, self.node, self.isa = module, node, isa
        # the argument block, where the code takes extents from it, and what was loaded of them
        self.arguments: tuple[Extents, Any] | None = None
        self._loaded: dict[int, Value] = {}
        entry = node.append_basic_block("entry")
        body = node.append_basic_block("body")
        self.b = ir.IRBuilder(entry)
        self.b.branch(body)
        self.b.position_at_end(body)

    # ---- constants and conversions

    def lanes(self, dtype: str) -> int:
        return self.isa.lanes(dtype)

    def index(self, value: int | Value | Extent) -> Any:
        return self.integer(value).v

    def integer(self, value: int | Value | Extent) -> Value:
        if isinstance(value, Value):
            return value
        return self.extent(value) if isinstance(value, Extent) else Value(self, ir.Constant(INT, int(value)))

    def extent(self, extent: Extent) -> Value:
        """An extent of the problem, which is loaded from the argument block once, where the function begins."""
        if self.arguments is None:
            return Value(self, ir.Constant(INT, int(extent)))
        extents, block = self.arguments
        slot = extents.slot(extent.term)
        if slot not in self._loaded:
            with self.b.goto_entry_block():
                at = self.b.gep(block, [ir.Constant(INT, slot)], source_etype=INT)
                loaded = self.b.load(at, typ=INT, align=8)
                loaded.set_metadata("invariant.load", self.ir_module.add_metadata([]))
            self._loaded[slot] = Value(self, loaded)
        return self._loaded[slot]

    def constant(self, value: float, dtype: str, lanes: int = 1) -> Value:
        return Value(self, constant_of(vector_type(ELEMENTS[dtype], lanes), value))

    def splat(self, value: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if lanes == 1 or value.lanes == lanes:
            return value
        kind = vector_type(value.v.type, lanes)
        if isinstance(value.v, ir.Constant) and not isinstance(value.v.constant, str):
            return Value(self, ir.Constant(kind, value.v))
        nothing = undefined(kind)
        first = self.b.insert_element(nothing, value.v, INT32(0))
        return Value(self, self.b.shuffle_vector(first, nothing, integer_lanes(32, (0,) * lanes)))

    def iota(self, lanes: int) -> Value:
        """0, 1, 2, ... as 64-bit integers."""
        if lanes == 1:
            return self.integer(0)
        return Value(self, integer_lanes(64, tuple(range(lanes))))

    def mask(self, count: int | Value | Extent, lanes: int) -> Value:
        """Lanes whose number is below ``count``; a count may be negative or beyond the last lane."""
        if isinstance(count, Extent):
            count = self.extent(count)
        if isinstance(count, int):
            bits = [int(lane < count) for lane in range(lanes)]
            if lanes == 1:
                return Value(self, ir.Constant(BOOL, bits[0]))
            return Value(self, ir.Constant(vector_type(BOOL, lanes), bits))
        if lanes == 1:
            return count > 0
        bounded = count.max(-1).min(lanes)
        narrow = Value(self, self.b.trunc(bounded.v, INT32))
        steps = Value(self, integer_lanes(32, tuple(range(lanes))))
        return steps < self.splat(narrow, lanes)

    def convert(self, value: Value, dtype: str) -> Value:
        """Convert numbers to another element type (integers are signed), lane by lane."""
        target = vector_type(ELEMENTS[dtype], value.lanes)
        source, wanted = scalar_type(value.v.type), ELEMENTS[dtype]
        if source == wanted:
            return value
        to_float = isinstance(wanted, (ir.FloatType, ir.DoubleType))
        if value.is_float and to_float:
            grow = isinstance(wanted, ir.DoubleType)
            return Value(self, (self.b.fpext if grow else self.b.fptrunc)(value.v, target))
        if value.is_float:
            return Value(self, self.b.fptosi(value.v, target))
        if to_float:
            return Value(self, self.b.sitofp(value.v, target))
        grow = wanted.width > source.width
        return Value(self, (self.b.sext if grow else self.b.trunc)(value.v, target))

    def bitcast(self, value: Value, dtype: str) -> Value:
        """The same bits as another element type of the same width."""
        return Value(self, self.b.bitcast(value.v, vector_type(ELEMENTS[dtype], value.lanes)))

    # ---- arithmetic

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, in one rounding where the processor has it."""
        if not self.isa.has_fma:  # llvm.fma would become a call into the C library
            return a * b + c
        return self.intrinsic("llvm.fma", a, b, c)

    def rounded_product(self, a: Value, b: Value) -> Value:
        """a * b, rounded before it is added to anything: LLVM may not make a fused multiply-add of it."""
        return Value(self, self.b.fmul(a.v, b.v))

    def dot(self, unsigned: Value, signed: Value, sums: Value) -> Value:
        """sums + the four products of the 8-bit integers in each lane, which is of 32 bits; what is too large wraps.

        The integers of the first operand are taken as unsigned, those of the second as signed. Needs `Isa.has_dot`.
        """
        kind, bytes_ = sums.v.type, ir.VectorType(ELEMENTS["i8"], 4 * sums.lanes)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * sums.lanes}"
        function = self.declare(name, kind, [kind, bytes_, bytes_])
        a, b = (self.b.bitcast(operand.v, bytes_) for operand in (unsigned, signed))
        return Value(self, self.b.call(function, [sums.v, a, b]))

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An LLVM intrinsic overloaded on the type of its operands, such as "llvm.sqrt"."""
        kind = operands[0].v.type
        function = self.declare(f"{name}.{suffix(kind)}", kind, [o.v.type for o in operands])
        return Value(self, self.b.call(function, [o.v for o in operands]))

    def select(self, condition: Value, yes: Any, no: Any) -> Value:
        """``yes`` where the condition holds, else ``no``; one of them may be a Python number."""
        yes, no = (self.extent(x) if isinstance(x, Extent) else x for x in (yes, no))
        like = yes if isinstance(yes, Value) else no
        lanes = max(condition.lanes, yes.lanes if isinstance(yes, Value) else 1)
        lanes = max(lanes, no.lanes if isinstance(no, Value) else 1)
        kind = vector_type(scalar_type(like.v.type), lanes)

        def lift(x: Any) -> Any:
            return self.splat(x, lanes).v if isinstance(x, Value) else constant_of(kind, x)

        return Value(self, self.b.select(condition.v, lift(yes), lift(no)))

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Lanes picked from the lanes of ``a`` followed by those of ``b``."""
        return Value(self, self.b.shuffle_vector(a.v, b.v, integer_lanes(32, tuple(lanes))))

    def join(self, parts: Sequence[Value]) -> Value:
        """Vectors one behind the other, as many as a power of two, as one wide vector."""
        if len(parts) == 1:
            return parts[0]
        half = len(parts) // 2
        low, high = self.join(parts[:half]), self.join(parts[half:])
        if low.lanes == 1:
            return self.insert(self.insert(self.splat(low, 2), low, 0), high, 1)
        return self.shuffle(low, high, range(2 * low.lanes))

    def split(self, value: Value, lanes: int) -> list[Value]:
        """A wide vector as vectors of ``lanes``."""
        if value.lanes == lanes:
            return [value]
        if lanes == 1:
            return [self.extract(value, lane) for lane in range(value.lanes)]
        return [
            self.shuffle(value, value, range(start, start + lanes)) for start in range(0, value.lanes, lanes)
        ]

    def spread_mask(self, mask: Value, stride: int, part: int) -> Value:
        """One part of the mask of ``stride`` vectors in which every stride-th element is a lane of ``mask``."""
        lanes = mask.lanes
        source = [(part * lanes + j) // stride for j in range(lanes)]
        hit = [int((part * lanes + j) % stride == 0) for j in range(lanes)]
        chosen = self.shuffle(mask, mask, source)
        return chosen & Value(self, ir.Constant(vector_type(BOOL, lanes), hit))

    def pick_every(self, parts: Sequence[Value], stride: int) -> Value:
        """Every stride-th lane of consecutive vectors, as one vector."""
        lanes = parts[0].lanes
        result = parts[0]
        for part, vector in enumerate(parts):
            # lanes found so far stay; those that lie in this vector come from it
            pattern = [
                lanes + i * stride - part * lanes if (i * stride) // lanes == part else i
                for i in range(lanes)
            ]
            result = self.shuffle(result, vector, pattern)
        return result

    def extract(self, value: Value, lane: int) -> Value:
        return value if value.lanes == 1 else Value(self, self.b.extract_element(value.v, INT32(lane)))

    def insert(self, value: Value, element: Value, lane: int) -> Value:
        return Value(self, self.b.insert_element(value.v, element.v, INT32(lane)))

    def reduce(self, value: Value, operation: str = "add") -> Value:
        """Combine the lanes pairwise by "add", "max" or "min"."""
        lanes = value.lanes
        while lanes > 1:
            half = lanes // 2
            low = self.shuffle(value, value, range(half)) if half > 1 else self.extract(value, 0)
            high = self.shuffle(value, value, range(half, lanes)) if half > 1 else self.extract(value, 1)
            value = low + high if operation == "add" else getattr(low, operation)(high)
            lanes = half
        return value

    # ---- state and control

    def register(self, initial: Value) -> Register:
        return Register(self, initial)

    def range(
        self, start: int | Value, stop: int | Value | None = None, step: int | Value = 1
    ) -> Iterator[Value]:
        """``for i in k.range(...)``: a run-time loop; its body is traced once. The step is positive."""
        if stop is None:
            start, stop = 0, start
        if (
            isinstance(start, int)
            and isinstance(stop, int)
            and isinstance(step, int)
            and stop - start <= step
        ):
            if start < stop:
                yield self.integer(start)  # at most one turn: no loop
            return
        b = self.b
        before = b.block
        head, body, done = (self.node.append_basic_block(n) for n in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(INT)
        i.add_incoming(self.index(start), before)
        b.cbranch(b.icmp_signed("<", i, self.index(stop)), body, done)
        b.position_at_end(body)
        yield Value(self, i)
        i.add_incoming(b.add(i, self.index(step), flags=("nsw",)), b.block)
        b.branch(head)
        b.position_at_end(done)

    @contextlib.contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """``with k.when(c)``: the body runs where the (scalar) condition holds."""
        then, after = self.node.append_basic_block("then"), self.node.append_basic_block("after")
        self.b.cbranch(condition.v, then, after)
        self.b.position_at_end(then)
        yield
        self.b.branch(after)
        self.b.position_at_end(after)

    def barrier(self) -> None:
        """Keep LLVM from carrying what was loaded before over to later loads (no instruction is made).

        Where neighbouring steps load the same elements, carrying them costs more registers than there are.
        """
        kind = ir.FunctionType(ir.VoidType(), [])
        self.b.asm(kind, "", "~{memory}", [], side_effect=True)

    def declare(self, name: str, result: ir.Type, parameters: Sequence[ir.Type]) -> ir.Function:
        known = self.ir_module.globals.get(name)
        if known is not None:
            return known
        return ir.Function(self.ir_module, ir.FunctionType(result, list(parameters)), name)
