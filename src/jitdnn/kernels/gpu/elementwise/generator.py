"""Loops over the elements of strided tensors, made from expressions for one element.

    out[i] = alpha * expression(a[i], b[i], ...) + beta * out[i]        (out is not read where beta is 0)

There may be several outputs, each with its expression, and every tensor has an element type of its own. The axes are
sorted into the order of the first output's memory, and joined where every tensor allows it. Then the elements are
numbered along the remaining axes, and each thread takes a few vectors of neighbours:

    thread block of 256 threads > `unroll` vectors a thread, all loaded before the first is used > elements of a vector

How a tensor is addressed by these numbers is compiled in:

    dense        the number is its place: one load of 16 bytes serves the vector
    unit         the same within a row; the row's place comes from the digits of the number
    repeated     one element for the whole vector
    strided      neighbours are not contiguous: element by element
    scattered    a vector may go over the end of a row: digit by digit, element by element

Extents and strides are arguments, so that one compiled kernel serves every size. Groups whose pointers are not aligned,
and the last one, go element by element. Where an input is contiguous along another axis than the output, square tiles
of both axes go through shared memory instead (`transposing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from jitdnn.devices.gpu import GpuDevice, Kernel, Launch, Source, read_text
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.formulas.elementwise import as_sequence, computing_dtype
from jitdnn.kernels.formulas.loop_nest import REPEATED, STRIDED, UNIT, Nest
from jitdnn.kernels.gpu.elementwise.code import THREADS, Code, base_lines, literal_defines, packs, signature
from jitdnn.kernels.gpu.elementwise.transposing import estimate_tiles, tiled_launch
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.types import refuse_doubles
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor, packed_strides

_DENSE, _SCATTERED = "dense", "scattered"
_MOST_IN_FLIGHT = 4  # vectors that a thread loads before it uses the first
_SINGLES = 4  # elements, where vectors cannot be
_BLOCKS_TO_FILL = 16  # thread blocks a multiprocessor should have before threads do more than one vector
_SECTOR = 32  # bytes that memory is read in
_MOST_ARGUMENTS = 100  # of all devices: beyond it, extents and strides are written into the text
_MOST_I32 = 2**31 - 1
_SPILLS = True  # a user's expression may need any number of registers


@dataclass(frozen=True)
class Found:
    """A nest and how each tensor of it is found."""

    nest: Nest
    moves: tuple[str, ...]
    vector: int


def refuse_elementwise(
    tensors: Sequence[TensorDescriptor], device: Device, computing: str | None = None
) -> str | None:
    """Why a device cannot run the loop; None if it can."""
    dtypes = [tensor.dtype for tensor in tensors]
    return refuse_doubles((*dtypes, computing or computing_dtype(dtypes)), cast(GpuDevice, device))


def estimate_elementwise(
    expressions: Expression | Sequence[Expression], tensors: Sequence[TensorDescriptor], device: Device
) -> float:
    """Expected seconds of the kernel that ``build_elementwise`` makes."""
    nest = Nest.of(tensors, len(tensors) - len(as_sequence(expressions)))
    dtypes = [tensor.dtype for tensor in tensors]
    tiled = estimate_tiles(nest, dtypes)
    moved = 0.0
    for number, (tensor, move) in enumerate(zip(tensors, nest.moves(), strict=True)):
        item = DTYPES[tensor.dtype]
        each = (
            item if move != STRIDED or number in tiled else min(_SECTOR, abs(nest.strides[number][-1]) * item)
        )
        distinct = prod(n for n, s in zip(tensor.shape, tensor.strides, strict=True) if s or n == 0)
        moved += distinct * each
    return LAUNCH_SECONDS + moved / device.bandwidth


def build_elementwise(
    expressions: Expression | Sequence[Expression],
    tensors: Sequence[TensorDescriptor],
    device: Device,
    plain: Sequence[int] = (),
    computing: str | None = None,
) -> Kernel:
    """The kernel of an expression, or several, over tensors of one shape: the inputs, then an output for each.

    An input that is broadcast has stride 0. Outputs may be inputs. Alpha and beta do not touch
    the outputs whose positions among them are in ``plain``. Where ``computing`` does not say otherwise, integers alone
    are computed as 64 bits that wrap; where there is a real number all are real, and rounded and saturated where
    integers are stored.
    """
    gpu, expressions = cast(GpuDevice, device), as_sequence(expressions)
    dtypes = tuple(tensor.dtype for tensor in tensors)
    computing = computing or computing_dtype(dtypes)
    if computing not in REAL_DTYPES:
        computing = "i64"
    nest = Nest.of(tensors, len(tensors) - len(expressions))
    code = Code(computing, dtypes, expressions, tuple(plain), nest, index_dtype(nest))
    numbers = [*nest.extents, *nest.bases, *(step for steps in nest.strides for step in steps)]
    tiled = tiled_launch(code)
    if tiled is not None:
        text, launch, nest = tiled
        code = Code(computing, dtypes, expressions, tuple(plain), nest, code.index)
        numbers = [*nest.extents, *nest.bases, *(step for steps in nest.strides for step in steps)]
    else:
        text, launch = _linear(code, gpu)
    defines: tuple[tuple[str, object], ...] = (("INDEX", code.index), ("COUNT", "u" + code.index[1:]))
    if len(numbers) + len(tensors) > _MOST_ARGUMENTS:
        defines, numbers = (*defines, *literal_defines(code)), []
    text = read_text("gpu/prelude", "vectors.h") + code.functions() + text
    source = Source("elementwise", text, defines, spills=_SPILLS)
    return gpu.kernel(source, [launch], len(tensors), [nest.size, *numbers])


def index_dtype(nest: Nest) -> str:
    """i32 where every offset, and every number up to the end of the last thread block, fits in it."""
    reaches = [
        sum((n - 1) * abs(s) for n, s in zip(nest.extents, steps, strict=True)) for steps in nest.strides
    ]
    return "i32" if max(*reaches, nest.size) < _MOST_I32 - (1 << 16) else "i64"


def found(nest: Nest, dtypes: Sequence[str], computing: str) -> Found:
    """How the tensors of a nest are found, in vectors as long as all allow."""
    dense = packed_strides(nest.extents)
    moves = [
        _DENSE if steps == dense else move for steps, move in zip(nest.strides, nest.moves(), strict=True)
    ]
    sizes = [DTYPES[d] for d, move in zip(dtypes, moves, strict=True) if move in (_DENSE, UNIT)]
    # 16 bytes of the smallest type, no more than 64 of the largest, that of the arithmetic among them
    most = min(16 // min(sizes), 64 // max(*sizes, DTYPES[computing])) if sizes else 1
    if all(move == _DENSE for move in moves):
        return Found(nest, tuple(moves), most)
    within = most
    ends = nest.extents[-1:] if len(nest.extents) > 1 else ()  # a single row has none within it
    rows = [s for steps, m in zip(nest.strides, moves, strict=True) if m == UNIT for s in steps[:-1]]
    while any(n % within for n in (*ends, *rows)):
        within //= 2
    is_output_dense = all(move == _DENSE for move in moves[nest.inputs :])
    if 2 * within >= most or not is_output_dense:
        return Found(nest, tuple(moves), within)
    # rows of odd lengths, as of a bias over pictures: vectors go over their ends
    return Found(nest, tuple(m if m == _DENSE else _SCATTERED for m in moves), most)


def _linear(code: Code, device: GpuDevice) -> tuple[str, Launch]:
    """The text and the launch of the loop over numbered elements."""
    how = found(code.nest, code.dtypes, code.computing)
    vector, inputs = how.vector, code.nest.inputs
    loads = sum(
        max(1, vector * DTYPES[d] // 16)
        for d, move in zip(code.dtypes[:inputs], how.moves, strict=False)
        if move != REPEATED
    )
    unroll = max(1, _MOST_IN_FLIGHT // max(1, loads))
    while (
        unroll > 1 and code.nest.size < THREADS * vector * unroll * _BLOCKS_TO_FILL * device.multiprocessors
    ):
        unroll //= 2
    block_elements = THREADS * vector * unroll
    launch = Launch("elementwise", max(1, -(-code.nest.size // block_elements)), THREADS)
    return _Linear(code, how, unroll).text(), launch


class _Linear:
    """The text of the loop over numbered elements."""

    def __init__(self, code: Code, how: Found, unroll: int) -> None:
        self.code, self.moves, self.vector, self.unroll = code, how.moves, how.vector, unroll
        self.inputs = code.nest.inputs
        self.apart = [t for t, move in enumerate(how.moves) if move != _DENSE]  # found by digits
        self.axes = len(code.nest.extents)

    def text(self) -> str:
        code, vector, unroll = self.code, self.vector, self.unroll
        kinds = {(dtype, count) for dtype in code.dtypes for count in (1, vector)}
        checks = " && ".join(
            f"IS_ALIGNED(p{t}, {min(16, vector * DTYPES[d])})"
            for t, d in enumerate(code.dtypes)
            if self.moves[t] in (_DENSE, UNIT)
        )
        block_elements, together = THREADS * vector * unroll, min(_SINGLES, vector * unroll)
        return f"""{packs(kinds)}
