"""Extents as arguments of compiled code: what was traced of one is right for all for which the guards hold."""

from __future__ import annotations

import json
import math
import operator
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel, first_extra
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load_for
from jitdnn.rtcg.extents import Extents, Variant
from jitdnn.rtcg.isa import isa
from jitdnn.rtcg.use import noting

NAMES = ("rows", "columns")
Steps = list[tuple[str, int, int]]
_steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "+",
                "-",
                "*",
                "//",
                "%",
                "min",
                "max",
                "when",
                "divmod",
                "abs",
                "share",
                "|",
                "&",
                "^",
                "<<",
                ">>",
                "~",
                "half",
                "power",
                "bits",
                "round",
            ]
        ),
        st.integers(0, 1),
        st.integers(-3, 9),
    ),
    min_size=1,
    max_size=8,
)
_sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))


def program(steps: Steps, given: tuple[Any, Any]) -> Any:
    """Integer arithmetic with decisions in it, of numbers or of extents."""
    value = given[0]
    for name, which, number in steps:
        other = given[which]
        if name in "+-*":
            value = {"+": operator.add, "-": operator.sub, "*": operator.mul}[name](value, other + number)
        elif name in ("//", "%", "divmod") and number:
            quotient, rest = divmod(value, number)
            value = quotient if name == "//" else rest if name == "%" else quotient * 2 + rest
        elif name in ("min", "max"):
            value = (min if name == "min" else max)(value, other * number)
        elif name == "when":
            value = value + 7 if value > other or value == number else 3 - value
        elif name == "abs":
            value = abs(value - 12)
        elif name == "share":
            value = -(-value // other)
        elif name in "|&^":
            value = {"|": operator.or_, "&": operator.and_, "^": operator.xor}[name](value, other | number)
        elif name in ("<<", ">>"):
            value = (operator.lshift if name == "<<" else operator.rshift)(value, number % 3) - (
                1 << (other % 3)
            )
        elif name == "~":
            value = ~value
        elif name == "half":
            value = int(value * 0.5) + int(1.5 - other)
        elif name == "power":
            value = value % 5 + 2 ** (other % 4) + (other % 4) ** 2
        elif name == "bits":
            value = value + other.bit_length()
        elif name == "round":
            value = round(value) + math.floor(other) + np.int64(number)
    return value


@given(steps=_steps, first=_sizes, second=_sizes)
@settings(max_examples=examples(300), deadline=None)
def test_guards_that_hold_promise_what_is_computed(steps, first, second):
    extents = Extents()
    made = program(steps, tuple(extents.extent(n, v) for n, v in zip(NAMES, first, strict=True)))
    if isinstance(made, int):
        slots = False
        assert made == program(steps, first)
    else:
        slots = True
        extents.slot(made.term)
    variant = Variant.from_json(Variant("0", *extents.noted()).to_json())
    assert variant is not None
    own, others = (dict(zip(NAMES, sizes, strict=True)) for sizes in (first, second))
    assert variant.takes(own)
    if slots:
        assert variant.integers(own) == [program(steps, first)]
    if variant.takes(others):
        assert (variant.integers(others) if slots else [made]) == [program(steps, second)]


def test_a_number_that_is_asked_for_is_promised():
    extents = Extents()
    rows = extents.extent("rows", 5)
    assert list(range(rows)) == [0, 1, 2, 3, 4]
    variant = Variant("0", *extents.noted())
    assert variant.takes({"rows": 5})
    assert not variant.takes({"rows": 6})


def test_limits_that_are_no_integers():
    extents = Extents()
    rows = extents.extent("rows", 5)
    assert rows < 5.5
    assert not rows > 5.5
    assert rows >= 4.5
    assert not rows <= 4.5
    variant = Variant("0", *extents.noted())
    assert [n for n in range(9) if variant.takes({"rows": n})] == [5]


def test_extents_of_two_modules_differ():
    a, b = Extents().extent("rows", 5), Extents().extent("rows", 5)
    assert a != b
    assert a == 5


def test_a_name_of_two_values_is_two_names():
    extents = Extents()
    assert str(extents.extent("rows", 5)) == str(extents.extent("rows", 5)) == "rows"
    assert str(extents.extent("rows", 6)) != "rows"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1, 2]",
        b'["k", [["<", "a"]], []]',
        b'["k", [], [["?", "a", 1]]]',
        b'["k", [], [null]]',
        b"\xff",
    ],
)
def test_what_is_no_variant_is_none(content):
    assert Variant.from_json(content) is None


def test_a_variant_of_an_unknown_comparison_is_none():
    assert Variant.from_json(json.dumps(["k", [["!", "a", 1, True]], []]).encode()) is None


def _fill(extents: Extents, rows: Any) -> Callable[[Module], None]:
    """A kernel that stores the number of rows behind a call, 1 of them times."""

    def trace(module: Module) -> None:
        with module.function("store", to="i64") as (k, (to,), store):
            to.store(k.integer(rows * 10 + 1))
        with module.task("fill") as (k, args, _task, _thread):
            to = Arguments(k, args, 1).pointer(0, "i64")
            if rows > 4:
                for i in k.range(rows):
                    k.call(store, to + i)
            else:
                for i in range(rows):
                    k.call(store, to + i)

    return trace


def test_one_module_serves_several_extents():
    name = secrets.token_hex(8)  # code that no earlier run has left behind

    def filled(rows: int) -> tuple[list[int], int]:
        extents = Extents()
        extents.first_slot = first_extra(1)
        extent = extents.extent("rows", rows)
        with noting() as use:
            library, integers = load_for("test", name, extents, isa("host"), _fill(extents, extent))
        memory = np.full(rows + 2, -1)
        CpuKernel(library, [("fill", 1)], 1, 1, integers)(None, [memory.ctypes.data + 8], 1.0, 0.0, 0)
        assert memory[0] == memory[-1] == -1, "beside its memory"
        return memory[1:-1].tolist(), len(use.compiled)

    assert filled(9) == ([91] * 9, 1)
    assert filled(6) == ([61] * 6, 0)
    assert filled(23) == ([231] * 23, 0)
    assert filled(3) == ([31] * 3, 1), "a decision came out otherwise"
    assert filled(2) == ([21] * 2, 1), "a loop was unrolled"
    assert filled(3) == ([31] * 3, 0)
