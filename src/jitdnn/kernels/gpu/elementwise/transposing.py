"""Elementwise loops in which an input is contiguous along another axis than the output.

Square tiles of both axes go through shared memory, so that reads and writes are in long runs:

    thread block = a tile of `along` elements of the input's axis by `across` of the output's
        load      vectors of the input along its own axis, each element to its place in the tile
        barrier
        finish    vectors along the output's axis: from the tile, and other inputs from memory

Extents and strides are arguments. The vector length divides extents and strides, so that no vector goes over an end;
where pointers are not aligned vectors have one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jitdnn.devices.gpu import Launch
from jitdnn.kernels.formulas.loop_nest import CROSSED, REPEATED, STRIDED, UNIT, Nest
from jitdnn.kernels.gpu.elementwise.code import THREADS, Code, base_lines, packs, signature
from jitdnn.tensor import DTYPES

_LEAST = 8  # elements of the shorter axis, or squares are not worth it
_SHARED_BYTES = 40 << 10  # of a thread block


def _crossed(nest: Nest) -> tuple[Nest, tuple[str, ...]]:
    """The nest with the axes of the squares last, and the moves; no move is CROSSED if there are no squares."""
    reordered, moves = nest.crossed(1)
    if CROSSED not in moves or min(reordered.extents[-2:]) < _LEAST:
        return nest, nest.moves()
    return reordered, moves


def estimate_tiles(nest: Nest, dtypes: Sequence[str]) -> frozenset[int]:
    """The inputs that are read in squares."""
    moves = _crossed(nest)[1]
    return frozenset(t for t, move in enumerate(moves) if move == CROSSED)


def tiled_launch(code: Code) -> tuple[str, Launch, Nest] | None:
    """The text, the launch, and the nest in the order of the text; None where squares do not help."""
    nest, moves = _crossed(code.nest)
    if nest.size == 0:
        return None
    crossing = [t for t, move in enumerate(moves) if move == CROSSED]
    if not crossing:
        return None
    item = 8 if code.computing in ("f64", "i64") else 4
    area = 4096
    while len(crossing) * item * (area + area // 8) > _SHARED_BYTES:
        area //= 2
    if area < 512:  # more inputs than there is room for
        return None
    along, across = nest.extents[-2:]
    side = 64 if area == 4096 else 32 if area >= 1024 else 16
    height, width = _extent(along, side), _extent(across, side)
    if height < side:
        width = _extent(across, area // height)
    elif width < side:
        height = _extent(along, area // width)
    else:
        width = area // height
    width = max(width, THREADS // height)  # every thread has an element
    squares = -(-along // height) * -(-across // width) * prod(nest.extents[:-2])
    reordered = Code(code.computing, code.dtypes, code.expressions, code.plain, nest, code.index)
    text = _Tiled(reordered, moves, height, width).text()
    return text, Launch("elementwise", max(1, squares), THREADS), nest


def _extent(extent: int, most: int) -> int:
    """The power of two that holds an extent, from 8 to `most`."""
    size = _LEAST
    while size < most and size < extent:
        size *= 2
    return size


class _Tiled:
    def __init__(self, code: Code, moves: Sequence[str], height: int, width: int) -> None:
        self.code, self.moves, self.height, self.width = code, moves, height, width
        self.inputs, self.axes = code.nest.inputs, len(code.nest.extents)
        self.crossing = [t for t, move in enumerate(moves) if move == CROSSED]
        self.real = code.computing

    def _vector(self, tensors: Sequence[int], axis: int, most: int) -> int:
        """Elements of a vector along an axis that suit these tensors."""
        nest, sizes = self.code.nest, [DTYPES[self.code.dtypes[t]] for t in tensors]
        every = self.height * self.width // THREADS  # no more than give all threads one
        count = min(most, every, 16 // min(sizes), 32 // max(*sizes, DTYPES[self.real]))
        others = [s for t in tensors for a, s in enumerate(nest.strides[t]) if a != axis]
        while any(n % count for n in (nest.extents[axis], *others)):
            count //= 2
        return count

    def text(self) -> str:
        code, last = self.code, self.axes - 1
        units = [t for t, move in enumerate(self.moves) if move == UNIT]
        out = self._vector(units, last, self.width) if self.moves[self.inputs] == UNIT else 1
        kinds = {(code.dtypes[t], v) for t in units for v in (1, out)}
        loads = ""
        for t in self.crossing:
            vector = self._vector([t], last - 1, self.height)
            kinds |= {(code.dtypes[t], 1), (code.dtypes[t], vector)}
            loads += self._either([t], vector, self._fill(t, vector), self._fill(t, 1))
        finish = self._either(units, out, self._finish(out), self._finish(1))
        squares = "".join(
            f"  SHARED {self.real} square{t}[{self.height * (self.width + 1)}];\n" for t in self.crossing
        )
        return f"""{packs(kinds)}
