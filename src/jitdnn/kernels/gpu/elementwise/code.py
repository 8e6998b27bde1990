"""Pieces of source text of all elementwise kernels: parameters, results of a vector, and how they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jitdnn.kernels.formulas.loop_nest import Nest
from jitdnn.kernels.gpu.prelude.types import storage_type
from jitdnn.rtcg.c_source import c_function
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import DTYPES, REAL_DTYPES

THREADS = 256  # of a thread block


@dataclass(frozen=True)
class Code:
    """Expressions over the tensors of a nest: inputs, then an output for each expression.

    In the text, tensor t is p<t>, its stride on axis a s<t>_<a>, the extent of the axis n<a>.
    """

    computing: str  # f32, f64 or i64
    dtypes: tuple[str, ...]
    expressions: tuple[Expression, ...]
    plain: tuple[int, ...]  # outputs that alpha and beta do not touch
    nest: Nest
    index: str  # i32 or i64

    def functions(self) -> str:
        """The expressions as functions f0, f1, ..."""
        return "".join(
            c_function(expression, f"result{number}", self.computing)
            for number, expression in enumerate(self.expressions)
        )

    def results(self, values: Sequence[str], vector: int) -> str:
        """Compute r<output>[j] for all j of a vector; `values`: the inputs' numbers as C expressions of j.

        All outputs are computed before one is stored: they may be inputs.
        """
        arguments = ", ".join(values)
        lines = [f"      {self.computing} r{n}[{vector}];\n" for n in range(len(self.expressions))]
        lines.append(f"#pragma unroll\n      for (int j = 0; j < {vector}; ++j) {{\n")
        for number, expression in enumerate(self.expressions):
            assert expression.arity == len(values)
            lines.append(f"        r{number}[j] = result{number}({arguments});\n")
        return "".join([*lines, "      }\n"])

    def store(self, number: int, place: str, vector: int, step: str, is_whole: bool) -> str:
        """Scale and store the vector r<number> of an output, as `store_vector` does."""
        dtype = self.dtypes[self.nest.inputs + number]
        is_plain = number in self.plain
        return store_vector(self.computing, dtype, f"r{number}", place, vector, step, is_whole, is_plain)


def store_vector(
    computing: str,
    dtype: str,
    results: str,
    place: str,
    vector: int,
    step: str = "",
    is_whole: bool = True,
    is_plain: bool = False,
) -> str:
    """Text that scales and stores an array of results at the pointer `place`: in one piece if `is_whole`.

    Otherwise element j goes to place[j `step`], where `step` is empty or like " * (INDEX)s". Around it, `scale`,
    `blend` and `is_blended` must be what `scale_line` makes them. Results that are plain are not scaled.
    """
    target = f"({place})"
    pack = f"pack_{dtype}_{vector}"
    loop = f"#pragma unroll\n        for (int j = 0; j < {vector}; ++j)"
    result = f"{results}[j]"
    read = f"const {pack} old = load_{dtype}_{vector}({place});" if is_whole else ""
    old = "old.items[j]" if is_whole else f"{target}[j{step}]"
    made = f"{pack} made;" if is_whole else ""
    item = "made.items[j]" if is_whole else f"{target}[j{step}]"
    put = f"store_{dtype}_{vector}({place}, made);" if is_whole else ""
    if is_plain:
        return f"""      {{
        {made}
{loop} {item} = item_{dtype}_{computing}({result});
        {put}
      }}
"""
    if dtype in REAL_DTYPES:
        return f"""      {{
        {made}
{loop} {result} *= scale;
        if (is_blended) {{
          {read}
{loop} {result} = fma(blend, ({computing})number_{dtype}({old}), {result});
        }}
{loop} {item} = item_{dtype}_{computing}({result});
        {put}
      }}
"""
    # integers are exact where they are not scaled, and scaled as the longest reals
    wide = (
        f"(SCALE){result}"
        if computing in REAL_DTYPES
        else f"(SCALE)number_{dtype}(item_{dtype}_i64({result}))"
    )
    before = f"(SCALE)number_{dtype}({old})"
    return f"""      {{
        {made}
        if (alpha == 1 && beta == 0) {{
{loop} {item} = item_{dtype}_{computing}({result});
        }} else if (beta == 0) {{
{loop} {item} = JOIN(item_{dtype}_, SCALE_TYPE)(alpha * {wide});
        }} else {{
          {read}
{loop} {item} = JOIN(item_{dtype}_, SCALE_TYPE)(blend_whole(alpha, {wide}, beta, {before}));
        }}
        {put}
      }}
"""


def packs(kinds: Iterable[tuple[str, int]]) -> str:
    """Declare vectors of these types and counts."""
    lines = []
    for dtype, count in sorted(set(kinds)):
        size = DTYPES[dtype] * count
        word = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}.get(size, "u32x4")
        lines.append(f"PACK({dtype}, {storage_type(dtype)}, {count}, {word}, {max(1, size // 16)})\n")
    return "".join(lines)


def _names(code: Code) -> list[tuple[str, int]]:
    nest = code.nest
    return [
        *((f"n{axis}", extent) for axis, extent in enumerate(nest.extents)),
        *((f"base{tensor}", base) for tensor, base in enumerate(nest.bases)),
        *((f"s{t}_{a}", step) for t, steps in enumerate(nest.strides) for a, step in enumerate(steps)),
    ]


def literal_defines(code: Code) -> list[tuple[str, object]]:
    """All extents, bases and strides as words that stand for numbers."""
    return [("LITERALS", 1), *((name, f"((i64){value})") for name, value in _names(code))]


def signature(code: Code) -> str:
    """The kernel's parameters."""
    pointers = [
        f"GLOBAL {'const ' if t < code.nest.inputs else ''}{storage_type(dtype)} *p{t}"
        for t, dtype in enumerate(code.dtypes)
    ]
    own = [*pointers, "GLOBAL u8 *workspace", "SCALE alpha", "SCALE beta", "i64 total"]
    numbers = "".join(f", i64 {name}" for name, _ in _names(code))
    return f"{', '.join(own)}\n#ifndef LITERALS\n    {numbers}\n#endif\n"


def base_lines(code: Code) -> str:
    """Move every pointer to the element where the loops begin; alpha and beta in the type of the arithmetic."""
    moves = "".join(f"  p{t} += base{t};\n" for t in range(len(code.dtypes)))
    return moves if code.computing == "i64" else moves + scale_line(code.computing)


def scale_line(real: str) -> str:
    """Alpha and beta in the type of the arithmetic."""
    return (
        f"  const {real} scale = ({real})alpha, blend = ({real})beta;\n  const int is_blended = beta != 0;\n"
    )
