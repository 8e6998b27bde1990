"""The measuring driver: the gate, the clock, peers, rows. No test depends on a duration."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jitdnn.bench import gate, provenance, timing
from jitdnn.bench.driver import Options, PeerResult, Row, run
from jitdnn.bench.gate import Gate
from jitdnn.bench.report import of_family, read_json, summaries, write_json
from jitdnn.bench.suites import Layer
from jitdnn.bench.timing import Method
from jitdnn.errors import InvalidArgument
from jitdnn.kernels import tables
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.reference import REFERENCE
from jitdnn.problems import parse
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

QUICK = Method(rounds=2, seconds=0.0)
SMALL = "conv_fwd n2 c3 h9 w8 k4 r3 s3 stride1 pad1 f32 nchw"


# ---- the gate

GATED = (
    "conv_fwd n5 c6 h9 w8 k8 r3 s3 stride2 pad1 g2 f32 nchw",
    "conv_fwd n1 c3 w30 k5 s4 pad1:2 f32 nchw",
    "conv_bwd_data n4 c8 h7 w9 k6 r3 s2 pad1 dil2 f32 nchw",
    "conv_bwd_data n3 c6 h7 w7 k6 r3 s3 stride2 g6 f64 nhwc",
    "conv_bwd_filter n4 c6 h7 w9 k8 r2 s3 g2 f32 nchw",
    "conv_bwd_filter n2 c4 d4 h5 w5 k3 t2 r3 s3 pad1 flip f32 nchw",
)


def _inputs(problem: Problem, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(operand.descriptor.shape) for operand in problem.inputs]


@pytest.mark.parametrize("text", GATED)
@pytest.mark.parametrize("budget", [1, 2000, 1 << 40], ids=["least", "some", "all"])
def test_the_gate_agrees_with_the_whole_reference(
    text: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = parse(text)
    inputs = _inputs(problem)
    monkeypatch.setattr(gate, "REFERENCE_FLOPS", budget)
    opened = Gate(problem, inputs)
    exact = problem.reference(*inputs)
    assert opened.error(exact) < 1e-14
    assert opened.error(exact * 1.001) == pytest.approx(1e-3)
    assert opened.error(problem.reference(*_inputs(problem, seed=1))) > 0.5


@pytest.mark.parametrize("text", GATED)
def test_one_element_that_is_not_written_closes_the_gate(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse(text)
    inputs = _inputs(problem)
    monkeypatch.setattr(gate, "REFERENCE_FLOPS", 1)
    opened = Gate(problem, inputs)
    for place in (0, problem.output.size // 2, problem.output.size - 1):
        output = problem.reference(*inputs)
        output.flat[place] = np.nan
        assert opened.error(output) == math.inf


def test_corners_are_in_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first image and channel and the last ones are always looked at, whatever the budget."""
    monkeypatch.setattr(gate, "REFERENCE_FLOPS", 1000)
    problem = parse("conv_fwd n5 c4 h9 w8 k8 r3 s3 pad1 g2 f32 nchw")
    inputs = _inputs(problem)
    opened = Gate(problem, inputs)
    for image, channel in ((0, 0), (4, 0), (0, 4), (4, 4)):
        output = problem.reference(*inputs)
        output[image, channel] *= 2
        assert opened.error(output) > 0.01, (image, channel)


def test_a_result_of_zeros_must_be_zeros() -> None:
    problem = parse("conv_bwd_filter n0 c2 h5 w5 k3 r3 s3 f32 nchw")
    opened = Gate(problem, _inputs(problem))
    assert opened.error(np.zeros(problem.output.shape)) == 0.0
    assert opened.error(np.full(problem.output.shape, 1e-30)) == math.inf


# ---- the clock


