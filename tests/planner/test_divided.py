"""Kernels of pieces run as the kernel of the whole: pointers, beta, workspace, epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import conformance
from convolution_cases import bias_of, convolution, fused
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.choose import get
from jitdnn.planner.divided import Divided, epilogue_piece
from jitdnn.planner.plan import Plan, Request
from jitdnn.planner.store import Store
from jitdnn.problems import Convolution
from jitdnn.problems import convolution_parts as parts
from jitdnn.problems.convolution_parts import Piece
from jitdnn.tensor import TensorDescriptor
from pairs import pairwise
from strategies import convolutions

SCALES = ((1.0, 0.0), (2.0, 0.5))
WORDS = "n3 c6 h12 w11 k8 r3 s3 stride1 pad1 f32"

Step = tuple[str, tuple[int, ...]]


def pieces_of(problem: Convolution, *steps: Step) -> list[Piece]:
    """Blocking along one axis after another; the last size of each is what is left."""
    pieces = [parts.whole(problem)]
    for axis, sizes in steps:
        divided = []
        for outer in pieces:
            rest = parts.extent(outer.problem, axis) - sum(sizes)
            divided += [
                parts.within(outer, inner) for inner in parts.cut(outer.problem, axis, (*sizes, rest))
            ]
        pieces = divided
    return pieces


def plans_of(
    pieces: Sequence[Piece], epilogue: Epilogue | None = None, algorithm: str | None = None
) -> list[Plan]:
    request = Request(algorithm=algorithm)
    return [
        get(piece.problem, host(2), request, epilogue_piece(epilogue, piece), Store(None)) for piece in pieces
    ]


def check(
    problem: Convolution,
    pieces: Sequence[Piece],
    epilogue: Epilogue | None = None,
    algorithm: str | None = None,
    scales: Sequence[tuple[float, float]] = SCALES,
) -> None:
    """The pieces compute what the problem says, and write nothing else but as much workspace as one needs."""
    plans = plans_of(pieces, epilogue, algorithm)
    kernel = Divided(
        problem,
        epilogue.operands if epilogue else (),
        [(piece, plan.run) for piece, plan in zip(pieces, plans, strict=True)],
    )
    case = conformance.make_case(problem, epilogue)
    bounds = [plan.parts[0].algorithm.error_bound(plan.problem) for plan in plans]
    # the errors of pieces that write different elements do not add up, those of pieces that are added do
    bound = max(bounds) * (1 + sum(piece.is_added for piece in pieces))
    for alpha, beta in scales:
        results = conformance.run(kernel, case, max(plan.workspace for plan in plans), alpha, beta)
        conformance.compare(results, case, alpha, beta, bound)


class TestAgainstTheReference:
    # which piece of a tensor is meant depends on the axis and the direction, its address on the axis and the order
    @pytest.mark.parametrize(
        ("steps", "direction", "layout"),
        pairwise(
            [
                [("n", (1,))],
                [("k", (3,))],
                [("c", (1, 2))],
                [("h", (2, 5))],
                [("w", (4,))],
                [("n", (2,)), ("c", (5,)), ("h", (7,))],
            ],
            ["fwd", "bwd_data", "bwd_filter"],
            ["nchw", "nhwc"],
        ),
    )
    def test_directions_and_axes(self, steps: list[Step], direction: str, layout: str) -> None:
        problem = convolution(f"{WORDS} {layout}", direction)
        check(problem, pieces_of(problem, *steps))

    @pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
    def test_groups(self, direction: str) -> None:
        problem = convolution("n2 c8 h9 w9 k8 r3 s3 stride2 pad1 g8", direction)
        check(problem, pieces_of(problem, ("g", (1, 3))))
        check(problem, pieces_of(problem, ("g", (4,)), ("h", (2,))))

    @pytest.mark.parametrize("arrangement", ["gaps", "backwards", "turned", "repeated"])
    @pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
    def test_orders_in_memory(self, direction: str, arrangement: str) -> None:
        # n and k are halved, so that eight pieces are of two kinds, each compiled once
        problem = conformance.arranged(convolution(WORDS.replace("n3", "n2"), direction), arrangement)
        assert isinstance(problem, Convolution)
        check(problem, pieces_of(problem, ("n", (1,)), ("k", (4,)), ("w", (5,))))

    @pytest.mark.parametrize("algorithm", ["fft", "im2col", "winograd_2", "winograd_4", "direct"])
    def test_algorithms_with_one_workspace(self, algorithm: str) -> None:
        filters = "r7 s7" if algorithm == "fft" else "r3 s3"
        problem = convolution(f"n3 c8 h13 w13 k16 {filters} stride1 pad1 f32", "fwd")
        check(problem, pieces_of(problem, ("n", (2,)), ("h", (4,))), algorithm=algorithm)
        check(problem, pieces_of(problem, ("c", (5,))), algorithm=algorithm)

    @pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
    def test_rows_that_nothing_reaches(self, direction: str) -> None:
        problem = convolution("n2 c3 h9 w9 k4 r1 s1 stride3 pad2", direction)
        check(problem, pieces_of(problem, ("h", (1, 1))))

    @pytest.mark.parametrize("algorithm", ["direct", "implicit_gemm", "im2col"])
    def test_pieces_of_fewer_rows_than_the_stride(self, algorithm: str) -> None:
        """Some of them reached by no filter, and a piece of stride phases of one result each."""
        far_apart = (
            "n2 c8 h5 w3 k8 r3 s1 stride2x3 pad2x3 dil1x2 g2 flip f64 nchw x=s3,36,6,-288 y=s24,3,48,1"
        )
        for words, *axes in (
            (far_apart, "w", "h"),
            ("n2 c20 w3 k5 s1 stride3 pad3 f32 nhwc", "w"),
            ("n1 c16 d3 h3 w3 k4 t1 r2 s3 stride3x3x2 pad3x1x1 dil1x2x1 f32 nhwc", "d", "h", "w"),
            ("n2 c2 h2 w4 k3 r4 s3 stride1 pad4x3:0 dil3x2 f32 nchw", "h"),
        ):
            problem = convolution(words, "bwd_data")
            for axis in axes:
                for first in range(1, parts.extent(problem, axis)):
                    check(problem, pieces_of(problem, (axis, (first,))), algorithm=algorithm)

    @pytest.mark.parametrize("words", ["to_i8 n3", "to_i32 n3", "n3"])
    def test_integers(self, words: str) -> None:
        problem = convolution(f"c40 h9 w9 k6 r3 s3 stride1 pad1 i8 nhwc {words}", "fwd")
        pieces = pieces_of(problem, ("n", (1,)), ("h", (4,)), ("k", (2,)))
        check(problem, pieces, scales=[(1.0, 0.0)])

    @settings(max_examples=examples(12))
    @given(st.data(), convolutions(channels=(1, 2, 3, 4), most_extent=6))
    def test_any_problem(self, data: st.DataObject, problem: Convolution) -> None:
        axes = [axis for axis in parts.AXES if parts.extent(problem, axis) > 1]
        if not axes:
            return
        axis = data.draw(st.sampled_from(axes))
        first = data.draw(st.integers(1, parts.extent(problem, axis) - 1))
        check(problem, pieces_of(problem, (axis, (first,))))


class TestEpilogues:
    @pytest.mark.parametrize("name", ["activation", "bias", "residual", "scalar"])
    def test_every_piece_has_its_part(self, name: str) -> None:
        problem = convolution(WORDS, "fwd")
        epilogue = fused(problem, name)
        for steps in ([("n", (1,))], [("k", (3,)), ("h", (5,))], [("n", (2,)), ("w", (1, 4))]):
            check(problem, pieces_of(problem, *steps), epilogue)

    def test_residual_with_gaps(self) -> None:
        problem = conformance.arranged(convolution(WORDS, "fwd"), "gaps")
        assert isinstance(problem, Convolution)
        epilogue = Epilogue(
            fused(problem, "residual").expression,
            (bias_of(problem), TensorDescriptor(problem.y.shape, problem.y.strides, "f32")),
        )
        check(problem, pieces_of(problem, ("k", (3,)), ("n", (1,))), epilogue)

    def test_operands_are_narrowed(self) -> None:
        problem = convolution(WORDS, "fwd")
        bias, residual = bias_of(problem), TensorDescriptor.packed(problem.y.shape, "f32")
        epilogue = Epilogue(fused(problem, "residual").expression, (bias, residual))
        last = pieces_of(problem, ("n", (2,)), ("k", (3,)))[-1]
        part = epilogue_piece(epilogue, last)
        assert part is not None
        assert part.expression is epilogue.expression
        # as a bias and a residual of a problem of one image have them
        assert part.operands == (
            TensorDescriptor((1, 5, 12, 11), (0, 1, 0, 0), "f32"),
            TensorDescriptor.packed((1, 5, 12, 11), "f32"),
        )

    def test_what_needs_no_part(self) -> None:
        problem = convolution(WORDS, "fwd")
        piece = pieces_of(problem, ("n", (1,)))[0]
        assert epilogue_piece(None, piece) is None
        activation = fused(problem, "activation")
        assert epilogue_piece(activation, piece) is activation

    def test_none_before_the_sum_is_complete(self) -> None:
        problem = convolution(WORDS, "fwd")
        pieces = pieces_of(problem, ("c", (3,)))
        with pytest.raises(AssertionError, match="before the sum is complete"):
            Divided(problem, (bias_of(problem),), [(piece, Recorder()) for piece in pieces])


class Recorder:
    """A kernel that remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[int, ...], float, float, int]] = []

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        self.calls.append((stream, tuple(pointers), alpha, beta, workspace))


