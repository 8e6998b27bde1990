"""What vectors cannot do exactly, done for one lane after the other where a lane needs it.

The angle of a huge number is what is left of it after quarter turns (Payne and Hanek, 1983): x = m 2^e, and of the
binary places of 2 / pi only 192 matter, those that m 2^e moves to around the point. All before them are whole turns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import llvmlite.ir as ir

from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.types import INT

_WIDE = ir.IntType(128)
_PLACES = 1216  # binary places of 2 / pi that are kept, in words of 64
_QUARTER_TURN = math.pi / 2


def lane_by_lane(
    k: Builder,
    needed: Value,
    x: Value,
    results: Sequence[Value],
    dtypes: Sequence[str],
    body: Callable[[Builder, Value], Sequence[Value]],
) -> list[Value]:
    """The results, with those of the lanes that are ``needed`` as ``body`` computes them from x, an f64."""
    registers = [k.register(result) for result in results]
    lanes = x.lanes
    bits = needed.v if lanes == 1 else k.b.bitcast(needed.v, ir.IntType(lanes))
    with k.when(Value(k, bits) if lanes == 1 else Value(k, bits) != 0):
        given, found = k.local("f64", lanes), [k.local(dtype, lanes) for dtype in dtypes]
        given.store(x)
        for lane in k.range(lanes):
            for place, value in zip(found, body(k, given.load(lane)), strict=True):
                place.store(value, lane)
        for register, place, result in zip(registers, found, results, strict=True):
            register.set(k.select(needed, place.load(0, lanes), result))
    return [register.get() for register in registers]


def quarter_turns(k: Builder, x: Value) -> tuple[Value, Value]:
    """n modulo 4 and r of x = n pi / 2 + r with |r| <= pi / 4, for |x| of 1/2 and more, as (i64, f64)."""
    b = k.b
    bits = k.bitcast(k.intrinsic("llvm.fabs", x), "i64")
    exponent = (bits >> 52).max(1022)
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    # |x| = m 2^(exponent - 1075); of 2 / pi from here on 192 places: two before the point of the product, 190 after
    start = (_PLACES + 885) - exponent
    word, shift = start >> 6, (start & 63).v
    words = [k.b.load(_word(k, word + i), typ=INT, align=8) for i in range(4)]
    rest = b.sub(ir.Constant(INT, 63), shift)
    low, middle, high = (
        b.or_(b.lshr(words[i], shift), b.shl(b.shl(words[i + 1], ir.Constant(INT, 1)), rest))
        for i in range(3)
    )

    def wide(value: ir.Value) -> ir.Value:
        return b.zext(value, _WIDE)

    word_places = ir.Constant(_WIDE, 64)
    carried = b.add(b.mul(wide(middle), wide(m.v)), b.lshr(b.mul(wide(low), wide(m.v)), word_places))
    top = b.add(b.trunc(b.lshr(carried, word_places), INT), b.mul(high, m.v))
    n = b.lshr(b.add(top, ir.Constant(INT, 1 << 61)), ir.Constant(INT, 62))
    whole = b.or_(b.shl(wide(top), word_places), wide(b.trunc(carried, INT)))
    fraction = b.sub(whole, b.shl(wide(n), ir.Constant(_WIDE, 126)))
    is_negative = b.icmp_signed("<", fraction, ir.Constant(_WIDE, 0))
    size = b.select(is_negative, b.neg(fraction), fraction)
    # the first 64 places that are not zero: their first 53 make a number, the others another
    count = k.declare("llvm.ctlz.i128", _WIDE, [_WIDE, ir.IntType(1)])
    zeros = b.call(count, [size, ir.Constant(ir.IntType(1), 0)])
    first = b.trunc(b.lshr(b.shl(size, zeros), word_places), INT)
    near, far = (_number(k, b.and_(first, ir.Constant(INT, places))) for places in (-2048, 2047))
    scale = k.bitcast((961 - Value(k, b.trunc(zeros, INT))) << 52, "f64")
    lost = float(_quarter_turn() - Fraction(_QUARTER_TURN))
    r = (near * _QUARTER_TURN + (far * _QUARTER_TURN + near * lost)) * scale
    r = k.select(Value(k, is_negative), -r, r)
    turns = Value(k, n)
    return k.select(x < 0.0, (0 - turns) & 3, turns), k.select(x < 0.0, -r, r)


def _number(k: Builder, value: ir.Value) -> Value:
    return Value(k, k.b.uitofp(value, ir.DoubleType()))


def _word(k: Builder, number: Value) -> ir.Value:
    """The address of a word of 2 / pi, lowest first."""
    name = "two_over_pi"
    table = k.module.ir.globals.get(name)
    if table is None:
        places = int(1 / _quarter_turn() * (1 << _PLACES))
        words = [(places >> 64 * i) & ((1 << 64) - 1) for i in range(_PLACES // 64 + 1)]
        kind = ir.ArrayType(INT, len(words))
        table = ir.GlobalVariable(k.module.ir, kind, name)
        table.linkage, table.global_constant = "internal", True
        table.initializer = ir.Constant(kind, words)
    return k.b.gep(table, [ir.Constant(INT, 0), number.v])


@functools.cache
def _quarter_turn() -> Fraction:
    """pi / 2 to 1,400 binary places, by Machin's formula."""
    one = 1 << 1440

    def arctan(n: int) -> int:
        total, term, i = 0, one // n, 0
        while term:
            total += (-1) ** i * (term // (2 * i + 1))
            term //= n * n
            i += 1
        return total

    return Fraction(2 * (4 * arctan(5) - arctan(239)), one)
