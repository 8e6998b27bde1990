"""Suites that are cut to a size, rows that are found again, what rows come to, and how good the planner's picks are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.bench import choices
from jitdnn.bench.choices import ChoiceRow, run_choices, summary_lines
from jitdnn.bench.driver import Options, PeerResult, Row, run
from jitdnn.bench.report import direction_of, lines, markdown, read_json, save_plot, write_json
from jitdnn.bench.suites import Layer, built_in
from jitdnn.bench.timing import Method
from jitdnn.cli.app import main
from jitdnn.cli.bench import select
from jitdnn.errors import InvalidArgument
from jitdnn.kernels import tables
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.reference import REFERENCE
from jitdnn.problems import parse
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES

QUICK = Method(rounds=2, seconds=0.0)
SMALL = "conv_fwd n4 c3 h9 w8 k4 r3 s3 stride1 pad1 f32 nchw"


# ---- suites


def test_the_built_in_suites() -> None:
    suites = built_in()
    assert {"classic", "deepbench", "modern", "inference"} <= set(suites)
    assert len(suites["deepbench"]) == 94
    assert {len(layer.problem.spatial) for layer in suites["modern"]} == {1, 2, 3}
    assert all(layer.problem.n == 1 for layer in suites["inference"])
    # 53 convolutions in ResNet-50, 52 in MobileNetV2
    counted = {"resnet50_v1.5_batch1": 53, "mobilenet_v2_batch1": 52}
    for network, count in counted.items():
        assert sum(layer.count for layer in suites[network]) == count, network
    for layer in suites["classic"] + suites["modern"]:
        for direction in ("fwd", "bwd_data", "bwd_filter"):
            assert layer.towards(direction).problem.flops > 0


def _bytes(problem: Convolution) -> int:
    return sum(o.descriptor.size * DTYPES[o.descriptor.dtype] for o in problem.operands)


@pytest.mark.parametrize(
    "text", [SMALL, SMALL.replace("f32", "f64"), "conv_bwd_filter n9 c8 w20 k4 s3 g2 f32 nhwc"]
)
def test_a_batch_that_fits(text: str) -> None:
    layer = Layer(parse(text), "net", "a", 2)
    assert layer.limited() is layer
    assert layer.limited(images=100) is layer
    smaller = layer.limited(images=2)
    assert smaller is not None
    assert smaller == layer.with_batch(2)
    for size in range(_bytes(layer.with_batch(1).problem), _bytes(layer.problem) + 100, 77):
        fits = layer.limited(size=size)
        assert fits is not None
        assert _bytes(fits.problem) <= size
        n = fits.problem.n
        assert n == layer.problem.n or _bytes(layer.with_batch(n + 1).problem) > size
    assert layer.limited(size=_bytes(layer.with_batch(1).problem) - 1) is None
    both = layer.limited(images=1, size=1 << 30)
    assert both is not None
    assert both.problem.n == 1


def test_layers_that_are_too_large_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    large = SMALL.replace("h9 w8", "h900 w800")
    (kept,) = select([SMALL, large], [], "given", None, 2, 1 << 20)
    assert kept == Layer(parse(SMALL.replace("n4", "n2")))
    assert f"left out, too large even for one image: {large}" in capsys.readouterr().err
    # what is no convolution is measured as it is
    (product,) = select(["matmul m300 k400 n500 f32"], [], "given", None, 1, 1)
    assert str(product.problem).startswith("matmul")


# ---- half-precision numbers beside PyTorch's


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("kind", ["conv_fwd", "conv_bwd_data", "conv_bwd_filter"])
def test_pytorch_takes_halves(dtype: str, kind: str) -> None:
    pytest.importorskip("torch")
    problem = parse(f"{kind} n2 c4 h7 w6 k5 r3 s3 pad1 {dtype} nchw")
    (row,) = run([Layer(problem)], Options(peers=("torch",), threads=1, method=QUICK))
    assert row.failure is None
    assert set(row.peers) == {"torch_nchw", "torch_nhwc"}, row.refused_peers
    assert all(0 < peer.error < 0.05 for peer in row.peers.values())


# ---- rows


def _row(network: str, name: str, kind: str, ratio: float | None, fraction: float = 0.5, **more: Any) -> Row:
    problem = f"{kind} n1 c{len(name)} h3 w3 k1 r1 s1 stride1 pad0 f32 nchw"
    peers = {} if ratio is None else {"torch_nchw": PeerResult(ratio, 1e-7, ratio)}
    return Row(
        problem, network, name, 1, algorithm="a", seconds=1.0, fraction=fraction, ratio=ratio, peers=peers,
        threads=1, device="machine x1", **more,
    )  # fmt: skip


ROWS = [
    _row("one", "a", "conv_fwd", 4.0, 0.2),
    _row("one", "bb", "conv_fwd", 1.0, 0.6),
    _row("one", "ccc", "conv_fwd", 0.5, 0.7),
    _row("one", "a", "conv_bwd_data", 2.0),
    _row("two", "a", "conv_fwd", 2.0),
    _row("two", "convT_b", "conv_bwd_data", 8.0),
    replace(_row("two", "f", "conv_fwd", 9.0), seconds=None, failure="wrong"),
]


def test_directions_are_those_of_the_network() -> None:
    assert [direction_of(row) for row in ROWS] == ["fwd"] * 3 + ["bwd_data", "fwd", "fwd", "fwd"]
    assert direction_of(_row("n", "convT_x", "conv_fwd", 1.0)) == "bwd_data"
    assert direction_of(_row("n", "convT_x", "conv_bwd_filter", 1.0)) == "bwd_filter"
    assert direction_of(_row("n", "x", "matmul", 1.0)) == "matmul"


def test_a_line_for_each_network_and_direction() -> None:
    found = {(line.network, line.direction): line for line in lines(ROWS)}
    assert set(found) == {
        ("one", "fwd"),
        ("one", "bwd_data"),
        ("two", "fwd"),
        ("all", "fwd"),
        ("all", "bwd_data"),
    }
    one = found["one", "fwd"]
    assert (one.layers, one.slower, one.worst, one.worst_layer) == (3, 1, 0.5, "ccc")
    assert one.mean == pytest.approx(2.0 ** (1 / 3))
    assert one.peak == 0.6
    assert found["all", "fwd"].layers == 5
    assert found["all", "fwd"].mean == pytest.approx((4.0 * 1.0 * 0.5 * 2.0 * 8.0) ** 0.2)
    text = markdown(ROWS)
    assert "| one | fwd | 3 | 1.26 | 0.50 | ccc | 1 | 60% |" in text.splitlines()
    assert len({line.count("|") for line in text.splitlines()}) == 1
    assert "| net | fwd | 1 | - | - | - | 0 | 50% |" in markdown([_row("net", "a", "conv_fwd", None)])


def test_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ratios.png"
    save_plot(ROWS, path, "title")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidArgument, match="no row has a peer"):
        save_plot([_row("net", "a", "conv_fwd", None)], path, "title")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        save_plot(ROWS, tmp_path / "absent" / "a.png", "title")
    monkeypatch.setattr("jitdnn.bench.report.find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match=r"jitdnn\[plot\]"):
        save_plot(ROWS, path, "title")


def _call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    code = caught.value.code
    assert isinstance(code, int)
    return code


def test_the_report_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "classic.jsonl"
    with file.open("w") as stream:
        # the later row of a layer counts; other numbers of threads are a table of their own
        write_json([replace(ROWS[0], ratio=0.1), *ROWS, replace(ROWS[0], threads=2)], stream)
    assert _call("report", file, "--plot", tmp_path / "plots") == 0
    out = capsys.readouterr().out
    assert "classic-1, 1 thread, machine x1" in out
    assert "| one | fwd | 3 | 1.26 | 0.50 | ccc | 1 | 60% |" in out
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"classic-1.png", "classic-2.png"}
    file.write_text('{"no": "row"}\n')
    assert _call("report", file) == 1
    assert "not the rows of" in capsys.readouterr().err


def test_measuring_goes_on_where_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    problems = ["matmul m3 k4 n5 f32", "matmul m4 k4 n5 f32", "matmul m5 k4 n5 f32"]
    quick = ["--threads", "1", "--seconds", "0", "--json", file, "--resume"]
    assert _call("bench", *problems[:1], *quick) == 0
    assert _call("bench", *problems[:2], *quick) == 0
    rows = read_json(file.read_text().splitlines())
    assert [row.problem for row in rows] == problems[:2]
    # a row that failed, one of other threads and one without the peer are measured again
    with file.open("w") as stream:
        write_json(
            [rows[0], replace(rows[1], failure="wrong"), replace(rows[0], problem=problems[2], threads=2)],
            stream,
        )
    capsys.readouterr()
    assert _call("bench", *problems, *quick) == 0
    rows = read_json(file.read_text().splitlines())
    assert [row.problem for row in rows[3:]] == problems[1:]
    out = capsys.readouterr().out
    assert all(problem.split(" ", 1)[1] in out for problem in problems)  # the table has them all
    assert _call("bench", problems[0], "--peer", "im2col", *quick) == 0
    assert len(read_json(file.read_text().splitlines())) == 6
    assert _call("bench", problems[0], "--resume") == 1
    assert "--json" in capsys.readouterr().err


# ---- the planner's picks


class _Scripted(Algorithm):
    """Computes what it is asked to, or not, and says that it is fast."""

    problem = Convolution
    deterministic = True

    def __init__(self, name: str, estimate: float, factor: float = 1.0) -> None:
        self.name = name  # type: ignore[misc]
        self._estimate, self._factor = estimate, factor

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return None

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self._estimate

    def error_bound(self, problem: Problem) -> float:
        return 1e-6

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        kernel = REFERENCE.build(problem, device, epilogue)

        def run(stream: Any, pointers: Any, alpha: float, beta: float, workspace: int) -> None:
            kernel(stream, pointers, self._factor * alpha, beta, workspace)

        return run


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> list[Algorithm]:
    """The algorithms of the forward convolution; the reference stays the last of them."""
    found: list[Algorithm] = []
    monkeypatch.setattr(choices, "HOPELESS", 1e9)
    monkeypatch.setitem(tables.table("cpu"), (Convolution, "fwd"), found)
    return found


def _times(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    monkeypatch.setattr(
        choices, "interleaved", lambda calls, method: [[s] * 2 for s in seconds[: len(calls)]]
    )


def test_the_pick_is_held_against_the_best(table: list[Algorithm], monkeypatch: pytest.MonkeyPatch) -> None:
    table += [_Scripted("slow", 1e-6), _Scripted("fast", 2e-6), REFERENCE]
    _times(monkeypatch, 3e-3, 1e-3)
    (row,) = run_choices([Layer(parse(SMALL), "net", "a", 3)], Options(threads=1, method=QUICK))
    assert row.failure is None
    assert (row.network, row.name, row.count, row.threads) == ("net", "a", 3, 1)
    assert (row.chosen, row.best) == ("slow", "fast")
    assert row.ratio == pytest.approx(3.0)
    assert row.estimates == {"slow": 1e-6, "fast": 2e-6}
    assert row.measured == {"slow": 3e-3, "fast": 1e-3}


def test_wrong_results_have_no_times(table: list[Algorithm], monkeypatch: pytest.MonkeyPatch) -> None:
    table += [_Scripted("right", 2e-6), _Scripted("wrong", 1e-6, factor=1.01), REFERENCE]
    _times(monkeypatch, 1e-3)
    (row,) = run_choices([Layer(parse(SMALL))], Options(threads=1, method=QUICK))
    assert "relative error 0.01" in row.wrong["wrong"]
    assert set(row.measured) == {"right"}
    assert "the result of wrong is wrong" in (row.failure or "")


def test_the_reference_alone_is_no_choice(table: list[Algorithm]) -> None:
    table += [REFERENCE]
    (row,) = run_choices([Layer(parse(SMALL))], Options(method=QUICK))
    assert row.failure == "there is only the reference"


def test_what_picks_come_to() -> None:
    def choice(ratio: float, **measured: float) -> ChoiceRow:
        estimates = dict.fromkeys(measured, 1.0)
        return ChoiceRow("p", "net", f"x{ratio}", 1, None, "a", "b", ratio, estimates, measured)

    rows = [choice(1.0, a=1.0, b=4.0), choice(1.05, a=2.0), choice(2.5, a=4.0), choice(1.2, a=0.5)]
    rows.append(replace(rows[0], ratio=None, measured={}, failure="no"))
    picks, a, b = summary_lines(rows)
    assert picks.startswith("2 of 4 picks (50%)")
    assert "the worst 2.50 times (net:x2.5: a for b)" in picks
    assert a.startswith("a: estimate / measured on 4 problems: geometric mean 0.71, 0.25 to 2.00")
    assert b.startswith("b: estimate / measured on 1 problems: geometric mean 0.25")
    assert summary_lines([]) == []


def test_choices_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "choices.jsonl"
    assert _call("bench", SMALL, "--choices", "--threads", 1, "--seconds", 0, "--json", file) == 0
    (row,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert row["chosen"] in row["measured"]
    assert {"implicit_gemm", "direct"} <= set(row["measured"])
    assert row["ratio"] >= 1.0
    assert np.isclose(row["ratio"], row["measured"][row["chosen"]] / row["measured"][row["best"]])
    out = capsys.readouterr().out
    assert "of 1 picks" in out
    assert "direct: estimate / measured on 1 problems" in out
