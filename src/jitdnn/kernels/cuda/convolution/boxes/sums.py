"""Sums by channel of formulas of a convolution's results with box tiles, in the epilogue: source text and kernels.

The formulas see each result as it is stored, at most one tensor of its type and shape at the same place, and f32 values
of each channel, or of each channel of each image. With the squares of the results they are what a normalization after a
convolution needs; with its input beside the gradient of its result they are the sums in its own gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Operand
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.c_source import c_function
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.tensor import TensorDescriptor

MOST_NUMBERS = 8
RESULT, BESIDE, NUMBER = "result", "beside", "number"


@dataclass(frozen=True)
class Summing:
    """Two formulas that are summed, over each image or over all; `reads` says what their inputs are, in their order:
    the RESULT, the tensor BESIDE it, or a NUMBER of each channel, whose steps from image to image and from channel to
    channel are `steps`. `beside`: the tensor's strides, of images and of three axes of space."""

    formulas: tuple[Expression, Expression]
    by_image: bool
    reads: tuple[str, ...] = (RESULT,)
    beside: tuple[int, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    @property
    def numbers(self) -> int:
        return len(self.steps)

    @property
    def has_beside(self) -> bool:
        return bool(self.beside)

    @property
    def pointers(self) -> int:
        """Of the two sums, and of what is read beside the operands of the convolution."""
        return 2 + self.has_beside + self.numbers

    @property
    def defines(self) -> tuple[tuple[str, object], ...]:
        numbers = [f"number{place}" for place in range(self.numbers)]
        parameters = ["f32 *first_sums", "f32 *second_sums"]
        parameters += ["const u16 *beside"] * self.has_beside + [f"const f32 *{name}" for name in numbers]
        return (
            ("NUMBERS", self.numbers),
            ("HAS_BESIDE", int(self.has_beside)),
            ("BESIDE", "beside" if self.has_beside else "nullptr"),
            ("SUM_PARAMETERS", "".join(f"{one}, " for one in parameters)),
            ("NUMBER_ARGUMENTS", ", ".join(numbers) or "nullptr"),
        )

    @property
    def text(self) -> str:
        """The functions that know the formulas."""
        names, place = [], 0
        for one in self.reads:
            names.append(f"numbers[{place}][i]" if one == NUMBER else one)
            place += one == NUMBER
        lines = [c_function(one, f"summed_{kind}", "f32") for kind, one in enumerate(self.formulas)]
        lines.append(
            "FUNCTION void add_formulas(Totals &totals, const Numbers &numbers, int i, f32 result, f32 beside) {"
        )
        for kind, formula in enumerate(self.formulas):
            lines.append(f"    totals[{kind}][i] += summed_{kind}({', '.join(names[: formula.arity])});")
        parameters = ", ".join(f"const f32 *number{place}" for place in range(self.numbers)) or "const f32 *"
        lines.append("}")
        lines.append(
            "FUNCTION void load_numbers(Numbers &numbers, const Tables &tables, int image, int first_column, "
            f"{parameters}) {{"
        )
        if self.numbers:
            lines.append("#pragma unroll")
            lines.append("    for (int i = 0; i < COLUMNS / 4; ++i) {")
            lines.append(
                "        const int column = min(first_column + column_of(i), (int)tables.columns - 1);"
            )
            lines += [
                f"        numbers[{place}][i] = number{place}[image * tables.number_steps[{place}][0] + "
                f"column * tables.number_steps[{place}][1]];"
                for place in range(self.numbers)
            ]
            lines.append("    }")
        lines.append("}")
        return "\n".join(lines)

    def tables(self, images: int, sharers: int, is_turned: bool) -> tuple[int, ...]:
        """What the kernel is told, in the order of its numbers."""
        image, a, b, c = (self.beside or (0, 0, 0, 0))[:4]
        space = (b, a, c) if is_turned else (a, b, c)
        steps = [number for pair in (*self.steps, (0, 0)) for number in pair]
        return (images, int(self.by_image), sharers, image, *space, *steps)


def summing_of(
    problem: Convolution,
    formulas: Sequence[Expression],
    operands: Sequence[TensorDescriptor],
    place: int,
    by_image: bool,
) -> Summing | str:
    """What is summed, or why that cannot be.

    The formulas read `operands`, each with as many axes as the result, which is number `place` of them.
    """
    result = problem.output
    if len(formulas) != 2:
        return f"{len(formulas)} formulas: two are summed"
    reads: list[str] = []
    steps: list[tuple[int, int]] = []
    beside: tuple[int, ...] = ()
    for number, one in enumerate(operands):
        space = one.shape[2:]
        if number == place:
            reads.append(RESULT)
        elif one.shape == result.shape:
            own = Operand.of(one, 0)
            strides = (own.image, *own.space)
            if (
                beside
                or one.dtype != result.dtype
                or own.channel != 1
                or any(n * own.size % 16 for n in strides)
            ):
                return "one tensor of the type of the result is read beside it, with channels innermost"
            reads.append(BESIDE)
            beside = strides
        elif max(space, default=1) > 1 or one.dtype != "f32":
            return f"{one}: numbers of channels are f32"
        else:
            reads.append(NUMBER)
            image, channel = (
                stride if extent > 1 else 0
                for stride, extent in zip(one.strides, one.shape[:2], strict=False)
            )
            steps.append((image, channel))
    if len(steps) > MOST_NUMBERS:
        return f"{len(steps)} numbers of a channel: at most {MOST_NUMBERS} stay in registers"
    return Summing((formulas[0], formulas[1]), by_image, tuple(reads), beside, tuple(steps))


_MOMENTS = (trace(lambda y: y), trace(lambda y: y * y))


def moments(by_image: bool) -> Summing:
    """The sums of results and of their squares."""
    return Summing(_MOMENTS, by_image)
