"""Table look-up by index on GPUs, and its gradient: a sum for each row of the table.

    forward    a thread has some vectors of columns of rows of y: first it reads their indices, then the rows
    backward   count: a thread block goes through all indices for a range of the table's rows    (`embedding.c`)
               list:  the same again, now that every range knows where its list begins
               sum:   a thread block has a row of the table, or some columns of it: it takes those entries of the list
                      of its range that belong to the row, adds them up in registers and writes the row once
               sum_crowded: the same for ranges with long lists, in which the threads of a thread block share a row in
                      several subsets

Lists keep the order of the indices, so that sums are the same from run to run, without atomics. An index that is no row
of the table is never used as one.
"""

from __future__ import annotations

from math import prod, sqrt

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, TypedAlgorithm
from jitdnn.kernels.formulas.loop_nest import Nest
from jitdnn.kernels.gpu.elementwise.code import THREADS, packs, scale_line, store_vector
from jitdnn.kernels.gpu.elementwise.generator import refuse_elementwise
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.problems.embedding import Embedding
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

_UNROLL = 4  # vectors of a thread on their way at once, forward
_TOGETHER = (
    2,
    4,
)  # backward: where all threads of a block have a column each, and where subsets share columns
_RANGES = 512  # at most, of the table's rows
_CROWDED = 2048  # entries of a list for which such subsets are worth it
_SUBSETS, _LANES = 16, 32  # of such a thread block
_INDEX_SECONDS = 2e-11  # for an index in each range's thread block, all of them side by side