KERNEL({THREADS}) void elementwise({signature(code)}) {{
{base_lines(code)}  const INDEX group = (INDEX)BLOCK_ID(0) * {block_elements};
  if (group + {block_elements} <= total && {checks or 1}) {{
    const INDEX first = group;
{self._steps(vector, unroll, is_sure=True)}  }} else {{
    for (INDEX first = group; first < group + {block_elements} && first < total; first += {THREADS * together}) {{
{self._steps(1, together, is_sure=False)}    }}
  }}
}}
"""

    def _steps(self, vector: int, unroll: int, is_sure: bool) -> str:
        """Some vectors of each thread, from the number `first` on: load all, then compute and store all.

        Where they are not sure to be within the tensors, vectors must be single elements.
        """
        code = self.code
        held = "".join(
            f"    {code.computing if self.moves[t] == REPEATED else f'pack_{d}_{vector}'} q{t}[{unroll}];\n"
            for t, d in enumerate(code.dtypes[: self.inputs])
        )
        loop = (
            f"#pragma unroll\n    for (int u = 0; u < {unroll}; ++u) {{\n"
            f"      const INDEX at = first + (u * {THREADS} + THREAD_ID) * {vector};\n"
        )
        opening, closing = ("", "    }\n") if is_sure else ("      if (at < total) {\n", "      }\n    }\n")
        loads = "".join(self._load(t, vector) for t in range(self.inputs))
        loading = f"{held}{loop}{opening}{self._digits()}{loads}{closing}" if self.inputs else ""
        return f"{loading}{loop}{opening}{self._digits()}{self._finish(vector)}{closing}"

    def _place(self, tensor: int) -> str:
        return f"o{tensor}" if tensor in self.apart else "at"

    def _digits(self) -> str:
        """The digits of a number, and the offsets that follow from them."""
        if not self.apart:
            return ""
        lines = ["      COUNT rest = (COUNT)at;\n"]
        for axis in range(self.axes - 1, 0, -1):
            lines.append(f"      const COUNT d{axis} = rest % (COUNT)n{axis};\n")
            lines.append(f"      rest /= (COUNT)n{axis};\n")
        lines.append("      const COUNT d0 = rest;\n")
        for t in self.apart:
            terms = [
                f"(INDEX)d{axis} * (INDEX)s{t}_{axis}"
                for axis in range(self.axes)
                if self.code.nest.strides[t][axis]
            ]
            lines.append(f"      const INDEX o{t} = {' + '.join(terms) or '0'};\n")
        return "".join(lines)

    def _load(self, tensor: int, vector: int) -> str:
        """Bring what a vector needs of an input into registers."""
        dtype, move, place = self.code.dtypes[tensor], self.moves[tensor], self._place(tensor)
        if move == REPEATED:
            return f"      q{tensor}[u] = ({self.code.computing})number_{dtype}(p{tensor}[{place}]);\n"
        if vector == 1:
            return f"      q{tensor}[u].items[0] = p{tensor}[{place}];\n"
        if move in (_DENSE, UNIT):
            return f"      q{tensor}[u] = load_{dtype}_{vector}(p{tensor} + {place});\n"
        if move == STRIDED:
            step = f"(INDEX)s{tensor}_{self.axes - 1}"
            return (
                f"#pragma unroll\n      for (int j = 0; j < {vector}; ++j)\n"
                f"        q{tensor}[u].items[j] = p{tensor}[{place} + j * {step}];\n"
            )
        return self._iterate(tensor)

    def _iterate(self, tensor: int) -> str:
        """Element by element, over the ends of rows."""
        last = self.axes - 1
        carry = ""
        for axis in range(last, 0, -1):
            back = f"g += (INDEX)s{tensor}_{axis - 1} - (INDEX)n{axis} * (INDEX)s{tensor}_{axis};"
            more = f" if (++e{axis - 1} == (COUNT)n{axis - 1}) {{" if axis > 1 else ""
            carry += f"          e{axis} = 0; {back}{more}\n"
        closing = "          " + "}" * (last - 1) + "\n" if last > 1 else ""
        digits = "".join(f" COUNT e{axis} = d{axis};" for axis in range(1, self.axes))
        return f"""      {{
        INDEX g = o{tensor};{digits}
#pragma unroll
        for (int j = 0; j < {self.vector}; ++j) {{
          q{tensor}[u].items[j] = p{tensor}[g];
          g += (INDEX)s{tensor}_{last};
          if (++e{last} == (COUNT)n{last}) {{
{carry}{closing}          }}
        }}
      }}
