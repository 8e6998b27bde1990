"""Winograd's minimal filtering on the shapes that hurt it, in both orders, and its errors against their bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import conformance
from conformance import INSTRUCTION_SETS, arranged, compare, make_case, norm, run
from convolution_cases import convolution, fused
from jitdnn.devices.cpu import CpuDevice, host
from jitdnn.kernels.algorithm import Algorithm, Epilogue
from jitdnn.kernels.cpu.convolution.winograd.algorithm import Winograd2, Winograd4
from jitdnn.kernels.cpu.convolution.winograd.axes import TileAxis, Tiling, forwards
from jitdnn.kernels.cpu.convolution.winograd.plan import MAX_CHAIN, WinogradPlan, even_sizes
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.problems import Convolution, Problem, parse

BOTH = (Winograd4(), Winograd2())

SHAPES = [
    "n1 c1 h4 w4 k1 r3 s3",
    "n1 c66 h9 w14 k70 r3 s3 pad1 g2 nhwc",
    "n1 c600 h5 w6 k20 r3 s3 pad1",  # a sum in blocks
    "n3 c150 h9 w17 k5 r3 s3 pad1",  # data some channels at a time
    "n1 c8 h40 w7 k17 r7 s1 pad3x0 nhwc",
    "n1 c4 h30 w31 k18 r5 s7 stride2x3",  # few channels, several subfilters
    "n1 c5 h22 w19 k6 r7 s11 pad3",  # taps in segments
    "n2 c17 h14 w21 k18 r9 s7 pad1 dil1x2 nhwc",
    "n1 c3 w120 k9 s31 pad15",
    "n2 c35 h1 w90 k17 r1 s3 pad0x40 dil1x40 nhwc",  # channels last: tiles with padding are packed one by one
    "n1 c33 h11 w14 k9 r5 s5 stride2x1 pad6 dil1x3 nhwc",
    "n2 c6 h7 w8 k7 r3 s3 flip pad0:2x4:5",  # results that read nothing but padding
    "n1 c3 d5 h8 w7 k4 t3 r3 s3 pad1 stride2x1x1",
    "n1 c18 h7 w8 k11 r3 s3 pad1 f16 nchw x=nhwc",
    "n1 c9 h6 w7 k10 r3 s3 pad1 f64 nchw y=nhwc",
]
BACKWARD = [
    "n2 c3 h13 w11 k5 r3 s3 pad1",
    "n1 c20 h17 w16 k9 r2 s3 pad1 stride1x2",
    "n1 c6 h22 w19 k5 r7 s9 pad3 nhwc",
    "n1 c18 h8 w9 k7 r3 s3 pad2 dil2",
]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> list[Algorithm]:
    """The algorithms that `check` runs; the reference is compared with all the same."""
    chosen: list[Algorithm] = [Winograd4()]

    def listed(problem: Problem, target: str) -> list[Algorithm]:
        return chosen

    monkeypatch.setattr(conformance, "algorithms", listed)
    return chosen


@pytest.mark.parametrize(
    ("words", "direction"),
    [(words, "fwd") for words in SHAPES] + [(words, "bwd_data") for words in BACKWARD],
)
def test_awkward_shapes(words: str, direction: str, only: list[Algorithm]) -> None:
    assert conformance.check(convolution(words, direction)) == {"winograd_4"}


@pytest.mark.parametrize(
    ("words", "direction"), [("n1 c5 h22 w19 k6 r7 s11 pad3", "fwd"), (BACKWARD[0], "bwd_data")]
)
def test_small_tiles(words: str, direction: str, only: list[Algorithm]) -> None:
    only[:] = [Winograd2()]
    assert conformance.check(convolution(words, direction)) == {"winograd_2"}


@pytest.mark.parametrize("arrangement", conformance.ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, only: list[Algorithm]) -> None:
    only[:] = [Forced(Tiling((1, 2), (4, 2)), True)]
    problem = arranged(convolution("n2 c17 h9 w8 k18 r3 s3 pad1", "fwd"), arrangement)
    assert conformance.check(problem, scales=((-0.75, 0.5),))


@pytest.mark.parametrize("arrangement", ["backwards", "gaps"])
def test_few_channels_in_memory(arrangement: str, only: list[Algorithm]) -> None:
    """Few channels share vectors with the subfilters of a stride, wherever the pixels lie."""
    problem = arranged(convolution("n2 c3 h15 w14 k9 r3 s5 pad1 stride2x3", "fwd"), arrangement)
    assert Winograd4().plans(problem, host(1))[0].has_few_channels
    assert conformance.check(problem, scales=((-0.75, 0.5),))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("words", ["n2 c9 h9 w8 k19 r3 s3 pad1"])
def test_narrower_instruction_sets(words: str, cpu: str, only: list[Algorithm]) -> None:
    assert conformance.check(convolution(words, "fwd"), cpu=cpu, scales=((1.0, 0.0),))


@pytest.mark.parametrize(
    ("words", "expression"),
    [
        ("n2 c17 h9 w8 k35 r3 s3 pad1", "residual"),
        ("n1 c17 h7 w11 k33 r3 s3 pad1 nhwc", "residual"),
    ],
)
def test_epilogues(words: str, expression: str, only: list[Algorithm]) -> None:
    problem = convolution(words, "fwd")
    assert conformance.check(problem, fused(problem, expression))


@settings(
    max_examples=2,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    sizes=st.tuples(*[st.integers(3, 21)] * 2, *[st.integers(1, 40)] * 2),
    taps=st.tuples(*[st.integers(1, 5)] * 2),
    before=st.tuples(*[st.integers(0, 2)] * 4),
    steps=st.tuples(*[st.integers(1, 2)] * 2),
    layout=st.sampled_from(["nchw", "nhwc"]),
    direction=st.sampled_from(["fwd", "bwd_data"]),
)
def test_any_shape(
    sizes: tuple[int, ...], taps: tuple[int, ...], before: tuple[int, ...], steps: tuple[int, ...], layout: str,
    direction: str, only: list[Algorithm],
) -> None:  # fmt: skip
    h, w, c, k = sizes
    r, s = min(taps[0], h), min(taps[1], w)
    a, b, d, e = before
    words = f"n2 c{c} h{h} w{w} k{k} r{r} s{s} pad{a}:{b}x{d}:{e} stride{steps[0]}x{steps[1]} {layout}"
    conformance.check(convolution(words, direction), scales=((1.5, 0.5),))


# orders: which one runs is a matter of cost, so each is forced


class Forced(Winograd4):
    """F(m, r) in a given order, in blocks of so many tile rows."""

    def __init__(
        self, tiling: Tiling, is_data_resident: bool, mc_rows: int = 3, data_kc: int = 0, is_prepacked: bool = False
    ) -> None:  # fmt: skip
        super().__init__(is_prepacked)
        self.name = f"winograd_{tiling.m}_{is_data_resident}_{mc_rows}_{data_kc}"  # type: ignore[misc]
        self.sizes = tiling, is_data_resident, mc_rows, data_kc

    def with_kept_filter(self) -> Forced:
        tiling, _, mc_rows, data_kc = self.sizes
        return Forced(tiling, True, mc_rows, data_kc, True)

    def plans(
        self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None = None
    ) -> list[WinogradPlan]:
        c = forwards(lower_convolution(problem, epilogue.operands if epilogue else ())[0])
        p = WinogradPlan(c, device.isa, *self.sizes)
        return [p if p.is_data_resident else replace(p, mc_rows=p.tile_rows)]


SIZES = [
    ("n3 c70 h9 w13 k70 r3 s3 pad1", Tiling((1, 2), (4, 4))),  # several panels, Kc and tasks
    ("n2 c34 h9 w10 k22 r3 s3 pad1 g2", Tiling((1, 2), (3, 2))),
    ("n1 c12 h9 w20 k20 r5 s3 pad2x1 stride1x2 nhwc", Tiling((1, 2), (4, 3), (2, 1))),
    ("n1 c9 d4 h9 w10 k20 t2 r3 s7 pad0x1x3", Tiling((1, 2), (4, 2), (1, 3))),
]


@pytest.mark.parametrize("is_data_resident", [True, False])
@pytest.mark.parametrize(("words", "tiling"), SIZES)
def test_both_orders(words: str, is_data_resident: bool, tiling: Tiling, only: list[Algorithm]) -> None:
    only[:] = [Forced(tiling, is_data_resident)]
    assert conformance.check(convolution(words, "fwd"), scales=((0.5, 2.0),))


@pytest.mark.parametrize(
    ("words", "tiling"),
    [SIZES[0], ("n2 c40 h9 w10 k10 r5 s3 pad2x1 stride1x2 nhwc g2", Tiling((1, 2), (4, 3), (2, 1)))],
)
def test_some_channels_of_the_data_at_a_time(words: str, tiling: Tiling, only: list[Algorithm]) -> None:
    only[:] = [Forced(tiling, True, data_kc=16)]
    assert conformance.check(convolution(words, "fwd"), scales=((0.5, 2.0),))


def test_order_follows_cost() -> None:
    """A large filter over few tiles is not written to memory; over many tiles it is transformed once."""
    few = Winograd4().plans(convolution("n8 c512 h7 w7 k512 r3 s3 pad1", "fwd"), host(1))
    many = Winograd4().plans(convolution("n8 c64 h56 w56 k64 r3 s3 pad1", "fwd"), host(1))
    assert [p.is_data_resident for p in few + many] == [False, True]
    assert [p.tiling.m for p in few + many] == [(4, 4), (4, 4)]


def test_kc_follows_cost() -> None:
    """Data that would not stay in the L2 cache are transformed some channels at a time, if sums are few."""
    found = {}
    for words in ("c280 h16 w16 k12", "c20 h16 w16 k12", "c280 h16 w16 k512"):
        (p,) = Winograd4().plans(convolution(f"n8 {words} r3 s3 pad1", "fwd"), host(1))
        found[words] = p.data_kc
    assert 0 < found["c280 h16 w16 k12"] < 280
    assert [found["c20 h16 w16 k12"], found["c280 h16 w16 k512"]] == [0, 0]


def test_chains_are_short() -> None:
    """What a register sums is bounded in each scope; `data_kc` 0 is all channels."""
    scopes = []
    for words, tiling in (
        ("n1 c50 h9 w9 k8 r3 s3", Tiling((1, 2), (4, 4))),
        ("n1 c200 d3 t3 h9 w9 k8 r3 s3", Tiling((1, 2), (4, 4))),
        ("n1 c600 h19 w9 k8 r7 s3", Tiling((1, 2), (2, 4), (2, 1))),
    ):
        (p,) = Forced(tiling, True).plans(convolution(words, "fwd"), host(1))
        scopes.append(p.chain_scope)
        assert p.subfilter_count * p.c.depth <= p.chains * MAX_CHAIN
    assert scopes == ["subfilters", "slice", "channels"]


def test_tasks_for_two_threads_in_one_image() -> None:
    for words in ("n1 c64 h56 w56 k64 r3 s3 pad1", "n1 c256 h14 w14 k256 r3 s3 pad1 nhwc"):
        (p,) = Winograd4().plans(convolution(words, "fwd"), host(2))
        assert (p.blocks if p.is_data_resident else p.panels.count) >= 2


# errors


@pytest.mark.parametrize(
    ("depth", "taps"),
    [
        (16, "r3 s3 pad1"),
        (1024, "r3 s3 pad1"),
        (64, "r5 s5 pad2"),
        (256, "r1 s7 pad0x3"),
        (12, "r11 s9 pad5x4"),
    ],
)
def test_errors(depth: int, taps: str) -> None:
    """Normal and rectified data stay within the bounds, which are not far above what is met."""
    problem = convolution(f"n1 c{depth} h12 w12 k8 {taps}", "fwd")
    rng = np.random.default_rng(depth)
    device = host(1)
    takers = [a for a in BOTH if a.refuse(problem, device) is None]
    kernels = [(a, a.build(problem, device), a.workspace(problem, device)) for a in takers]
    assert kernels
    for kind in ("normal", "relu"):
        x, w = (rng.standard_normal(t.shape).astype(np.float32) for t in (problem.x, problem.w))
        if kind == "relu":
            x = np.maximum(x, 0)
        case = make_case(problem, given=[x, w])
        for algorithm, kernel, room in kernels:
            actual = run(kernel, case, room)
            compare(actual, case, 1.0, 0.0, algorithm.error_bound(problem))
            if kind == "normal":
                error = norm(actual[0] - case.results[0]) / case.scales[0]
                assert error > algorithm.error_bound(problem) / 8, "the bound says nothing"


def test_larger_tiles_only_where_errors_allow() -> None:
    tilings = []
    for depth in (16, 1024):
        problem = convolution(f"n1 c{depth} h24 w24 k64 r5 s5 pad2", "fwd")
        (c,) = Winograd4()._correlations(problem)
        tilings.append(Winograd4()._tilings(problem, c))
    assert Tiling((1, 2), (4, 4)) in tilings[0]
    assert Tiling((1, 2), (2, 2)) in tilings[1]
    assert Tiling((1, 2), (4, 4)) not in tilings[1]
    assert Tiling((1, 2), (4, 4), (2, 2)) in tilings[1]
    for words in ("c16", "c1024"):
        problem = convolution(f"n1 {words} h24 w24 k64 r3 s3 pad1", "fwd")
        assert Winograd4().error_bound(problem) <= 5.01e-6
        assert Winograd2().error_bound(problem) <= 2.0**-24 * (4 + np.sqrt(9 * int(words[1:])))


# what is refused, and geometry


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("conv_fwd n1 c8 h8 w8 k8 r1 s1", "single tap"),
        ("conv_bwd_filter n1 c8 h8 w8 k8 r3 s3", "winograd_filter"),
        ("conv_bwd_data n1 c8 h9 w9 k8 r3 s3 stride4", "no tap"),
        ("conv_fwd n1 c8 h30 w30 k8 r3 s3 dil2 stride2", "strided"),
        ("conv_fwd n0 c8 h8 w8 k8 r3 s3", "nothing"),
    ],
)
def test_refusals(words: str, reason: str) -> None:
    for algorithm in BOTH:
        assert reason in str(algorithm.refuse(parse(words), host(1)))


def test_even_sizes() -> None:
    assert even_sizes(30, 14) == ((10, 3),)
    assert even_sizes(56, 13) == ((12, 1), (11, 4))
    assert even_sizes(3, 8) == ((3, 1),)


def test_tile_axes_cover_their_results_once() -> None:
    for results, step, dilation, taps, m in [(13, 1, 1, 3, 4), (13, 1, 3, 3, 2), (9, 2, 1, 5, 3)]:
        positions = (results - 1) * step + (taps - 1) * dilation + 1
        problem = convolution(f"n1 c1 w{positions} k1 s{taps} stride{step} dil{dilation}", "fwd")
        axis = TileAxis(lower_convolution(problem)[0].axes[2], m)
        assert axis.axis.results == results
        written = sorted(
            (tile * m + i) * axis.dilation + residue
            for tile in range(axis.tiles_per_residue)
            for residue in range(axis.dilation)
            for i in range(m)
        )
        assert written[:results] == list(range(results))
        read = {subfilter + axis.spacing * a for subfilter in range(axis.subfilters) for a in range(axis.r)}
        assert read >= {tap * dilation for tap in range(taps)}


def test_a_tile_with_padding_is_packed_alone() -> None:
    """However far its data lie apart: as many columns as it reads, where channels come last."""
    for dilation in (1, 40):
        words = f"n1 c32 h1 w90 k16 r1 s3 pad0x{dilation} dil1x{dilation} nhwc"
        (plan,) = Winograd4().plans(convolution(words, "fwd"), host(1))
        assert plan.reads_unpacked
        assert plan.packed_columns == plan.columns.alpha
