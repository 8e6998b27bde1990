"""Attention on GPUs, forward and backward: every size, mask, type and order in memory against the float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import cases
from attention_cases import CASES, DIRECTIONS, SIZES, attention, inputs_for
from cases import ARRANGEMENTS, arranged
from examples import examples
from harness import check
from jitdnn.kernels.cuda.attention import plan
from jitdnn.kernels.cuda.attention.algorithm import Flash, FlashInThree
from jitdnn.kernels.cuda.attention.code import source_of
from jitdnn.kernels.cuda.attention.plan import Tile
from jitdnn.problems import Attention, Problem
from strategies import attentions

ALIGNED = 1024  # elements in front of a tensor, so that it begins at a multiple of 16 bytes
FLASH = ("flash", "flash_three")


def checked(problem: Problem, device: Any, only: tuple[str, ...] = FLASH) -> set[str]:
    return check(problem, device, inputs=inputs_for(problem), only=only)


def is_empty(problem: Problem) -> bool:
    assert isinstance(problem, Attention)
    return problem.q.size == 0 or problem.k.size == 0


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("number", range(len(SIZES)))
def test_sizes(number: int, direction: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if number % 2:
        monkeypatch.setattr(cases, "GUARD", ALIGNED)
    dtype = ("f16", "bf16", "f32")[number % 3]
    problem = attention(f"{SIZES[number]} {dtype}", direction)
    wanted = set() if is_empty(problem) else set(FLASH) if dtype == "f32" else {"flash"}
    assert checked(problem, cuda_device) == wanted


@pytest.mark.parametrize(("direction", "words"), CASES)
def test_who_sees_what(words: str, direction: str, cuda_device: Any) -> None:
    assert checked(attention(f"n2 h2 t37 s103 d8 kvh1 {words} f16", direction), cuda_device) == {"flash"}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("number", range(len(SIZES)))
def test_sizes_on_ordinary_units(number: int, direction: str, device: Any) -> None:
    dtype = ("f32", "f64", "bf16", "f16")[number % 4]
    assert checked(attention(f"{SIZES[number]} {dtype}", direction), device, ("tiled",)) == {"tiled"}


@pytest.mark.parametrize(("direction", "words"), CASES)
def test_who_sees_what_on_ordinary_units(words: str, direction: str, device: Any) -> None:
    problem = attention(f"n2 h2 t37 s103 d9 kvh1 {words}", direction)
    assert checked(problem, device, ("tiled",)) == {"tiled"}


FEW = {
    "one": "n2 h2 t1 s700 d16 f16",
    "heads of a group": "n1 h6 t2 s900 d20 e5 kvh1 right0 past600 bf16",
    "wide": "n1 h4 t3 s300 d12 kvh1 addmask lengths32 f32",
    "nothing is seen": "n2 h1 t1 s700 d8 lengths32 hi64 f16",
}


@pytest.mark.parametrize("name", FEW)
def test_few_queries(name: str, cuda_device: Any) -> None:
    """Warps share the queries, which are those of all heads of a group, and thread blocks the keys."""
    problem = attention(FEW[name], "fwd")
    assert isinstance(problem, Attention)
    made = plan.plan_of(problem, cuda_device)
    assert made.tile.share
    assert made.splits > 1
    assert "flash" in checked(problem, cuda_device)


TILES = [
    ("fwd", Tile(4, 2, 32)), ("fwd", Tile(2, 1, 128)), ("fwd", Tile(1, 2, 32)), ("fwd", Tile(2, 2, 32, share=True)),
    ("bwd", Tile(2, 2, 32)), ("bwd", Tile(1, 1, 16)),
]  # fmt: skip


@pytest.mark.parametrize(("direction", "tile"), TILES)
def test_tiles(direction: str, tile: Tile, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    name = "forward_tiles" if direction == "fwd" else "backward_tiles"
    monkeypatch.setattr(plan, name, lambda problem, size, multiprocessors: (tile,))
    problem = attention("n1 h2 t75 s150 d16 left90 right20 past40 f16", direction)
    assert checked(problem, cuda_device) == {"flash"}


@pytest.mark.parametrize(
    "arrangement", [name for name in ARRANGEMENTS if name not in ("repeated", "overlapping")]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str, cuda_device: Any) -> None:
    problem = arranged(attention("n2 h2 t21 s18 d5 addmask lengths32 bf16", direction), arrangement)
    assert checked(problem, cuda_device, (*FLASH, "tiled")) == {"flash", "tiled"}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_heads_inside(direction: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    words = "n2 h3 t20 s35 d16 e24 q=nthd k=nthd v=nthd y=nthd f16"
    assert checked(attention(words, direction), cuda_device) == {"flash"}


@settings(
    max_examples=examples(4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(problem=attentions())
def test_any_attention(problem: Attention, cuda_device: Any) -> None:
    checked(problem, cuda_device, (*FLASH, "tiled"))


def test_refusals(cuda_device: Any) -> None:
    wide = attention("n1 h1 t3 s3 d257 f16", "fwd")
    assert "257" in str(Flash().refuse(wide, cuda_device))
    assert checked(wide, cuda_device, (*FLASH, "tiled")) == {"tiled"}
    assert "128" in str(Flash().refuse(attention("n1 h1 t3 s3 d129 f32", "bwd"), cuda_device))
    assert "f64" in str(Flash().refuse(attention("n1 h1 t3 s3 d4 f64", "fwd"), cuda_device))
    assert "exact" in str(FlashInThree().refuse(attention("n1 h1 t3 s3 d4 f16", "fwd"), cuda_device))


@pytest.mark.parametrize("words", ["d64 f16", "d128 bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compiles(words: str, direction: str, architecture: Any) -> None:
    """For the machines that there are, with no register spilled."""
    problem = attention(f"n2 h4 t200 s300 kvh2 right0 {words}", direction)
    assert isinstance(problem, Attention)
    architecture.compile(source_of(plan.plan_of(problem, architecture), 16, 16))