KERNEL({THREADS}) void elementwise({signature(code)}) {{
{squares}{base_lines(code)}{self._start()}{loads}  BARRIER();
{finish}}}
"""

    def _either(self, tensors: Sequence[int], vector: int, whole: str, single: str) -> str:
        """Text for aligned pointers, and for others."""
        if vector == 1:
            return single
        checks = " && ".join(
            f"IS_ALIGNED(p{t}, {min(16, vector * DTYPES[self.code.dtypes[t]])})" for t in tensors
        )
        return f"  if ({checks}) {{\n{whole}  }} else {{\n{single}  }}\n"

    def _start(self) -> str:
        """Which square it is, and every tensor's pointer at its first element."""
        lines = [
            "  i64 rest = BLOCK_ID(0);\n",
            f"  const i64 blocks = (n{self.axes - 1} + {self.width - 1}) / {self.width};\n",
            f"  const INDEX across = (INDEX)(rest % blocks) * {self.width};\n",
            "  rest /= blocks;\n",
            f"  const i64 rows = (n{self.axes - 2} + {self.height - 1}) / {self.height};\n",
            f"  const INDEX along = (INDEX)(rest % rows) * {self.height};\n",
            "  rest /= rows;\n",
            f"  const INDEX columns_left = (INDEX)n{self.axes - 1} - across;\n",
            f"  const INDEX rows_left = (INDEX)n{self.axes - 2} - along;\n",
        ]
        for axis in range(self.axes - 3, -1, -1):
            lines.append(f"  {{\n    const i64 digit = rest % n{axis};\n    rest /= n{axis};\n")
            lines += [f"    p{t} += digit * s{t}_{axis};\n" for t in range(len(self.moves))]
            lines.append("  }\n")
        for t in range(len(self.moves)):
            lines.append(
                f"  p{t} += (i64)along * s{t}_{self.axes - 2} + (i64)across * s{t}_{self.axes - 1};\n"
            )
        return "".join(lines)

    def _loop(self, vectors: int, body: str) -> str:
        return (
            f"#pragma unroll\n    for (int turn = 0; turn < {vectors // THREADS}; ++turn) {{\n"
            f"      const int v = turn * {THREADS} + THREAD_ID;\n{body}    }}\n"
        )

    def _fill(self, t: int, vector: int) -> str:
        """Vectors of an input along its own axis, first all into registers, then into the square."""
        dtype, per_row = self.code.dtypes[t], self.height // vector
        vectors = self.width * per_row
        place = f"const int column = v / {per_row}, row = (v % {per_row}) * {vector};"
        inside = "column < columns_left && row < rows_left"
        loading = f"""      {{
        {place}
        if ({inside}) q[turn] = load_{dtype}_{vector}(p{t} + (INDEX)column * (INDEX)s{t}_{self.axes - 1} + row);
      }}
"""
        putting = f"""      {{
        {place}
        if ({inside}) {{
#pragma unroll
          for (int j = 0; j < {vector}; ++j)
            square{t}[(row + j) * {self.width + 1} + column] = ({self.real})number_{dtype}(q[turn].items[j]);
        }}
      }}
"""
        held = f"    pack_{dtype}_{vector} q[{vectors // THREADS}];\n"
        return "  {\n" + held + self._loop(vectors, loading) + self._loop(vectors, putting) + "  }\n"

    def _finish(self, vector: int) -> str:
        """Vectors along the output's axis."""
        code, per_row, (row_axis, axis) = self.code, self.width // vector, (self.axes - 2, self.axes - 1)
        lines = [
            f"        const int row = v / {per_row}, column = (v % {per_row}) * {vector};\n",
            "        if (row < rows_left && column < columns_left) {\n",
        ]
        values = []
        for t, dtype in enumerate(code.dtypes):
            start = f"(INDEX)row * (INDEX)s{t}_{row_axis} + (INDEX)column * (INDEX)s{t}_{axis}"
            if self.moves[t] == CROSSED:
                values.append(f"square{t}[row * {self.width + 1} + column + j]")
                continue
            lines.append(f"      const INDEX o{t} = {start};\n")
            if t >= self.inputs:
                continue
            if self.moves[t] == UNIT:
                lines.append(
                    f"      const pack_{dtype}_{vector} q{t} = load_{dtype}_{vector}(p{t} + o{t});\n"
                )
                item = f"q{t}.items[j]"
            elif self.moves[t] == REPEATED:
                lines.append(f"      const {self.real} q{t} = ({self.real})number_{dtype}(p{t}[o{t}]);\n")
                values.append(f"q{t}")
                continue
            else:
                assert self.moves[t] == STRIDED
                item = f"p{t}[o{t} + j * (INDEX)s{t}_{axis}]"
            values.append(f"({self.real})number_{dtype}({item})")
        lines.append(code.results(values, vector))
        for number in range(len(code.expressions)):
            t = self.inputs + number
            is_unit = self.moves[t] == UNIT
            step = "" if is_unit else f" * (INDEX)s{t}_{axis}"
            lines.append(code.store(number, f"p{t} + o{t}", vector, step, is_unit))
        body = "      {\n" + "".join(lines) + "        }\n      }\n"
        return "  {\n" + self._loop(self.height * per_row, body) + "  }\n"