class TestCalls:
    def run(
        self, problem: Convolution, steps: Sequence[Step], operands: Sequence[TensorDescriptor] = ()
    ) -> list[tuple[Any, tuple[int, ...], float, float, int]]:
        recorder = Recorder()
        pieces = pieces_of(problem, *steps)
        kernel = Divided(problem, operands, [(piece, recorder) for piece in pieces])
        kernel("stream", [1000, 2000, 3000, 4000, 5000][: 3 + len(operands)], 2.0, 0.5, 64)
        return recorder.calls

    def test_pointers(self) -> None:
        problem = convolution("n2 c3 h4 w5 k6 r1 s1 stride1 pad0 f32", "fwd")
        residual = TensorDescriptor.packed(problem.y.shape, "f64", "nhwc")
        calls = self.run(problem, [("n", (1,)), ("k", (4,))], (bias_of(problem), residual))
        assert [call[1] for call in calls] == [
            (1000, 2000, 3000, 4000, 5000),
            (1000, 2000 + 4 * 4 * 3, 3000 + 4 * 4 * 20, 4000 + 4 * 4, 5000 + 8 * 4),
            (1000 + 4 * 60, 2000, 3000 + 4 * 120, 4000, 5000 + 8 * 120),
            (1240, 2048, 3000 + 4 * 200, 4016, 5000 + 8 * 124),
        ]
        assert {(call[0], call[2], call[3], call[4]) for call in calls} == {("stream", 2.0, 0.5, 64)}

    @pytest.mark.parametrize(
        ("direction", "steps", "betas"),
        [
            ("fwd", [("c", (1, 2))], [0.5, 1.0, 1.0]),
            ("bwd_data", [("k", (2,)), ("n", (1,))], [0.5, 0.5, 1.0, 1.0]),
            ("bwd_filter", [("n", (1,))], [0.5, 1.0]),
            ("bwd_filter", [("k", (2,)), ("n", (1,))], [0.5, 1.0, 0.5, 1.0]),
            ("bwd_filter", [("n", (1,)), ("h", (1,))], [0.5, 1.0, 1.0, 1.0]),
        ],
    )
    def test_beta_of_what_is_added(self, direction: str, steps: list[Step], betas: list[float]) -> None:
        problem = convolution("n2 c6 h4 w5 k6 r1 s1 stride1 pad0 f32", direction)
        assert [call[3] for call in self.run(problem, steps)] == betas
