"""Kernels written as ordinary Python that traces to LLVM IR.

A Python ``for`` unrolls; ``for i in k.range(n)`` is a run-time loop whose body is traced once;
``with k.when(condition)`` is a branch; ``acc += a * b`` on a register is an update in place. Values carry
their LLVM type, so one kernel serves every element type and vector width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import llvmlite.ir as ir

from jitdnn.rtcg.isa import Isa

INT = ir.IntType(64)
INT32 = ir.IntType(32)
BOOL = ir.IntType(1)
POINTER = ir.PointerType()
ELEMENTS: dict[str, ir.Type] = {
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "i64": INT,
    "i32": INT32,
    "u8": ir.IntType(8),
    "pointer": POINTER,
}
_SUFFIX = {"float": "f32", "double": "f64"}
# Sums may be contracted to fused multiply-adds; nothing is reordered, so that results do not depend on LLVM.
_CONTRACT = ("contract",)
_SHUFFLED_STRIDES = (2, 3, 4)  # here loading whole vectors and shuffling is faster than a gather

Int = "int | Value"


class Value:
    """An integer, a truth value, a floating-point number or a vector of them, with Python's operators."""

    __slots__ = ("k", "v")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, k: Builder, v: Any) -> None:
        self.k, self.v = k, v

    @property
    def is_float(self) -> bool:
        return isinstance(_scalar(self.v.type), (ir.FloatType, ir.DoubleType))

    @property
    def lanes(self) -> int:
        """Number of lanes; 1 for a scalar."""
        return int(self.v.type.count) if isinstance(self.v.type, ir.VectorType) else 1

    def _lift(self, other: Any) -> Any:
        if not isinstance(other, Value):
            return _constant(self.v.type, other)
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

    def __init__(self, k: Builder, initial: Value) -> None:
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


