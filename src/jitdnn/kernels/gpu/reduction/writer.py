"""What all parts of the text of a kernel over rows share: its parameters, addresses, inputs and row values.

The names in the text: `t` is the thread's number among those of its row, `x<n>` where the row begins in tensor n,
`w<n>` the loaded words of an input, `s<n>_<r>` what reduction r of pass n has so far, `v<n>` the row values, `i` the
number of an element in the row; `u` counts vectors and `v` the elements of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from jitdnn.kernels.formulas.row_programs import ARGS, PAIRS, Pass
from jitdnn.kernels.gpu.reduction.combine import states_of
from jitdnn.kernels.gpu.reduction.plan import RowCode, keeps_order
from jitdnn.rtcg.c_source import c_function
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Fold
from jitdnn.tensor import DTYPES

REALS = ("f16", "bf16", "f32", "f64")


@dataclass
class Writer:
    """Writes the functions of a kernel."""

    code: RowCode
    lines: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    bound: list[str] = field(default_factory=list)  # row values in the text
    known: dict[int, int] = field(default_factory=dict)  # how many there were before a pass
    loaded: set[int] = field(default_factory=set)  # inputs that an earlier pass loaded
    late: set[int] = field(default_factory=set)  # inputs of which only the first vectors are loaded yet
    kept: list[tuple[int, Expression]] = field(default_factory=list)  # keeps with the number of their pass
    combines_parts: bool = False

    def __post_init__(self) -> None:
        self.real, self.index = self.code.compute, self.code.index
        self.layout, self.program = self.code.layout, self.code.program
        self.width = 1
        self.exp = "short_exp" if self.code.is_short else "exp"

    def call(self, expression: Expression, arguments: Sequence[str]) -> str:
        """A call of the function of an expression; what it does not use is 0."""
        name = f"row_{len(self.functions)}"
        known = next((n for n, text in self.functions.items() if n.partition(" ")[2] == expression.key), None)
        if known is None:
            function = c_function(expression, name, self.real)
            self.functions[f"{name} {expression.key}"] = re.sub(r"\bexp\(", f"{self.exp}(", function)
        else:
            name = known.partition(" ")[0]
        used = expression.used()
        given = [f"({self.real}){arguments[n]}" if n in used else "0" for n in range(expression.arity)]
        return f"{name}({', '.join(given)})"

    def fold_function(self, name: Fold) -> str:
        """The name of the function of a reduction of the user's."""
        return self.call(name.expression, ["0", "0"]).partition("(")[0]

    def put(self, *lines: str) -> None:
        """Add lines; arrays of the thread block are declared at the kernel's beginning, as OpenCL wants it."""
        for line in lines:
            if line.startswith("SHARED "):
                self.lines.insert(self._beginning, line)
            else:
                self.lines.append(line)

    def begin(self, name: str, threads: int) -> None:
        pointers = "".join(f"GLOBAL u8 *p{n}, " for n in range(self.code.pointers))
        extras = "".join(f", i64 {extra}" for extra, _ in self.code.extras)
        # two thread blocks side by side, one of which may load while the other computes
        beside = threads == 512 and self.layout.in_registers and self.code.is_short
        head = f"KERNEL_RESIDENT({threads}, 2)" if beside else f"KERNEL({threads})"
        floats = "".join(f", SCALE parameter{n}" for n in range(len(self.program.parameters)))
        self.put(
            f"{head} void {name}({pointers}GLOBAL u8 *workspace, SCALE scale, SCALE blend{extras}{floats})",
            "{",
            f"EXCHANGE_SPACE({threads})",
        )
        self._beginning = len(self.lines)
        self.put(
            f"const {self.real} alpha = ({self.real})scale, beta = ({self.real})blend;",
        )
        self.bound, self.known = [], {}
        for n in range(len(self.program.parameters)):
            self.put(f"const {self.real} v{n}[1] = {{({self.real})parameter{n}}};")
            self.bound.append(f"v{n}[0]")

    # ---- where the thread block is

    def put_position(self, goes_back: bool) -> None:
        """The thread's number in its row, the row, and its part of it."""
        layout, code = self.layout, self.code
        kind = "u32" if layout.rows < 2**31 else "i64"
        if layout.over_rows:
            self.put(
                f"const int tx = THREAD_ID % {layout.columns}, t = THREAD_ID / {layout.columns};",
                f"{kind} unit = ({kind})BLOCK_ID(0) / ({kind})lane_blocks;",
                f"const {kind} block = ({kind})BLOCK_ID(0) - unit * ({kind})lane_blocks;",
                f"const int is_on = unit < ({kind})units;",
            )
        else:
            rows = layout.threads // layout.row_threads  # of a thread block
            self.put(
                f"const int t = THREAD_ID % {layout.row_threads};",
                f"{kind} unit = ({kind})BLOCK_ID(0) * {rows} + THREAD_ID / {layout.row_threads};",
                f"const int is_on = unit < ({kind})units;",
            )
        self.put(
            "const i64 number = unit;" if not layout.over_rows else "const i64 number = (i64)unit * lanes;"
        )
        self.put_bases(kind, [(f"kept{a}", f"kept{a}") for a in range(len(layout.kept))])
        if code.is_split:
            part = "parts - 1 - (i64)BLOCK_ID(1)" if goes_back else "(i64)BLOCK_ID(1)"
            self.put(
                f"const i64 part = {part};", f"const {self.index} start = ({self.index})(part * per_part);"
            )
        else:
            self.put(f"const {self.index} start = 0;")

    def put_bases(self, kind: str, axes: Sequence[tuple[str, str]]) -> None:
        """Pointers to where the row begins, from its number `unit`; the number is used up."""
        tensors = range(len(self.code.dtypes))
        self.put(*(f"i64 base{t} = 0;" for t in tensors))
        for a, (extent, steps) in reversed(list(enumerate(axes))):
            digit = "unit"
            if a:
                self.put(
                    f"{kind} rest{a} = is_on ? unit / ({kind}){extent} : 0;",
                    f"{kind} digit{a} = unit - rest{a} * ({kind}){extent};",
                )
                digit = f"digit{a}"
            self.put(*(f"base{t} += is_on ? (i64){digit} * {steps}_{t} : 0;" for t in tensors))
            if a:
                self.put(f"unit = rest{a};")
        for t in tensors:
            const = "const " if t < self.code.inputs else ""
            kind = _stored(self.code.dtypes[t])
            self.put(
                f"GLOBAL {const}{kind} *x{t} = (GLOBAL {const}{kind} *)p{self.code.operands[t]} + base{t};"
            )

    # ---- inputs

    def kind(self, t: int) -> str:
        """How an input's elements are had.

        `own`: one number for the row; `words`: vectors; `same`: one for all that a vector has; `each`: one by one.
        """
        layout, vectorized = (
            self.layout,
            (self.layout.lanes if self.layout.over_rows else self.layout.reduced[-1]),
        )
        moves = [steps[t] for extent, steps in layout.reduced if extent != 1]
        if not any(moves):
            return "own"
        step = vectorized[1][t]
        if vectorized[0] == 1 or (step == 0 and layout.over_rows):
            return "same" if layout.over_rows else "each"
        size = DTYPES[self.code.dtypes[t]]
        if step == 1 and size <= 4 and layout.vector > 1 and layout.vector * size >= 4:
            return "words"
        return "same" if step == 0 and layout.vector > 1 else "each"

    def used(self, passes: Sequence[Pass], with_first: bool = False) -> list[int]:
        """Inputs that the passes use, those of keeps that they may compute included."""
        keeps = [e for row_pass in self.program.passes for e in row_pass.keeps]
        before = self.code.inputs + self.program.position
        found: set[int] = set()
        for row_pass in passes:
            reductions = row_pass.reductions if with_first else row_pass.loop_reductions
            for _, expression in (*reductions, *row_pass.writes):
                found |= expression.used()
            for expression in row_pass.keeps:
                found |= expression.used()
        for n in reversed(range(len(keeps))):
            if before + n in found:
                found |= keeps[n].used()
        return sorted(t for t in found if t < self.code.inputs)

    def put_row_inputs(self, passes: Sequence[Pass]) -> None:
        """Load what a row has one number of."""
        for t in self.used(passes, with_first=True):
            if self.kind(t) != "own":
                continue
            real = self.real
            if not self.layout.over_rows:
                value = f"is_on ? ({real})LOAD({self.code.dtypes[t]}, x{t}, 0) : 0"
                self.put(f"const {real} w{t} = {value};")
                continue
            self.put(
                f"{real} w{t}[{self.width}];",
                *self.over_columns(
                    f"w{t}[v] = is_column ? ({real})LOAD({self.code.dtypes[t]}, x{t}, column * lane0_{t}) : 0;"
                ),
            )

    def over_columns(self, *lines: str) -> list[str]:
        """Over rows: statements for every column v of the thread, its number `column`, and whether it `is_column`."""
        return [
            f"UNROLL for (int v = 0; v < {self.width}; v++) {{",
            "const i64 column = column0 + (i64)v * column_step; const int is_column = is_on && column < lanes;",
            *lines,
            "}",
        ]

    def put_vectors(self, passes: Sequence[Pass]) -> None:
        """Whether vectors are loaded as such, which the addresses say, and the elements that the thread has."""
        layout, code, v = self.layout, self.code, self.layout.vector
        inputs = self.used(passes)
        outputs = sorted({code.inputs + output for row_pass in passes for output, _ in row_pass.writes})
        vectorized = layout.lanes if layout.over_rows else layout.reduced[-1]
        unit = [
            t for t in (*inputs, *outputs)
            if vectorized[1][t] == 1 and DTYPES[code.dtypes[t]] <= 4 and (t >= code.inputs or self.kind(t) == "words")
        ]  # fmt: skip
        shifts = not layout.over_rows and len(layout.reduced) == 1
        conditions = []
        self.put("int shift = 0;")
        if v == 1 or not unit:
            conditions = ["0"]
        else:
            size = DTYPES[code.dtypes[unit[0]]]
            address = "((u64){})"
            if shifts:
                self.put(f"shift = (int)({address.format(f'x{unit[0]}')} / {size} % {v});")
            for t in unit:
                size = DTYPES[code.dtypes[t]]
                align = min(16, v * size)
                conditions.append(f"(({address.format(f'x{t}')} - shift * {size}) % {align} == 0)")
            if layout.in_registers and not layout.over_rows:
                conditions.append(f"shift + n <= {layout.row_threads * layout.steps * v}")
        self.put(f"const int is_vector = {' && '.join(conditions)};", "if (!is_vector) shift = 0;")
        if layout.over_rows:
            c, w = layout.columns, layout.columns * v
            self.put(
                f"const i64 column0 = (i64)block * {w} + (is_vector ? tx * {v} : tx);",
                f"const int column_step = is_vector ? 1 : {c};",
            )
        else:
            row_threads = layout.row_threads
            if self.in_order:
                self.put(
                    f"const {self.index} mine = {self._first_of_thread()};", "const int element_step = 1;"
                )
            else:
                self.put(
                    f"const {self.index} mine = is_vector ? t * {v} : t;",
                    f"const int element_step = is_vector ? 1 : {row_threads};",
                )
        self._ends()

    @property
    def in_order(self) -> bool:
        return keeps_order(self.program)

    def _first_of_thread(self) -> str:
        """In order: the first of the thread's elements, which are neighbours."""
        count = self._elements_of_thread()
        return f"t * {count}" if self.layout.in_registers else f"{count} * t"

    def _elements_of_thread(self) -> str:
        """In order: how many neighbouring elements a thread has."""
        layout = self.layout
        if layout.in_registers:
            return f"{layout.steps * (1 if layout.over_rows else layout.vector)}"
        length = "per_part" if self.code.is_split else "n"
        return f"({self.index})(({length} + {layout.row_threads - 1}) / {layout.row_threads})"

    def _ends(self) -> None:
        """`lo` and `end`: the elements that the thread block may touch; in order, those that the thread may."""
        layout, index = self.layout, self.index
        self.put(f"{index} lo = start - shift, end = ({index})n;")
        if self.code.is_split:
            self.put(f"if (lo + ({index})per_part < end) end = lo + ({index})per_part;")
        self.put("if (lo < 0) lo = 0;", "if (!is_on) end = lo;")
        if self.in_order:
            if layout.over_rows:
                self.put(f"const {index} mine = {self._first_of_thread()};")
            length = self._elements_of_thread()
            self.put(f"if (start + mine + {length} < end) end = start + mine + {length};")
        elif layout.over_rows:
            self.put(f"const {index} mine = t;")

    def put_registers(self, passes: Sequence[Pass]) -> None:
        """Registers for inputs, and for keeps that stay from one pass to the next."""
        for t in self.used(passes):
            if self.kind(t) != "own":
                self.put(self.registers(t))
        if self.layout.in_registers:
            count = self.layout.steps * self.layout.vector
            keeps = [e for row_pass in self.program.passes for e in row_pass.keeps]
            self.put(*(f"{self.real} k{n}[{count}];" for n in range(len(keeps))))

    def registers(self, t: int) -> str:
        layout, kind = self.layout, self.kind(t)
        if kind == "words":
            return f"u32 w{t}[{layout.steps * self.words(t)}];"
        count = layout.steps if kind == "same" and layout.over_rows else layout.steps * layout.vector
        return f"{self.real} w{t}[{count}];"

    def words(self, t: int) -> int:
        """Words of a vector."""
        return max(1, self.layout.vector * DTYPES[self.code.dtypes[t]] // 4)

    def element(self, t: int) -> str:
        """The value of an input for the element (u, v)."""
        size, vector = DTYPES[self.code.dtypes[t]], self.layout.vector
        kind = self.kind(t)
        if kind == "own":
            return f"w{t}[v]" if self.layout.over_rows else f"w{t}"
        if kind == "words":
            return (
                f"element_{self.code.dtypes[t]}(w{t}[u * {self.words(t)} + v * {size} / 4], v * {size} % 4)"
            )
        if kind == "same" and self.layout.over_rows:
            return f"w{t}[u]"
        return f"w{t}[u * {vector} + v]"

    def offset_lines(self, element: str) -> list[str]:
        """The digits of an element's number over the reduced axes."""
        axes, lines, rest = self.layout.reduced, [], element
        for a in reversed(range(1, len(axes))):
            quotient = (
                f"{rest} / reduced{a}"
                if self.layout.wide
                else f"quotient_u32({rest}, (u32)magic{a}, (u32)shift{a})"
            )
            lines += [
                f"const {self.index} q{a} = {quotient};",
                f"const {self.index} d{a} = {rest} - q{a} * ({self.index})reduced{a};",
            ]
            rest = f"q{a}"
        return [*lines, f"const {self.index} d0 = {rest};"]

    def offset(self, t: int) -> str:
        """How far the element of the digits is from the row's beginning, in tensor t; for the last one its position."""
        terms = []
        for a, (extent, steps) in enumerate(self.layout.reduced):
            if extent != 1 and steps[t]:
                is_unit = steps[t] == 1 and a == len(self.layout.reduced) - 1
                terms.append(f"d{a}" if is_unit else f"d{a} * ({self.index})reduced{a}_{t}")
        return " + ".join(terms) or "0"

    # ---- row values

    def add_values(self, number: int) -> None:
        """The row values of a pass: its reductions' results are there, its scalars are made."""
        row_pass = self.program.passes[number]
        for r, (name, _) in enumerate(row_pass.reductions):
            for state in states_of(name, f"s{number}_{r}", self.real, self.index)[
                : 2 if name in PAIRS else 1
            ]:
                self.bound.append(f"{state.name}[{'v' if self.width > 1 else '0'}]")
        for n, expression in enumerate(row_pass.scalars):
            value = self.call(expression, self.bound)
            name = f"r{number}_{n}"
            self.put(
                f"{self.real} {name}[{self.width}];",
                f"UNROLL for (int v = 0; v < {self.width}; v++) {name}[v] = {value};",
            )
            self.bound.append(f"{name}[{'v' if self.width > 1 else '0'}]")

    # ---- row outputs

    def put_row_outputs(self, condition: str) -> None:
        if not self.program.row_outputs:
            return
        self.put(f"if ({condition}) {{")
        for output, number in self.program.row_outputs:
            t, value = self.code.inputs + output, self.bound[number]
            if self.layout.over_rows and not self.combines_parts:
                self.put(
                    *self.over_columns(
                        "if (is_column) {", *self._stored_row(output, t, value, f"column * lane0_{t}"), "}"
                    )
                )
            else:
                self.put("{", *self._stored_row(output, t, value, "0"), "}")
        self.put("}")

    def _stored_row(self, output: int, t: int, value: str, place: str) -> list[str]:
        dtype = self.code.dtypes[t]
        if self.is_position(value):
            store = f"store_{dtype}" if dtype not in REALS else f"store_real_{dtype}"
            return [f"{store}(x{t}, {place}, {value});"]
        if output in self.code.plain:
            return [f"STORE({dtype}, x{t}, {place}, {value});"]
        return [
            f"{self.real} result = alpha * {value};",
            f"if (beta != 0) result += beta * ({self.real})LOAD({dtype}, x{t}, {place});",
            f"STORE({dtype}, x{t}, {place}, result);",
        ]

    def is_position(self, value: str) -> bool:
        """Whether a row value is an integer."""
        name = value.partition("[")[0]
        for number, row_pass in enumerate(self.program.passes):
            for r, (kind, _) in enumerate(row_pass.reductions):
                if kind in ARGS and name == f"s{number}_{r}b":
                    return True
        return False


def _stored(dtype: str) -> str:
    return "u8" if dtype == "bool" else dtype