class _Clock:
    """Time that passes only when somebody says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.pauses.append)

    def candidate(self, seconds: Sequence[float], order: list[str], name: str) -> Any:
        def call(number: int) -> None:
            order.append(name)
            self.now += seconds[min(number, len(seconds) - 1)]

        return call


def test_candidates_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = _Clock(monkeypatch), []
    calls = [clock.candidate([0.05], order, "a"), clock.candidate([0.08], order, "b")]
    times = timing.interleaved(calls, Method(rounds=3, seconds=0.0))
    assert times == [pytest.approx([0.05] * 3), pytest.approx([0.08] * 3)]
    # once each to begin with; then in every turn a call that does not count and one that does
    assert order == ["a", "b"] + ["a", "a", "b", "b"] * 3
    assert len(clock.pauses) >= 6  # one at least before each turn


def test_long_calls_are_not_made_twice_and_have_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = _Clock(monkeypatch), []
    calls = [clock.candidate([0.05], order, "a"), clock.candidate([2.0], order, "b")]
    times = timing.interleaved(calls, Method(rounds=5, seconds=0.0, long_rounds=3))
    assert times == [pytest.approx([0.05] * 3), pytest.approx([2.0] * 3)]
    assert order == ["a", "b"] + ["a", "a", "b"] * 3
    assert len(timing.interleaved(calls, Method(rounds=2, seconds=0.0, long_rounds=3))[0]) == 2
    # the time that was asked for is used up all the same
    assert len(timing.interleaved(calls[1:], Method(rounds=5, seconds=9.0))[0]) == 5


def test_short_calls_are_repeated_within_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = _Clock(monkeypatch), []
    times = timing.interleaved([clock.candidate([timing.TURN / 10], order, "a")], Method(1, 0.0))
    assert times[0] == [pytest.approx(timing.TURN / 10)]
    assert len(order) == 1 + 1 + 10


def test_rounds_go_on_until_the_time_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    calls = [clock.candidate([0.05], [], "a"), clock.candidate([0.3], [], "b")]
    assert len(timing.interleaved(calls, Method(rounds=1, seconds=0.5, most_rounds=99))[0]) == 3
    assert len(timing.interleaved(calls, Method(rounds=1, seconds=9.0, most_rounds=4))[0]) == 4


def test_ratios_are_taken_within_rounds() -> None:
    # the second round met a machine of half the speed: the ratio does not notice
    assert timing.ratio([2.0, 4.0, 2.0], [1.0, 2.0, 1.0]) == 2.0
    assert timing.median([3.0, 1.0, 2.0]) == 2.0
    assert timing.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(timing.geometric_mean([]))


# ---- peers


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    "text",
    [
        "conv_fwd n2 c4 h9 w8 k6 r3 s2 stride2x1 pad1x0 dil1x2 g2 f64 nchw",
        "conv_fwd n2 c4 w19 k6 s3 stride2 pad1 f64 nchw",
        "conv_fwd n1 c2 d5 h6 w7 k3 t2 r3 s3 pad1 f64 nchw",
    ],
)
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_pytorch_computes_the_same(text: str, layout: str, direction: str) -> None:
    pytest.importorskip("torch")
    from jitdnn.bench.peers import Torch

    problem = Layer(parse(text)).towards(direction).problem
    peer = Torch(layout)
    assert peer.refuse(problem) is None
    sets = [_inputs(problem, seed) for seed in (0, 1)]
    runner = peer.prepare(problem, sets)
    for number, inputs in enumerate(sets):
        np.testing.assert_allclose(
            peer.to_numpy(runner(number)), problem.reference(*inputs), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_pytorch_computes_the_same_with_integers(layout: str) -> None:
    pytest.importorskip("torch")
    from jitdnn.bench.peers import Torch

    problem = parse("conv_fwd n2 c4 h9 w8 k6 r3 s2 stride2x1 pad1x0 dil1x2 g2 i8 to_i8")
    rng = np.random.default_rng(0)
    sets = [[rng.integers(-6, 7, o.descriptor.shape, np.int8) for o in problem.inputs] for _ in range(2)]
    peer = Torch(layout)
    runner = peer.prepare(problem, sets)
    for number, inputs in enumerate(sets):
        exact = problem.reference(*(array.astype(np.float64) for array in inputs))
        np.testing.assert_array_equal(peer.to_numpy(runner(number)), np.clip(exact, -128, 127))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv_fwd n1 c1 w9 k1 s3 pad1:0 f32 nchw", "both sides"),
        ("conv_fwd n1 c1 w9 k1 s3 flip f32 nchw", "cross-correlation"),
        ("matmul m3 k4 n5 f32", "only convolutions"),
        ("conv_fwd n1 c1 w9 k1 s3 i8 to_i8", "two dimensions"),
        ("conv_fwd n1 c1 h9 w9 k1 r3 s3 i8", "integers of 8 bits"),
    ],
)
def test_pytorch_refuses_what_it_lacks(text: str, reason: str) -> None:
    pytest.importorskip("torch")
    from jitdnn.bench.peers import Torch

    assert reason in (Torch("nchw").refuse(parse(text)) or "")


# ---- the driver


def test_a_row_is_consistent() -> None:
    layer = Layer(parse(SMALL), "net", "a", 3)
    (row,) = run([layer], Options(peers=("im2col",), threads=1, method=QUICK))
    assert row.failure is None
    assert (row.problem, row.network, row.name, row.count) == (SMALL, "net", "a", 3)
    assert row.seconds is not None
    assert row.seconds > 0
    assert row.gflops == pytest.approx(layer.problem.flops / row.seconds / 1e9)
    assert row.fraction == pytest.approx(row.gflops / row.peak_gflops)
    assert row.error <= row.error_bound < 1e-4
    assert row.peer == "im2col"
    assert row.peers["im2col"].seconds == row.peer_seconds
    assert row.peers["im2col"].error < 1e-5
    assert row.ratio == row.peers["im2col"].ratio > 0
    assert (row.threads, row.rounds) == (1, 2)
    assert row.device.endswith("x1")
    assert row.versions["numpy"] == np.__version__
    assert row.date.endswith("+00:00")


@pytest.mark.parametrize(
    "text",
    [
        "pool_fwd max n1 c2 h8 w8 window2 stride2 f32 nchw",
        "softmax_fwd shape3x7 axis1 f32",
        "matmul m3 k4 n5 f64",
    ],
)
def test_problems_of_every_kind_are_measured(text: str) -> None:
    pytest.importorskip("torch")
    (row,) = run([Layer(parse(text))], Options(peers=("torch", "im2col"), method=QUICK))
    assert row.failure is None
    assert row.seconds is not None
    assert row.peer is None
    assert set(row.refused_peers) == {"torch_nchw", "torch_nhwc", "im2col"}


@pytest.mark.parametrize("to", ["to_i8", "to_i32"])
def test_integers_are_measured(to: str) -> None:
    pytest.importorskip("torch")
    (row,) = run(
        [Layer(parse(f"conv_fwd n2 c8 h9 w8 k6 r3 s3 pad1 i8 {to}"))], Options(peers=("torch",), method=QUICK)
    )
    assert row.failure is None
    assert row.error == 0.0
    assert set(row.peers) == ({"torch_nchw", "torch_nhwc"} if to == "to_i8" else set())
    assert all(peer.error == 0.0 for peer in row.peers.values())


def test_an_algorithm_by_name_and_one_that_is_not_there() -> None:
    options = Options(algorithm="reference", method=QUICK)
    (row,) = run([Layer(parse(SMALL))], options)
    assert row.algorithm == "reference"
    (row,) = run([Layer(parse(SMALL))], replace(options, algorithm="magic"))
    assert row.failure is not None
    assert "magic" in row.failure
    assert row.seconds is None


@pytest.mark.parametrize("peers", [("magic",), ("torch", "none")])
def test_unknown_peers_are_refused(peers: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match="there are torch, im2col"):
        next(run([Layer(parse(SMALL))], Options(peers=peers)))


class _Wrong(Algorithm):
    """Writes all but the last element."""

    name = "wrong"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return None

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return 1e-9

    def error_bound(self, problem: Problem) -> float:
        return 1e-6

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        right = REFERENCE.build(problem, device, epilogue)

        def kernel(stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int) -> None:
            output = np.empty(problem.output.shape, np.float32)
            right(stream, (*pointers[:-1], output.ctypes.data), alpha, beta, workspace)
            target = np.ctypeslib.as_array(
                (np.ctypeslib.ctypes.c_float * output.size).from_address(pointers[-1])
            )
            target[:-1] = output.reshape(-1)[:-1]

        return kernel


def test_a_wrong_result_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.table("cpu"), (Convolution, "fwd"), (_Wrong(), REFERENCE))
    (row,) = run([Layer(parse(SMALL))], Options(method=QUICK))
    assert row.algorithm == "wrong"
    assert row.failure is not None
    assert "wrong result" in row.failure
    assert row.seconds is row.gflops is row.ratio is None


def test_progress_is_told_before_each_problem() -> None:
    told: list[tuple[int, str]] = []
    layers = [Layer(parse(SMALL), "net", name) for name in "ab"]
    for number, _ in enumerate(run(layers, Options(method=QUICK), lambda *at: told.append(at))):
        assert told == [(n, f"net:{name}") for n, name in enumerate("ab")][: number + 1]
    assert len(told) == 2


# ---- rows and what they come to


def _row(name: str, seconds: float | None, count: int = 1, **peers: tuple[float, float]) -> Row:
    results = {peer: PeerResult(taken, 0.0, ratio) for peer, (taken, ratio) in peers.items()}
    return Row(SMALL, "net", name, count, seconds=seconds, peers=results)


def test_summaries_take_the_fastest_of_a_family() -> None:
    rows = [
        _row("a", 1.0, count=2, torch_nchw=(4.0, 4.0), torch_nhwc=(2.0, 2.0), im2col=(8.0, 8.0)),
        _row("b", 1.0, torch_nchw=(0.5, 0.5)),
        _row("c", None),
    ]
    assert of_family(rows[0], "torch") == PeerResult(2.0, 0.0, 2.0)
    torch, im2col = summaries(rows)
    assert (torch.family, torch.layers, torch.slower) == ("torch", 2, 1)
    assert torch.mean == pytest.approx(1.0)
    assert torch.total == pytest.approx((2 * 2.0 + 0.5) / (2 * 1.0 + 1.0))
    assert (torch.worst, torch.worst_label) == (0.5, "net:b")
    assert (im2col.layers, im2col.mean, im2col.slower) == (1, pytest.approx(8.0), 0)
    assert summaries([rows[2]]) == []


def test_rows_read_back_from_json() -> None:
    rows = [_row("a", 1.0, im2col=(2.0, 2.0)), _row("b", None)]
    stream = io.StringIO()
    write_json(rows, stream)
    assert len(stream.getvalue().splitlines()) == 2
    assert read_json(stream.getvalue().splitlines()) == rows


def test_versions_name_only_what_is_installed() -> None:
    found = provenance.versions(("numpy", "surely-not-installed"))
    assert set(found) == {"jitdnn", "python", "numpy"}
    assert found["numpy"] == np.__version__


def test_work_of_other_programs_is_noticed() -> None:
    neighbours = timing.Neighbours()
    if neighbours.processors() is None:
        pytest.skip("this system does not tell how busy it is")
    script = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"
    other = subprocess.Popen([sys.executable, "-c", script])
    try:
        time.sleep(1.0)
        found = neighbours.processors()
    finally:
        other.kill()
        other.wait()
    assert found is not None
    assert found > 0.1