class Pointer:
    """A pointer to elements of one type; offsets count elements. Nothing is assumed of its alignment."""

    __slots__ = ("dtype", "k", "v")

    def __init__(self, k: Builder, v: Any, dtype: str) -> None:
        self.k, self.v, self.dtype = k, v, dtype

    @property
    def element(self) -> ir.Type:
        return ELEMENTS[self.dtype]

    def __add__(self, offset: int | Value) -> Pointer:
        if isinstance(offset, int) and offset == 0:
            return self
        moved = self.k.b.gep(self.v, [self.k.index(offset)], source_etype=self.element)
        return Pointer(self.k, moved, self.dtype)

    def load(self, offset: int | Value = 0, lanes: int = 1, mask: Value | None = None) -> Value:
        """``lanes`` consecutive elements; those whose ``mask`` bit is off are not read and are zero."""
        k, at = self.k, (self + offset).v
        kind = _vector(self.element, lanes)
        if mask is None:
            return Value(k, k.b.load(at, align=_align(self.element), typ=kind))
        if lanes == 1:
            return self._load_if(offset, mask)
        suffix = _suffix(kind)
        function = k.declare(f"llvm.masked.load.{suffix}.p0", kind, [POINTER, _vector(BOOL, lanes), kind])
        zero = ir.Constant(kind, [0] * lanes if _is_integer(self.element) else [0.0] * lanes)
        return Value(k, k.b.call(function, [at, mask.v, zero]))

    def _load_if(self, offset: int | Value, mask: Value) -> Value:
        result = self.k.register(self.k.constant(0, self.dtype))
        with self.k.when(mask):
            result.set(self.load(offset))
        return result.get()

    def store(self, value: Value, offset: int | Value = 0, mask: Value | None = None) -> None:
        """Store a scalar or consecutive lanes; those whose ``mask`` bit is off are not touched."""
        k, at = self.k, (self + offset).v
        if mask is None:
            k.b.store(value.v, at, align=_align(self.element))
        elif value.lanes == 1:
            with k.when(mask):
                self.store(value, offset)
        else:
            kind = value.v.type
            function = k.declare(
                f"llvm.masked.store.{_suffix(kind)}.p0",
                ir.VoidType(),
                [kind, POINTER, _vector(BOOL, value.lanes)],
            )
            k.b.call(function, [value.v, at, mask.v])

    def stream(self, value: Value, offset: int | Value = 0) -> None:
        """Store past the caches; the address must be aligned to the whole vector."""
        k, at = self.k, (self + offset).v
        node = k.b.store(value.v, at, align=_align(self.element) * value.lanes)
        node.set_metadata("nontemporal", k.module.ir.add_metadata([INT32(1)]))

    def splat(self, offset: int | Value, lanes: int) -> Value:
        """One element in every lane."""
        return self.k.splat(self.load(offset), lanes)

    def load_strided(
        self, offset: int | Value, stride: int | Value, lanes: int, mask: Value | None = None
    ) -> Value:
        """``lanes`` elements at ``stride``, those whose ``mask`` bit is off as zero (at stride 0 it is ignored).

        One load at stride 1, a broadcast at 0, shuffled loads at a few small strides, else a gather.
        """
        if isinstance(stride, int) and stride == 1:
            return self.load(offset, lanes, mask)
        if isinstance(stride, int) and stride == 0:
            return self.splat(offset, lanes)
        if lanes == 1:
            return self.load(offset, 1, mask)
        k, kind = self.k, _vector(self.element, lanes)
        everything = k.mask(lanes, lanes) if mask is None else mask
        if isinstance(stride, int) and stride in _SHUFFLED_STRIDES:
            parts = [
                self.load(offset + part * lanes, lanes, k.spread_mask(everything, stride, part))
                for part in range(stride)
            ]
            return k.pick_every(parts, stride)
        addresses = self._addresses(offset, stride, lanes)
        function = k.declare(
            f"llvm.masked.gather.{_suffix(kind)}.v{lanes}p0",
            kind,
            [addresses.type, _vector(BOOL, lanes), kind],
        )
        zero = ir.Constant(kind, [0] * lanes if _is_integer(self.element) else [0.0] * lanes)
        return Value(k, k.b.call(function, [addresses, everything.v, zero]))

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
        addresses = self._addresses(offset, stride, lanes)
        function = k.declare(
            f"llvm.masked.scatter.{_suffix(value.v.type)}.v{lanes}p0",
            ir.VoidType(),
            [value.v.type, addresses.type, _vector(BOOL, lanes)],
        )
        k.b.call(function, [value.v, addresses, everything.v])

    def _addresses(self, offset: int | Value, stride: int | Value, lanes: int) -> Any:
        k = self.k
        steps = k.iota(lanes) * (stride if isinstance(stride, Value) else k.integer(stride))
        addresses = k.b.gep((self + offset).v, [steps.v], source_etype=self.element)
        addresses.type = ir.VectorType(POINTER, lanes)  # llvmlite takes the scalar base's type
        return addresses


class Function:
    """A function of the module that traced code may call."""

    def __init__(self, node: ir.Function) -> None:
        self.node = node


class Module:
    """One unit of compilation: functions traced for one instruction set."""

    def __init__(self, name: str, isa: Isa) -> None:
        self.ir = ir.Module(name)
        self.ir.triple = isa.triple
        self.name, self.isa = name, isa
        self._raw: str | None = None

    def write(self, text: str) -> None:
        """Make LLVM IR written by hand the whole of this module."""
        self._raw = f'target triple = "{self.isa.triple}"\n{text}'

    @property
    def text(self) -> str:
        """The module as LLVM IR."""
        return str(self.ir) if self._raw is None else self._raw

    @contextlib.contextmanager
    def task(self, name: str) -> Iterator[tuple[Builder, Pointer, Value, Value]]:
        """Trace ``void name(i64* args, i64 task, i64 thread)``: yields (k, args, task, thread)."""
        with self.function(name, args="i64", task=None, thread=None) as (k, (args, task, thread), _):
            yield k, args, task, thread

    @contextlib.contextmanager
    def function(
        self, name: str, *, inline: bool = False, may_alias: bool = False, **parameters: str | None
    ) -> Iterator[tuple[Builder, list[Any], Function]]:
        """Trace a function; a parameter is a pointer to the named element type, or an integer if None.

        Yields the builder, the parameters in order, and the function, to call it from others. Distinct
        pointer parameters must not overlap where one is written, unless ``may_alias`` is said; only then
        does ``Builder.barrier`` hold for loads through them.
        """
        types = [INT if dtype is None else POINTER for dtype in parameters.values()]
        node = ir.Function(self.ir, ir.FunctionType(ir.VoidType(), types), name)
        node.attributes.add("nounwind")
        node.attributes.add("alwaysinline" if inline else "noinline")
        if inline:
            node.linkage = "internal"
        k = Builder(self, node)
        values: list[Any] = []
        for argument, (label, dtype) in zip(node.args, parameters.items(), strict=True):
            argument.name = label
            if dtype is None:
                values.append(Value(k, argument))
            else:
                if not may_alias:
                    argument.add_attribute("noalias")
                values.append(Pointer(k, argument, dtype))
        yield k, values, Function(node)
        k.b.ret_void()