class _Text:
    """The text of both directions."""

    def __init__(self, problem: Embedding) -> None:
        self.problem = problem
        self.source, _, self.target = (operand.descriptor for operand in problem.operands)
        rows = TensorDescriptor(problem.indices.shape, problem.y.strides[:-1], problem.y.dtype)
        self.nest = Nest.of((problem.indices, rows))
        self.count = prod(self.nest.extents) if problem.indices.size else 0
        self.dtype, self.real = problem.weight.dtype, compute_dtype(problem.weight.dtype)
        self.columns = problem.weight.shape[1]
        self.vector = self._vector()
        self.ranges = min(problem.rows, _RANGES)
        self.per_range = -(-problem.rows // self.ranges)
        self.threads = 64
        while self.threads < THREADS and self.threads * self.vector < self.columns:
            self.threads *= 2

    def _vector(self) -> int:
        if self.source.strides[-1] != 1 or self.target.strides[-1] != 1:
            return 1
        vector = 16 // DTYPES[self.dtype]
        steps = [*self.nest.strides[1], self.problem.weight.strides[0], self.columns]
        while any(step % vector for step in steps):
            vector //= 2
        return vector

    def numbers(self) -> list[tuple[str, int]]:
        """What the text is told at run time."""
        nest, problem = self.nest, self.problem
        return [
            ("count", self.count),
            ("rows", problem.rows),
            ("columns", self.columns),
            ("padding", -1 if problem.padding is None else problem.padding),
            ("source_step", self.source.strides[-1]),
            ("target_step", self.target.strides[-1]),
            ("row_step", problem.weight.strides[0]),
            ("ranges", self.ranges),
            ("per_range", self.per_range),
            ("most", _CROWDED),
            *((f"n{axis}", extent) for axis, extent in enumerate(nest.extents)),
            *((f"base{t}", base) for t, base in enumerate(nest.bases)),
            *((f"s{t}_{a}", step) for t, steps in enumerate(nest.strides) for a, step in enumerate(steps)),
        ]

    def kernel(self, device: GpuDevice) -> Kernel:
        """The kernel of the problem's direction."""
        numbers = self.numbers()
        signature = (
            f"GLOBAL const {self.dtype} *source, GLOBAL const {self.problem.indices.dtype} *indices, "
            f"GLOBAL {self.dtype} *target, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, "
            + ", ".join(f"i64 {name}" for name, _ in numbers)
        )
        count = "u32" if max(self.count, 1) * max(1, self.columns) < 2**31 else "u64"
        defines = (
            ("SIGNATURE", signature), ("FIND(i)", self._find()), ("COUNT", count), ("THREADS_", self.threads),
        )  # fmt: skip
        extras = [number for _, number in numbers]
        vectors = -(-self.columns // self.vector)
        declared = packs({(self.dtype, self.vector)})
        if self.problem.direction == "fwd":
            text = read_text("gpu/prelude", "vectors.h") + declared + self._gather()
            blocks = -(-self.count * vectors // (THREADS * _UNROLL))
            launches = [Launch("gather", max(1, blocks), THREADS)]
        else:
            text = (
                read_text("gpu/prelude", "vectors.h")
                + "\n"
                + read_text("gpu/sampling", "embedding.c")
                + declared
                + self._sum("sum", 1, self.threads)
            )
            blocks = -(-vectors // self.threads)
            launches = [
                Launch("count_range", self.ranges, self.threads),
                Launch("list_range", self.ranges, self.threads),
                Launch("sum", self.problem.rows * blocks, self.threads),
            ]
            if self.count > _CROWDED:
                text += self._sum("sum_crowded", _SUBSETS, _LANES)
                most = min(self.ranges, self.count // _CROWDED) * self.per_range
                blocks = most * -(-vectors // _LANES)
                launches += [
                    Launch("list_crowded", 1, self.threads),
                    Launch("sum_crowded", blocks, _SUBSETS * _LANES),
                ]
        return device.kernel(Source("embedding", text, defines), launches, 3, extras)

    def _find(self) -> str:
        """Where index i is, and its row of y."""
        steps = ["COUNT rest = (COUNT)(i);"]
        for axis in range(len(self.nest.extents) - 1, 0, -1):
            steps.append(f"const i64 d{axis} = rest % (COUNT)n{axis}; rest /= (COUNT)n{axis};")
        steps.append("const i64 d0 = rest;")
        for t, name in enumerate(("index_place", "row_place")):
            terms = " + ".join(f"d{axis} * s{t}_{axis}" for axis in range(len(self.nest.extents)))
            steps.append(f"const i64 {name} = {terms};")
        return " ".join(steps)

    def _load(self, pack: str, place: str) -> str:
        """Fill a pack with columns from a place of the source on."""
        kind = f"{self.dtype}_{self.vector}"
        if self.vector == 1:
            return f"{pack}.items[0] = source[{place}];"
        return (
            f"if (is_aligned) {pack} = load_{kind}(source + ({place}));\n"
            f"        else for (int j = 0; j < {self.vector}; ++j) {pack}.items[j] = source[{place} + j];"
        )

    def _store(self, place: str) -> str:
        """Store r as columns from a place of the target on."""
        single = store_vector(self.real, self.dtype, "r", f"target + ({place})", self.vector, "", False)
        if self.vector == 1:
            return single
        whole = store_vector(self.real, self.dtype, "r", f"target + ({place})", self.vector)
        return f"      if (is_aligned) {{\n{whole}      }} else {{\n{single}      }}\n"

    def _aligned(self) -> str:
        size = self.vector * DTYPES[self.dtype]
        return f"  const int is_aligned = IS_ALIGNED(source, {size}) && IS_ALIGNED(target, {size});\n"

    def _gather(self) -> str:
        vector, kind = self.vector, f"pack_{self.dtype}_{self.vector}"
        loop = f"#pragma unroll\n  for (int u = 0; u < {_UNROLL}; ++u) {{\n"
        at = f"    const i64 at = (BLOCK_ID(0) * {_UNROLL} + u) * {THREADS} + THREAD_ID;\n"
        return f"""
KERNEL({THREADS}) void gather(SIGNATURE) {{
  indices += base0;
  target += base1;
{scale_line(self.real)}{self._aligned()}  const i64 vectors = columns / {vector};
  i64 index[{_UNROLL}], place[{_UNROLL}];
  {kind} q[{_UNROLL}];
{loop}{at}    index[u] = -1;
    if (at < count * vectors) {{
      FIND((COUNT)at / (COUNT)vectors)
      index[u] = indices[index_place];
      place[u] = row_place;
    }}
  }}
{loop}{at}    if (index[u] >= 0 && index[u] < rows) {{
        const i64 column = (i64)((COUNT)at % (COUNT)vectors) * {vector};
        {self._load("q[u]", "index[u] * row_step + column * source_step")}
    }}
  }}
{loop}{at}    if (at < count * vectors) {{
      const i64 column = (i64)((COUNT)at % (COUNT)vectors) * {vector};
      const int is_row = index[u] >= 0 && index[u] < rows;
      {self.real} r[{vector}];
#pragma unroll
      for (int j = 0; j < {vector}; ++j)
        r[j] = is_row ? ({self.real})number_{self.dtype}(q[u].items[j]) : ({self.real})0;
{self._store("place[u] + column * target_step")}    }}
  }}
}}
"""

    def _adding(self, teams: int, load: str) -> str:
        """Add up the rows of dy that were found: some are on their way before the first is added."""
        vector, together = self.vector, _TOGETHER[teams > 1]
        loop = (
            f"#pragma unroll\n        for (int k = 0; k < {together}; ++k) {{\n"
            f"          const int at = n + k * {teams};\n"
        )
        return f"""      for (int n = team; n < found; n += {together * teams}) {{
        pack_{self.dtype}_{vector} q[{together}];
{loop}          if (at < found) {load}
        }}
{loop}          if (at < found) {{
#pragma unroll
            for (int j = 0; j < {vector}; ++j) r[j] += ({self.real})number_{self.dtype}(q[k].items[j]);
          }}
        }}
      }}
"""

    def _sum(self, name: str, teams: int, lanes: int) -> str:
        """Groups of `teams` teams, each of `lanes` threads side by side along the columns.

        One team is for ranges with short lists, several for those with long ones.
        """
        vector, threads, real = self.vector, teams * lanes, self.real
        kind = f"{self.dtype}_{vector}"
        adding = self._adding(teams, f"q[k] = load_{kind}(source + (places[at] + column * source_step));")
        if vector > 1:
            each = f"for (int j = 0; j < {vector}; ++j) q[k].items[j] = source[places[at] + column + j];"
            adding = (
                f"      if (is_aligned) {{\n{adding}      }} else {{\n{self._adding(teams, each)}      }}\n"
            )
        if teams == 1:
            which = """  const i64 row = BLOCK_ID(0) / blocks, range = row / per_range;
  const int is_here = COUNTS[range] <= most;
"""
            joining = joined = ""
        else:
            which = """  const i64 crowded = CROWDED[BLOCK_ID(0) / blocks / per_range];
  const i64 range = crowded < 0 ? 0 : crowded;
  const i64 row = range * per_range + BLOCK_ID(0) / blocks % per_range;
  const int is_here = crowded >= 0 && row < rows;
"""
            joining = f"  SHARED {real} sums[{threads * vector}];\n"
            joined = f"""  for (int j = 0; j < {vector}; ++j) sums[j * {threads} + THREAD_ID] = r[j];
  BARRIER();
  for (int other = 1; other < {teams}; ++other) {{
#pragma unroll
    for (int j = 0; j < {vector}; ++j)
      if (team == 0) r[j] += sums[j * {threads} + other * {lanes} + THREAD_ID];
  }}
"""
        return f"""
KERNEL({threads}) void {name}(SIGNATURE) {{
  SHARED i64 shared[{threads}];
  SHARED i64 places[{threads}];
{joining}  source += base1;
{scale_line(real)}{self._aligned()}  const i64 blocks = (columns / {vector} + {lanes - 1}) / {lanes};
{which}  const int team = THREAD_ID / {lanes};
  const i64 column = (BLOCK_ID(0) % blocks * {lanes} + THREAD_ID % {lanes}) * {vector};
  const int is_column = is_here && column < columns;
  const i64 start = STARTS[range], end = is_here ? start + COUNTS[range] : start;
  {real} r[{vector}];
#pragma unroll
  for (int j = 0; j < {vector}; ++j) r[j] = 0;
  for (i64 begin = start; begin < end; begin += {threads}) {{
    const i64 mine = begin + THREAD_ID;
    const int is_mine = mine < end && ROWS[mine] == row;
    i64 found;
    const i64 before = group_before(shared, is_mine, &found, {threads});
    if (is_mine) places[before] = PLACES[mine];
    BARRIER();
    if (is_column) {{
{adding}    }}
  }}
{joined}  if (is_column && team == 0) {{
{self._store("row * row_step + column * target_step")}  }}
}}
"""


class EmbeddingRows(TypedAlgorithm[Embedding, GpuDevice]):
    """Whole rows at a time; the gradient lists first what belongs to which rows, so that each is written once."""

    name = "rows"
    problem = Embedding
    deterministic = True
    takes_no_epilogue = "an embedding takes no epilogue"

    def refusal(self, problem: Embedding, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return refuse_elementwise([problem.weight], device)

    def workspace_of(self, plan: Embedding, device: GpuDevice) -> int:
        if plan.direction == "fwd":
            return 0
        return 24 * min(plan.rows, _RANGES) + 16 * plan.indices.size

    def seconds_of(self, plan: Embedding, device: GpuDevice) -> float:
        embedding = plan
        moved, sorting = 2 * embedding.y.nbytes, 0.0
        if embedding.direction == "bwd":
            moved = embedding.y.nbytes + embedding.weight.nbytes
            sorting = (
                2 * LAUNCH_SECONDS + embedding.indices.size * min(embedding.rows, _RANGES) * _INDEX_SECONDS
            )
        return LAUNCH_SECONDS + sorting + (moved + 64 * embedding.indices.size) / device.bandwidth

    def error_of(self, problem: Embedding) -> float:
        # all indices may name one row
        terms = problem.indices.size if problem.direction == "bwd" else 1
        computing = UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + computing * (4.0 + sqrt(terms))

    def kernel_of(self, plan: Embedding, device: GpuDevice) -> Kernel:
        return _Text(plan).kernel(device)
