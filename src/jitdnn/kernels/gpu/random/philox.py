"""Loops over tensors with the random words of their elements (`problems/philox.py`).

The elements are those of a box, every position of which stands for one block of four words and so for one element
in each part of the tensor. Each thread takes a vector of neighbouring positions in the order of memory, and with
their words the vectors of all parts; loads are in flight while the words are made.

Where the extent is no multiple of the parts, the last ones are short. The box is then divided into two regions, a
kernel each, in which every part that takes part is whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Device, Kernel
from jitdnn.kernels.formulas.parts_kernel import PartsKernel
from jitdnn.kernels.formulas.philox import Numbered, Region, regions
from jitdnn.kernels.gpu.elementwise.code import THREADS, packs, scale_line, store_vector
from jitdnn.kernels.gpu.elementwise.generator import index_dtype
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.types import storage_type
from jitdnn.problems.philox import part_extent, split_axis
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

_MOST_POSITIONS = 4  # of a thread: each has four words, and as many elements as there are parts


class Body(ABC):
    """What is done with the words, as text."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[int, ...]:
        """Whole numbers that the text has as number0, number1, ..."""

    @property
    @abstractmethod
    def reals(self) -> tuple[float, ...]:
        """Real numbers that it has as real0, real1, ..."""

    @abstractmethod
    def draw(self, dtype: str, part: int) -> str:
        """Statements that make r0[j], the principal result of `part`, and r1[j] if something is saved.

        Of the words w[j][0] to w[j][3], and of x[j] where there is an input; `dtype` is the arithmetic.
        """


def estimate_parts(tensors: Sequence[TensorDescriptor], device: Device) -> float:
    """Expected seconds of the kernel that `build_parts` makes."""
    return LAUNCH_SECONDS + sum(tensor.nbytes for tensor in tensors) / device.bandwidth


def build_parts(
    body: Body,
    tensors: Numbered,
    inputs: int,
    state: int,
    parts: int,
    device: Device,
) -> Kernel:
    """The kernel of a body over tensors of one shape, given with their operand numbers: `inputs` inputs (0 or 1),
    then what is saved, the principal output last. `state` is the operand number of the generator's state."""
    descriptors = [descriptor for _, descriptor in tensors]
    output = descriptors[-1]
    axis, part = split_axis(output.shape, parts), part_extent(output.shape, parts)
    steps = [part * descriptor.strides[axis] for descriptor in descriptors]
    places = [(number, 0) for number in range(len(tensors) + 1)]
    return PartsKernel(
        [
            (_Text(body, region, tensors, steps, inputs, state).kernel(cast(GpuDevice, device)), places)
            for region in regions(descriptors, axis, part)
        ]
    )