class Builder:
    """Traces the body of one function. Customarily called ``k``."""

    def __init__(self, module: Module, node: ir.Function) -> None:
        self.module, self.node, self.isa = module, node, module.isa
        entry = node.append_basic_block("entry")
        body = node.append_basic_block("body")
        self.b = ir.IRBuilder(entry)
        self.b.branch(body)
        self.b.position_at_end(body)

    # ---- constants and conversions

    def lanes(self, dtype: str) -> int:
        return self.isa.lanes(dtype)

    def index(self, value: int | Value) -> Any:
        return value.v if isinstance(value, Value) else ir.Constant(INT, int(value))

    def integer(self, value: int | Value) -> Value:
        return value if isinstance(value, Value) else Value(self, ir.Constant(INT, int(value)))

    def constant(self, value: float, dtype: str, lanes: int = 1) -> Value:
        return Value(self, _constant(_vector(ELEMENTS[dtype], lanes), value))

    def splat(self, value: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if lanes == 1 or value.lanes == lanes:
            return value
        kind = _vector(value.v.type, lanes)
        if isinstance(value.v, ir.Constant) and not isinstance(value.v.constant, str):
            return Value(self, ir.Constant(kind, [value.v.constant] * lanes))
        nothing = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(nothing, value.v, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
        return Value(self, self.b.shuffle_vector(first, nothing, zeros))

    def iota(self, lanes: int) -> Value:
        """0, 1, 2, ... as 64-bit integers."""
        if lanes == 1:
            return self.integer(0)
        return Value(self, ir.Constant(ir.VectorType(INT, lanes), list(range(lanes))))

    def mask(self, count: int | Value, lanes: int) -> Value:
        """Lanes whose number is below ``count``; a count may be negative or beyond the last lane."""
        if isinstance(count, int):
            bits = [int(lane < count) for lane in range(lanes)]
            if lanes == 1:
                return Value(self, ir.Constant(BOOL, bits[0]))
            return Value(self, ir.Constant(_vector(BOOL, lanes), bits))
        if lanes == 1:
            return count > 0
        bounded = count.max(-1).min(lanes)
        narrow = Value(self, self.b.trunc(bounded.v, INT32))
        steps = Value(self, ir.Constant(ir.VectorType(INT32, lanes), list(range(lanes))))
        return steps < self.splat(narrow, lanes)

    def convert(self, value: Value, dtype: str) -> Value:
        """Convert numbers to another element type (integers are signed), lane by lane."""
        target = _vector(ELEMENTS[dtype], value.lanes)
        source, wanted = _scalar(value.v.type), ELEMENTS[dtype]
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
        return Value(self, self.b.bitcast(value.v, _vector(ELEMENTS[dtype], value.lanes)))

    # ---- arithmetic

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, in one rounding where the processor has it."""
        if not self.isa.has_fma:  # llvm.fma would become a call into the C library
            return a * b + c
        return self.intrinsic("llvm.fma", a, b, c)

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An LLVM intrinsic overloaded on the type of its operands, such as "llvm.sqrt"."""
        kind = operands[0].v.type
        function = self.declare(f"{name}.{_suffix(kind)}", kind, [o.v.type for o in operands])
        return Value(self, self.b.call(function, [o.v for o in operands]))

    def select(self, condition: Value, yes: Any, no: Any) -> Value:
        """``yes`` where the condition holds, else ``no``; one of them may be a Python number."""
        like = yes if isinstance(yes, Value) else no
        lanes = max(condition.lanes, yes.lanes if isinstance(yes, Value) else 1)
        lanes = max(lanes, no.lanes if isinstance(no, Value) else 1)
        kind = _vector(_scalar(like.v.type), lanes)

        def lift(x: Any) -> Any:
            return self.splat(x, lanes).v if isinstance(x, Value) else _constant(kind, x)

        return Value(self, self.b.select(condition.v, lift(yes), lift(no)))

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Lanes picked from the lanes of ``a`` followed by those of ``b``."""
        pattern = ir.Constant(ir.VectorType(INT32, len(lanes)), list(lanes))
        return Value(self, self.b.shuffle_vector(a.v, b.v, pattern))

    def spread_mask(self, mask: Value, stride: int, part: int) -> Value:
        """The mask of part ``part`` of ``stride`` vectors in which every stride-th element is a lane of ``mask``."""
        lanes = mask.lanes
        source = [(part * lanes + j) // stride for j in range(lanes)]
        hit = [int((part * lanes + j) % stride == 0) for j in range(lanes)]
        chosen = self.shuffle(mask, mask, source)
        return chosen & Value(self, ir.Constant(_vector(BOOL, lanes), hit))

    def pick_every(self, parts: Sequence[Value], stride: int) -> Value:
        """Every stride-th lane of consecutive vectors, as one vector."""
        lanes = parts[0].lanes
        result = parts[0]
        for part, vector in enumerate(parts):
            # lanes found so far stay; those that lie in this vector come from it
            pattern = [
                lanes + i * stride - part * lanes if (i * stride) // lanes == part else i for i in range(lanes)
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

    def range(self, start: int | Value, stop: int | Value | None = None, step: int | Value = 1) -> Iterator[Value]:
        """``for i in k.range(...)``: a run-time loop; its body is traced once. The step is positive."""
        if stop is None:
            start, stop = 0, start
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int) and stop - start <= step:
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

    def call(self, function: Function, *arguments: int | Value | Pointer) -> None:
        self.b.call(
            function.node, [a.v if isinstance(a, Pointer) else self.index(a) for a in arguments]
        )

    def barrier(self) -> None:
        """Keep LLVM from carrying what was loaded before over to later loads (no instruction is made).

        Where neighbouring steps load the same elements, carrying them costs more registers than there are.
        """
        kind = ir.FunctionType(ir.VoidType(), [])
        self.b.asm(kind, "", "~{memory}", [], side_effect=True)

    def local(self, dtype: str, count: int) -> Pointer:
        """``count`` elements on the stack, aligned to 64 bytes. Keep them few."""
        with self.b.goto_entry_block():
            slot = self.b.alloca(ELEMENTS[dtype], size=INT32(count))
            slot.align = 64
        return Pointer(self, slot, dtype)

    def pointer(self, args: Pointer, slot: int | Value, dtype: str) -> Pointer:
        """The pointer in a slot of the argument block, as one to elements of ``dtype``."""
        at = (args + slot).v
        return Pointer(self, self.b.load(at, typ=POINTER, align=8), dtype)

    def number(self, args: Pointer, slot: int, dtype: str) -> Value:
        """The double in a slot of the argument block, rounded to ``dtype``."""
        at = (args + slot).v
        return self.convert(Value(self, self.b.load(at, typ=ELEMENTS["f64"], align=8)), dtype)

    def declare(self, name: str, result: ir.Type, parameters: Sequence[ir.Type]) -> ir.Function:
        known = self.module.ir.globals.get(name)
        if known is not None:
            return known
        return ir.Function(self.module.ir, ir.FunctionType(result, list(parameters)), name)


def _scalar(kind: ir.Type) -> ir.Type:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def _vector(element: ir.Type, lanes: int) -> ir.Type:
    return element if lanes == 1 else ir.VectorType(element, lanes)


def _is_integer(kind: ir.Type) -> bool:
    return isinstance(_scalar(kind), ir.IntType)


def _constant(kind: ir.Type, value: float) -> ir.Constant:
    number: Any = int(value) if _is_integer(kind) else float(value)
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _suffix(kind: ir.Type) -> str:
    """LLVM's mangling of a type, such as "v16f32"."""
    element = _scalar(kind)
    name = f"i{element.width}" if isinstance(element, ir.IntType) else _SUFFIX[str(element)]
    return f"v{kind.count}{name}" if isinstance(kind, ir.VectorType) else name


def _align(element: ir.Type) -> int:
    if isinstance(element, ir.IntType):
        return max(1, int(element.width) // 8)
    return {"float": 4, "double": 8}.get(str(element), 8)