"""

    def _finish(self, vector: int) -> str:
        code = self.code
        values = [
            f"q{t}[u]" if self.moves[t] == REPEATED else f"({code.computing})number_{d}(q{t}[u].items[j])"
            for t, d in enumerate(code.dtypes[: self.inputs])
        ]
        text = code.results(values, vector)
        for number in range(len(code.expressions)):
            t = self.inputs + number
            is_whole = vector > 1 and self.moves[t] in (_DENSE, UNIT)
            step = "" if is_whole or vector == 1 else f" * (INDEX)s{t}_{self.axes - 1}"
            text += code.store(number, f"p{t} + {self._place(t)}", vector, step, is_whole)
        return text


class ElementwiseLoops:
    """The elementwise generator of GPUs, for algorithms that are written for every target."""

    # functions of OpenCL may be off by 16 units in the last place, those of CUDA by 2
    function_error = 24.0

    def refuse(
        self, tensors: Sequence[TensorDescriptor], device: Device, computing: str | None = None
    ) -> str | None:
        return refuse_elementwise(tensors, device, computing)

    def estimate(self, expressions: Expression, tensors: Sequence[TensorDescriptor], device: Device) -> float:
        return estimate_elementwise(expressions, tensors, device)

    def build(
        self, expressions: Expression, tensors: Sequence[TensorDescriptor], device: Device, computing: str
    ) -> Kernel:
        return build_elementwise(expressions, tensors, device, computing=computing)
