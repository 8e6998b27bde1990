"""Random problems for kernels of CUDA devices: some of each operation, and faults that are planted, in the emulator."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.draw import Draw
from fuzz.kernels.check import _met
from fuzz.kernels.plans import any_plan
from fuzz.kernels.products import FUSED, KINDS, Family, Kind
from fuzz.operations import OPERATIONS
from fuzz.problem import Fault
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import edges, paired
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import Axis

KERNELS = sorted(name for name, one in OPERATIONS.items() if one.targets)


@pytest.fixture(scope="module")
def emulated() -> Any:
    """What a problem asks of a target: the device."""
    from emulation.device import EmulatedCudaDevice, missing

    if reason := missing():
        pytest.skip(reason)
    return SimpleNamespace(gpu=EmulatedCudaDevice())


@pytest.mark.parametrize("name", KERNELS)
def test_some_problems(name: str, emulated: Any) -> None:
    for number in range(2):
        family: Any = OPERATIONS[name].make(Draw(f"{name}/{number}"))
        for one in range(2):
            family.one(Draw(f"{name}/{number}/{one}")).check(emulated)


def test_every_kernel_is_there_for_some_direction() -> None:
    for kind in (*KINDS, *FUSED):
        assert any(kind.make(direction) is not None for direction in kind.wish.directions), kind.name


@pytest.mark.parametrize("kind", [*KINDS, *FUSED], ids=lambda kind: kind.name)
def test_every_kernel_takes_some_problems(kind: Kind, emulated: Any) -> None:
    for number in range(60):
        draw = Draw(f"{kind.name}/{number}")
        wish = kind.wanted.narrowed(draw)
        if kind.make(wish.directions[0]) is None:
            continue
        fusion = None if kind in KINDS else "prologue" if wish.directions == ("bwd_filter",) else "sums"
        one = Family(kind, wish, 3, fusion).one(draw)
        if one.algorithm.refuse(one.problem, emulated.gpu, one.epilogue) is None:
            return
    pytest.fail("all are refused")


#: what few plans have, by the kernels that are there for it
SELDOM = {
    "wgmma shared evenly": "data: parts of equal length",
    "wgmma kept across": "data: B kept of several tiles across",
    "wgmma filter shared evenly": "filter: parts of equal length",
    "wgmma pairs": "data: pairs of phases",
    "wgmma plain": "data: clusters",
    "wgmma filter": "filter: split",
}


@pytest.mark.parametrize("name", SELDOM)
def test_plans_that_few_problems_have_are_met(name: str, emulated: Any) -> None:
    kind = next(one for one in KINDS if one.name == name)
    met: set[str] = set()
    for number in range(150):
        draw = Draw(f"{name}/{number}")
        one = Family(kind, kind.wanted.narrowed(draw), number, None).one(draw)
        facts = replace(emulated.gpu.facts, multiprocessors=one.multiprocessors)
        device = replace(emulated.gpu, name=f"{name} {number}", facts=facts)
        with any_plan(one.plan):
            if one.algorithm.refuse(one.problem, device, one.epilogue) is None:
                met.update(_met(name, one.algorithm, one.problem, device, one.epilogue))
        if SELDOM[name] in met:
            return
    pytest.fail(f"not met: {sorted(met)}")


def first_fault(name: str, target: Any, **wish: Any) -> Fault | None:
    """That of a few problems for a kernel, all of one plan."""
    kind = next(one for one in KINDS if one.name == name)
    usual = replace(kind.wish, dtypes=("bf16",), groups=(1,), ranks=(2,), layouts=("nhwc",), **wish)
    family = Family(kind, replace(usual, results=("bf16",)), 3, None)
    for number in range(8):
        try:
            family.one(Draw(f"{name}/{number}")).check(target)
        except Fault as fault:
            return fault
    return None


INSIDE: dict[str, Any] = {
    "directions": ("fwd",),
    "channels": (64,),
    "outputs": (64,),
    "stride": (1,),
    "dilation": (1,),
}


def test_a_wrong_tap_of_an_edge_is_found(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_fault("wgmma inside", emulated, **INSIDE) is None

    def part(axis: Axis, run: Any) -> Axis:
        return replace(right(axis, run), first_tap=axis.first_tap)  # in place of the first tap of the run

    right = edges._part
    monkeypatch.setattr(edges, "_part", part)
    fault = first_fault("wgmma inside", emulated, **INSIDE)
    assert fault is not None
    assert fault.kind == "wrong"
    assert "of whole numbers are not exact" in str(fault)


def test_exchanged_halves_of_a_pair_are_found(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: dict[str, Any] = {"channels": (64,), "outputs": (64,), "taps": (3,), "last": ((3,), (2,), (1,))}
    pairs |= {"padding": (1,), "extents": (8, 6, 10), "dilation": (1,), "stride": (2,)}
    assert first_fault("wgmma pairs", emulated, **pairs) is None
    right = paired.Pair.numbers

    def numbers(pair: paired.Pair, step: int) -> tuple[int, ...]:
        *front, first, second = right(pair, step)
        return (*front, second, first)

    monkeypatch.setattr(paired.Pair, "numbers", numbers)
    fault = first_fault("wgmma pairs", emulated, **pairs)
    assert fault is not None
    assert fault.kind == "wrong"
