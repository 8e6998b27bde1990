"""Convolutions in pieces: run one after another, they leave what the whole leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from convolution_cases import convolution
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.problems import Convolution, parse
from jitdnn.problems import convolution_parts as parts
from jitdnn.problems.convolution_parts import Piece
from jitdnn.tensor import DTYPES, TensorDescriptor, numpy_dtype
from strategies import convolutions

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
ALPHA, BETA = 2.0, 0.5  # of integers these leave sums exact

Array = np.ndarray[Any, Any]


@st.composite
def sizes_of(draw: st.DrawFn, total: int) -> tuple[int, ...]:
    """Numbers from 1 that add up to `total`."""
    sizes = []
    while total:
        sizes.append(draw(st.integers(1, total)))
        total -= sizes[-1]
    return tuple(sizes)


@st.composite
def cuts(draw: st.DrawFn, problem: Convolution) -> tuple[str, tuple[int, ...]]:
    """An axis along which the problem can be divided, and sizes."""
    axes = [axis for axis in parts.AXES if parts.extent(problem, axis) > 1]
    assume(axes)
    axis = draw(st.sampled_from(axes))
    return axis, draw(sizes_of(parts.extent(problem, axis)))


@st.composite
def lines(draw: st.DrawFn) -> Convolution:
    """One axis of space with every relation of taps, stride, dilation and padding."""
    taps, dilation = draw(st.integers(1, 11)), draw(st.integers(1, 4))
    padding = [(draw(st.integers(0, 12)), draw(st.integers(0, 12)))]
    width, stride = draw(st.integers(1, 24)), draw(st.integers(1, 6))
    assume(width + sum(padding[0]) > dilation * (taps - 1))
    mode = draw(st.sampled_from(("cross_correlation", "convolution")))
    direction = draw(st.sampled_from(DIRECTIONS))
    return Convolution.make(direction, (1, 1, width), (1, 1, taps), stride, padding, dilation, mode=mode)


def box(descriptor: TensorDescriptor, start: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(b, b + e) for b, e in zip(start, descriptor.shape, strict=True))


def check_place(piece: Piece, problem: Convolution) -> None:
    """The piece lies within the whole, where its starts say, and its string names it."""
    assert parse(str(piece.problem)) == piece.problem
    offsets = parts.byte_offsets(piece, problem)
    operands = zip(piece.problem.operands, problem.operands, piece.starts, offsets, strict=True)
    for part, whole, start, offset in operands:
        assert part.name == whole.name
        assert part.descriptor.dtype == whole.descriptor.dtype
        assert all(b >= 0 for b in start)
        for begin, extent, total in zip(start, part.descriptor.shape, whole.descriptor.shape, strict=True):
            assert begin + extent <= total
        for extent, one, other in zip(
            part.descriptor.shape, part.descriptor.strides, whole.descriptor.strides, strict=True
        ):
            assert extent == 1 or one == other or part.descriptor.size == 0
        steps = (b * s for b, s in zip(start, whole.descriptor.strides, strict=True))
        assert offset == sum(steps) * DTYPES[whole.descriptor.dtype]
    assert parts.result_start(piece) == piece.starts[-1]


def run(pieces: Sequence[Piece], inputs: Sequence[Array], output: Array, beta: float) -> Array:
    """Run the pieces into `output` as kernels would; returns how often each element was written for good."""
    writes = np.zeros(output.shape, int)
    for piece in pieces:
        views = [
            array[box(operand.descriptor, start)]
            for array, operand, start in zip(inputs, piece.problem.inputs, piece.starts, strict=False)
        ]
        place = box(piece.problem.output, parts.result_start(piece))
        found = ALPHA * piece.problem.reference(*views)
        factor = 1.0 if piece.is_added else beta
        output[place] = found + factor * output[place] if factor else found
        writes[place] += not piece.is_added
    return writes


def check(pieces: Sequence[Piece], problem: Convolution) -> None:
    """The pieces leave what the whole leaves: exactly, for whole numbers."""
    rng = np.random.default_rng(len(pieces))
    inputs = [rng.integers(-4, 5, operand.descriptor.shape).astype(float) for operand in problem.inputs]
    for piece in pieces:
        check_place(piece, problem)
    expected = ALPHA * problem.reference(*inputs)
    before = rng.integers(-4, 5, problem.output.shape).astype(float)
    for beta in (0.0, BETA):
        output = before.copy() if beta else np.full(problem.output.shape, np.nan)
        writes = run(pieces, inputs, output, beta)
        assert (writes == 1).all(), "every element is written by one piece, and added to by the others"
        np.testing.assert_array_equal(output, expected + beta * before)


class TestAgainstTheWhole:
    @given(st.data(), convolutions(channels=(1, 2, 3, 4, 5)))
    def test_pieces_along_any_axis(self, data: st.DataObject, problem: Convolution) -> None:
        axis, sizes = data.draw(cuts(problem))
        pieces = parts.cut(problem, axis, sizes)
        assert len(pieces) == len(sizes)
        assert [piece.is_added for piece in pieces] == [
            parts.is_summed(problem, axis) and number > 0 for number in range(len(sizes))
        ]
        check(pieces, problem)

    @given(st.data(), lines())
    def test_rows_of_any_window(self, data: st.DataObject, problem: Convolution) -> None:
        total = parts.extent(problem, "w")
        sizes = data.draw(st.one_of(st.just((1,) * total), sizes_of(total)))
        check(parts.cut(problem, "w", sizes), problem)

    @given(st.data(), convolutions(channels=(1, 2, 3, 4), most_extent=7))
    def test_pieces_of_pieces(self, data: st.DataObject, problem: Convolution) -> None:
        outer = parts.cut(problem, *data.draw(cuts(problem)))
        pieces = [parts.within(piece, part) for piece in outer for part in self._inner(data, piece)]
        check(pieces, problem)

    @staticmethod
    def _inner(data: st.DataObject, piece: Piece) -> tuple[Piece, ...]:
        axes = [axis for axis in parts.AXES if parts.extent(piece.problem, axis) > 1]
        if not axes:
            return (parts.whole(piece.problem),)
        axis = data.draw(st.sampled_from(axes))
        return parts.cut(piece.problem, axis, data.draw(sizes_of(parts.extent(piece.problem, axis))))

    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("axis", ["h", "w"])
    @pytest.mark.parametrize(
        "words",
        [
            "n1 c1 h13 w13 k1 r3 s3 stride1 pad1",
            "n1 c2 h14 w14 k2 r1 s1 stride2 pad0",
            "n1 c1 h23 w23 k1 r7 s7 stride2 pad3",
            "n1 c1 h31 w31 k1 r11 s11 stride4 pad2",
            "n1 c1 h11 w11 k1 r5 s5 stride1 pad4 dil2",
            "n1 c1 h9 w9 k1 r1 s1 stride1 pad2",
            "n1 c1 h9 w9 k1 r2 s2 stride3 pad0:7x7:0 dil3",
        ],
    )
    def test_every_size_of_known_layers(self, words: str, axis: str, direction: str) -> None:
        problem = convolution(words, direction)
        total = parts.extent(problem, axis)
        for size in range(1, total + 1):
            rest = total % size
            check(parts.cut(problem, axis, (size,) * (total // size) + (rest,) * bool(rest)), problem)

    def test_rows_within_the_padding_read_nothing(self) -> None:
        problem = convolution("n1 c1 h3 w3 k1 r1 s1 stride1 pad2", "fwd")
        top, middle, bottom = parts.cut(problem, "h", (2, 3, 2))
        for piece in (top, bottom):
            assert (
                piece.problem.reference(np.full(piece.problem.x.shape, 7.0), np.ones((1, 1, 1, 1))).any() == 0
            )
        assert middle.problem.padding == ((0, 0), (2, 2))

    def test_rows_between_strides_have_no_gradient(self) -> None:
        problem = convolution("n1 c1 h9 w1 k1 r1 s1 stride4x1 pad0", "bwd_data")
        pieces = parts.cut(problem, "h", (1, 3, 1, 3, 1))
        check(pieces, problem)
        assert pieces[1].problem.y.shape == (1, 1, 1, 1)

    @pytest.mark.parametrize("axis", ["n", "k", "h", "w"])
    def test_integers(self, axis: str) -> None:
        problem = convolution("n4 c40 h9 w9 k6 r3 s3 stride1 pad1 i8 to_i8 nhwc", "fwd")
        pieces = parts.cut(problem, axis, (2, parts.extent(problem, axis) - 2))
        assert all(piece.problem.is_integer for piece in pieces)
        check(pieces, problem)

    def test_repeated_inputs_stay_repeated(self) -> None:
        x = TensorDescriptor((4, 3, 6, 6), (0, 0, 6, 1), "f32")
        problem = Convolution.make("fwd", x, (5, 3, 3, 3), padding=1)
        first, second = parts.cut(problem, "n", (1, 3))
        assert second.problem.x.strides == x.strides
        assert parts.byte_offsets(second, problem)[0] == 0
        check((first, second), problem)

    def test_many_axes(self) -> None:
        problem = convolution("n3 c4 d5 h6 w7 k6 t2 r3 s3 stride1x2x1 pad1 f64", "bwd_filter")
        pieces = [parts.whole(problem)]
        for axis in ("k", "n", "d", "h", "c"):
            pieces = [
                parts.within(outer, inner)
                for outer in pieces
                for inner in parts.cut(outer.problem, axis, (1, parts.extent(outer.problem, axis) - 1))
            ]
        assert len(pieces) == 32
        assert (
            sum(not piece.is_added for piece in pieces) == 4
        )  # the first for every share of dw, which k and c cut
        check(pieces, problem)


class TestMemory:
    @given(st.data(), convolutions(channels=(1, 2, 3, 5), most_extent=6))
    def test_offsets_lead_to_the_elements(self, data: st.DataObject, problem: Convolution) -> None:
        axis, sizes = data.draw(cuts(problem))
        for whole, number in zip(problem.operands, range(3), strict=True):
            descriptor = whole.descriptor
            low, high = descriptor.span()
            memory = np.arange(max(high - low + 1, 1), dtype=np.int64)
            item = numpy_dtype(descriptor.dtype).itemsize
            array = self._view(memory, -low, descriptor)
            for piece in parts.cut(problem, axis, sizes):
                part = piece.problem.operands[number].descriptor
                offset = parts.byte_offsets(piece, problem)[number]
                assert offset % item == 0
                if part.size:
                    found = self._view(memory, -low + offset // item, part)
                    np.testing.assert_array_equal(found, array[box(part, piece.starts[number])])

    @staticmethod
    def _view(memory: Array, start: int, descriptor: TensorDescriptor) -> Array:
        strides = [stride * memory.itemsize for stride in descriptor.strides]
        return np.lib.stride_tricks.as_strided(memory[start:], descriptor.shape, strides)


class TestStrings:
    def test_a_batch_in_pieces_is_the_problem_of_a_smaller_batch(self) -> None:
        for direction in DIRECTIONS:
            problem = convolution("n256 c64 h27 w27 k192 r5 s5 stride1 pad2 f32 nchw", direction)
            pieces = parts.cut(problem, "n", (128, 64, 64))
            smaller = convolution("n64 c64 h27 w27 k192 r5 s5 stride1 pad2 f32 nchw", direction)
            assert pieces[1].problem == pieces[2].problem == smaller
            assert pieces[1].problem is pieces[2].problem

    def test_channels_of_one_image_are_packed(self) -> None:
        problem = convolution("n1 c64 h27 w27 k192 r5 s5 stride1 pad2 f32 nchw", "fwd")
        piece = parts.cut(problem, "k", (64, 128))[0]
        assert str(piece.problem) == "conv_fwd n1 c64 h27 w27 k64 r5 s5 stride1 pad2 f32 nchw"

    def test_strides_of_unit_extents_do_not_count(self) -> None:
        odd = TensorDescriptor((4, 8, 9, 9), (999, 81, 9, 1), "f32")
        packed = TensorDescriptor.packed((4, 8, 9, 9), "f32")
        first, second = (
            parts.cut(Convolution.make("fwd", x, (6, 8, 3, 3)), "n", (1, 3))[0].problem for x in (odd, packed)
        )
        assert first == second
        halves = [
            parts.cut(problem, "h", (3, 4))[0].problem
            for problem in (first, Convolution.make("fwd", (1, 8, 9, 9), (6, 8, 3, 3)))
        ]
        assert str(halves[0]) == str(halves[1])

    def test_unit_extents_of_parts_with_gaps(self) -> None:
        for strides in ((500, 81, 9, 1), (7, 81, 9, 1)):
            part = parts.narrowed(TensorDescriptor((1, 8, 9, 9), strides, "f32"), (1, 4, 3, 9))
            assert part.strides == (324, 81, 9, 1)
        last = parts.narrowed(TensorDescriptor((1, 8, 9, 9), (0, 1, 72, 8), "f32"), (1, 8, 9, 3))
        assert last.strides == (648, 1, 72, 8)
        column = parts.narrowed(TensorDescriptor((2, 8, 9, 9), (648, 81, 9, 1), "f32"), (2, 8, 9, 1))
        assert column.strides == (648, 81, 9, 1)

    def test_one_piece_is_the_problem(self) -> None:
        problem = convolution("n4 c8 h9 w9 k6 r3 s3 stride1 pad1", "bwd_filter")
        for axis in ("n", "g", "k", "c", "h", "w"):
            assert parts.cut(problem, axis, (parts.extent(problem, axis),)) == (parts.whole(problem),)

    def test_one_group_of_a_depthwise_convolution_has_no_groups(self) -> None:
        problem = convolution("n4 c8 h9 w9 k16 r3 s3 stride1 pad1 g8", "fwd")
        first, second = parts.cut(problem, "g", (1, 7))
        assert (first.problem.groups, first.problem.c, first.problem.k) == (1, 1, 2)
        assert (second.problem.groups, second.problem.c, second.problem.k) == (7, 7, 14)
        assert second.starts == ((0, 1, 0, 0), (2, 0, 0, 0), (0, 2, 0, 0))


class TestAxes:
    def test_extents(self) -> None:
        words = "n4 c8 h9 w11 k6 r3 s3 stride2x1 pad1"
        expected = {"n": 4, "g": 1, "k": 6, "c": 8, "d": 0}
        for direction, rows in (("fwd", (5, 11)), ("bwd_filter", (5, 11)), ("bwd_data", (9, 11))):
            problem = convolution(words, direction)
            found = {axis: parts.extent(problem, axis) for axis in parts.AXES}
            assert found == {**expected, "h": rows[0], "w": rows[1]}
        grouped = convolution(f"{words} g2", "fwd")
        assert [parts.extent(grouped, axis) for axis in "gkc"] == [2, 0, 0]

    def test_sums(self) -> None:
        summed = {
            direction: "".join(
                axis
                for axis in parts.AXES
                if parts.is_summed(convolution("n2 c2 h9 w9 k2 r3 s3", direction), axis)
            )
            for direction in DIRECTIONS
        }
        assert summed == {"fwd": "c", "bwd_data": "k", "bwd_filter": "ndhw"}

    @pytest.mark.parametrize(
        ("words", "is_possible"), [("c8", True), ("c8 to_i32", False), ("c8 to_i8", False), ("c800", False)]
    )
    def test_integers_are_rounded_once(self, words: str, is_possible: bool) -> None:
        problem = convolution(f"n1 h9 w9 k6 r3 s3 i8 {words}", "fwd")
        if is_possible:
            check(parts.cut(problem, "c", (3, 5)), problem)
        else:
            assert parts.extent(problem, "c") == 0
            with pytest.raises(NotSupported, match="before they are complete"):
                parts.cut(problem, "c", (3, problem.c - 3))

    @pytest.mark.parametrize("sizes", [(), (4, 3), (4, 5), (8, 0), (9, -1)])
    def test_sizes_that_do_not_add_up(self, sizes: tuple[int, ...]) -> None:
        problem = convolution("n8 c2 h9 w9 k2 r3 s3", "fwd")
        with pytest.raises(InvalidArgument, match="add up to the 8 images"):
            parts.cut(problem, "n", sizes)

    def test_unknown_axis(self) -> None:
        problem = convolution("n8 c2 h9 w9 k2 r3 s3", "fwd")
        calls: Any = (parts.extent, parts.is_summed, lambda p, a: parts.cut(p, a, (8,)))
        for call in calls:
            with pytest.raises(InvalidArgument, match="one of 'n', 'g'"):
                call(problem, "x")

    def test_axes_that_are_not_there(self) -> None:
        problem = convolution("n0 c4 h9 w9 k4 r3 s3 g2", "fwd")
        for axis, why in (
            ("n", "no images"), ("d", "in space are h, w"), ("k", "2 groups, divide along g"), ("c", "2 groups"),
        ):  # fmt: skip
            with pytest.raises(NotSupported, match=why):
                parts.cut(problem, axis, (1,))