class _Text:
    """The text of one region; tensor t of the nest is p<t>, the numbers of the blocks have none."""

    def __init__(
        self,
        body: Body,
        region: Region,
        tensors: Numbered,
        part_steps: Sequence[int],
        inputs: int,
        state: int,
    ) -> None:
        self.body, self.nest, self.active = body, region.nest, region.active
        self.operands, self.inputs, self.state = [number for number, _ in tensors], inputs, state
        self.dtypes = [descriptor.dtype for _, descriptor in tensors]
        self.real = compute_dtype(self.dtypes[-1])
        self.part_steps = part_steps
        self.axes = len(self.nest.extents)
        self.blocks = len(tensors) - 1  # where the numbers of the blocks are in the nest
        # the nest's number of each tensor: the blocks come before the last one
        self.places = [*range(self.blocks), self.blocks + 1]
        self.vector = self._vector()

    def _vector(self) -> int:
        """Positions of a thread, whose elements are neighbours in every tensor."""
        strides = [self.nest.strides[place] for place in self.places]
        if any(steps[-1] != 1 for steps in strides):
            return 1
        count = min(_MOST_POSITIONS, 16 // max(DTYPES[dtype] for dtype in self.dtypes))
        ends = self.nest.extents[-1:] if self.axes > 1 else ()
        rows = [step for steps in strides for step in steps[:-1]]
        while any(n % count for n in (*ends, *rows, *self.part_steps)):
            count //= 2
        return count

    def kernel(self, device: GpuDevice) -> Kernel:
        """The kernel of the region."""
        names = self._numbers()
        text = read_text("gpu/prelude", "vectors.h", "philox.h") + self._text([n for n, _ in names])
        index = index_dtype(self.nest)
        defines = (("INDEX", index), ("COUNT", f"u{index[1:]}"))
        launch = Launch("draw", -(-self.nest.size // (THREADS * self.vector)), THREADS)
        extras = [number for _, number in names]
        # older compilers run out of registers by a few bytes where a normal draw has both its logarithm and its angle
        source = Source("philox", text, defines, spills=True)
        return device.kernel(source, [launch], len(self.operands) + 1, extras, self.body.reals)

    def _numbers(self) -> list[tuple[str, int]]:
        nest = self.nest
        return [
            ("total", nest.size),
            *((f"number{n}", number) for n, number in enumerate(self.body.numbers)),
            *((f"n{axis}", extent) for axis, extent in enumerate(nest.extents)),
            *((f"base{t}", base) for t, base in enumerate(nest.bases)),
            *((f"s{t}_{a}", step) for t, steps in enumerate(nest.strides) for a, step in enumerate(steps)),
            *((f"part{t}", step) for t, step in enumerate(self.part_steps)),
        ]

    def _signature(self, names: Sequence[str]) -> str:
        pointers = {self.state: "GLOBAL const u32 *state"}
        for t, (operand, dtype) in enumerate(zip(self.operands, self.dtypes, strict=True)):
            constant = "const " if t < self.inputs else ""
            pointers[operand] = f"GLOBAL {constant}{storage_type(dtype)} *p{t}"
        own = [pointers[number] for number in sorted(pointers)]
        numbers = [f"i64 {name}" for name in names] + [f"SCALE real{n}" for n in range(len(self.body.reals))]
        return ", ".join([*own, "GLOBAL u8 *workspace", "SCALE alpha", "SCALE beta", *numbers])

    def _text(self, names: Sequence[str]) -> str:
        vector, tensors = self.vector, range(len(self.dtypes))
        kinds = {(dtype, count) for dtype in self.dtypes for count in (1, vector)}
        bases = "".join(f"  p{t} += base{self.places[t]};\n" for t in tensors)
        checks = " && ".join(f"IS_ALIGNED(p{t}, {vector * DTYPES[d]})" for t, d in enumerate(self.dtypes))
        every = f"""    for (INDEX at = first; at < first + {vector} && at < total; ++at) {{
{self._places()}{self._loads(1)}{self._results(1)}    }}
"""
        if vector > 1:
            # behind a barrier no load can come, so that the words are made while memory answers
            early = f"  if (is_whole) {{\n{self._loads(vector)}  }}\n  BARRIER();\n" if self.inputs else ""
            every = f"""  const int is_whole = first + {vector} <= total && {checks};
  const INDEX at = first;
{self._places()}{self._declared(vector)}{early}  if (is_whole) {{
{self._results(vector)}  }} else {{
{every}  }}
"""
        return f"""{packs(kinds)}
KERNEL({THREADS}) void draw({self._signature(names)}) {{
{bases}{scale_line(self.real)}  const u32 key0 = state[0], key1 = state[1], low = state[2], high = state[3];
  const INDEX first = ((INDEX)BLOCK_ID(0) * {THREADS} + THREAD_ID) * {vector};
{every}}}
"""

    def _places(self) -> str:
        """Where the elements of the position `at` are in each tensor, and the number of its block."""
        lines = ["      COUNT rest = (COUNT)at;\n"]
        for axis in range(self.axes - 1, 0, -1):
            lines.append(f"      const COUNT d{axis} = rest % (COUNT)n{axis};\n")
            lines.append(f"      rest /= (COUNT)n{axis};\n")
        lines.append("      const COUNT d0 = rest;\n")
        for t, place in enumerate(self.places):
            terms = [f"(INDEX)d{axis} * (INDEX)s{place}_{axis}" for axis in range(self.axes)]
            lines.append(f"      const INDEX o{t} = {' + '.join(terms)};\n")
        terms = [f"(i64)d{axis} * s{self.blocks}_{axis}" for axis in range(self.axes)]
        return "".join([*lines, f"      const i64 block = base{self.blocks} + {' + '.join(terms)};\n"])

    def _declared(self, vector: int) -> str:
        """Room for the inputs' elements."""
        names = ", ".join(f"q{part}" for part in range(self.active))
        return f"      pack_{self.dtypes[0]}_{vector} {names};\n" if self.inputs else ""

    def _loads(self, vector: int) -> str:
        """The elements of all parts, by vectors."""
        lines = [self._declared(vector)] if vector == 1 else []
        for t in range(self.inputs):
            for part in range(self.active):
                place = f"p{t} + o{t} + {part} * part{t}"
                lines.append(f"      q{part} = load_{self.dtypes[t]}_{vector}({place});\n")
        return "".join(lines)

    def _results(self, vector: int) -> str:
        """The words of the positions from `at` on, and what becomes of them."""
        lines: list[str] = []
        step = f"s{self.blocks}_{self.axes - 1}"
        lines.append(f"""      u32 w[{vector}][4];
#pragma unroll
      for (int j = 0; j < {vector}; ++j)
        philox(w[j], (u64)(block + j * {step}), key0, key1, low, high);
""")
        lines += [self._part(part, vector) for part in range(self.active)]
        return "".join(lines)

    def _part(self, part: int, vector: int) -> str:
        outputs = range(self.inputs, len(self.dtypes))
        # the principal result first, then what is saved
        order = [outputs[-1], *outputs[:-1]]
        lines = ["      {\n"]
        for number in range(len(order)):
            lines.append(f"        {self.real} r{number}[{vector}];\n")
        lines.append(f"#pragma unroll\n        for (int j = 0; j < {vector}; ++j) {{\n")
        if self.inputs:
            value = f"({self.real})number_{self.dtypes[0]}(q{part}.items[j])"
            lines.append(f"          const {self.real} x = {value};\n")
        lines += [f"          {self.body.draw(self.real, part)}\n", "        }\n"]
        for number, t in enumerate(order):
            place = f"p{t} + o{t} + {part} * part{t}"
            lines.append(
                store_vector(self.real, self.dtypes[t], f"r{number}", place, vector, is_plain=number > 0)
            )
        return "".join([*lines, "      }\n"])
