"""One pass over a row as text: load some vectors, reduce them, write their results; then the next ones."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.formulas.row_programs import ARGS, JOINT, Pass
from jitdnn.kernels.gpu.reduction.combine import State, combine_threads, combined, counts_added, states_of
from jitdnn.kernels.gpu.reduction.vectors import Vectors
from jitdnn.kernels.gpu.reduction.writer import Writer
from jitdnn.rtcg.c_source import c_constant
from jitdnn.rtcg.folds import Reduction


def write_pass(writer: Writer, number: int) -> None:
    """The loop of a pass, and its reductions over the threads of a row, into arrays s<number>_<reduction>."""
    row_pass = writer.program.passes[number]
    one = _PassWriter(writer, number, row_pass)
    for r, (name, expression) in enumerate(row_pass.reductions):
        if name == "first":
            one.first(r, expression)
    if row_pass.loops:
        one.loop()


class _PassWriter(Vectors):
    def __init__(self, writer: Writer, number: int, row_pass: Pass) -> None:
        super().__init__(writer, number, row_pass)
        self.late: list[int] = []  # inputs that are loaded when they are needed

    def states(self, r: int) -> list[State]:
        return states_of(self.row_pass.reductions[r][0], f"s{self.number}_{r}", self.real, self.index)

    # ---- the first element

    def first(self, r: int, expression: object) -> None:
        writer = self.writer
        (state,) = self.states(r)
        lane = "column * lane0_{}" if self.over_rows else "0"
        values = [
            writer.element(t)
            if writer.kind(t) == "own"
            else f"LOAD({self.code.dtypes[t]}, x{t}, {lane.format(t)})"
            for t in range(self.code.inputs)
        ]
        values += ["0"] * (writer.program.position + len(writer.kept)) + writer.bound
        value = writer.call(expression, values)  # type: ignore[arg-type]
        writer.put(f"{self.real} {state.name}[{writer.width}];")
        if self.over_rows:
            writer.put(*writer.over_columns(f"{state.name}[v] = is_column && n > 0 ? {value} : 0;"))
        else:
            writer.put(f"{state.name}[0] = is_on && n > 0 ? {value} : 0;")

    # ---- the loop

    def loop(self) -> None:
        writer, row_pass = self.writer, self.row_pass
        loop_reductions = [(r, name) for r, (name, _) in enumerate(row_pass.reductions) if name != "first"]
        for r, name in loop_reductions:
            self._declare(r, name)
        inputs = writer.used([row_pass])
        again: list[int] = []
        if self.layout.in_registers:
            writer.put(f"{{ const {self.index} base = start;")
            inputs = [t for t in inputs if t not in writer.loaded]
            self.late = [t for t in inputs if t in writer.late]
            writer.loaded |= {*inputs}
        elif self._turns:
            if self._loops_before:
                again = [t for t in inputs if t in writer.loaded and writer.kind(t) != "own"]
            writer.loaded = {*inputs}
            self._put_turn()
            writer.put(self._chunks())
        else:
            writer.put(self._chunks())
            writer.put(*(writer.registers(t) for t in inputs if writer.kind(t) != "own"))
        if not self.over_rows:
            writer.put(*self.which_are_full())
        if again:
            # the first chunk is the last one of the pass before
            writer.put("if (base != turn) {")
            self._load(again)
            writer.put("}")
        self._load([t for t in inputs if writer.kind(t) != "own" and t not in self.late and t not in again])
        if self.layout.in_registers and not writer.late:
            self._load_early()
        self._keep_and_fold(loop_reductions)
        if row_pass.writes:
            self._write()
        writer.put("}")
        for r, name in loop_reductions:
            if not self._is_complete(name):
                self._gather(r, name)
        made = len(writer.kept)
        writer.kept += [(self.number, e) for e in row_pass.keeps]
        assert made <= len(writer.kept)

    def _load_early(self) -> None:
        """Over elements: the first vectors of what only a later pass writes with, and all rows share.

        The others follow one by one when they are needed, from a cache, and take no registers before.
        """
        writer, passes = self.writer, self.writer.program.passes
        if self.over_rows or self.steps == 1:
            return
        for number in range(self.number + 1, len(passes)):
            row_pass = passes[number]
            fresh = {t for t in writer.used([row_pass]) if t not in writer.loaded and writer.kind(t) != "own"}
            if row_pass.writes and not row_pass.loop_reductions and not row_pass.keeps:
                writer.late |= {
                    t for t in fresh if any(extent > 1 and not s[t] for extent, s in self.layout.kept)
                }
        if writer.late:
            _, checked = self.loads_over_elements(sorted(writer.late))
            writer.put("{ const int u = 0;", *self.vector_ends(), *checked, "}")

    def _next_loads(self) -> tuple[list[str], list[str]]:
        """Statements that load the vector behind u of what is loaded late: where u is full, and otherwise."""
        if not self.late:
            return [], []
        vectors, checked = self.loads_over_elements(self.late)
        _, end = self.full
        head = ["{ const int behind = u + 1; {", "const int u = behind;", *self.vector_ends()]
        others = [f"if (u < {self.steps}) {{", *checked, "}", "} }"]
        return [*head, f"if (u < {end}) {{", *vectors, "} else", *others], [*head, *others]

    def _chunks(self) -> str:
        """The head of the loop over a row that is not in registers. Every other pass starts at what was read last."""
        writer, index, chunk = self.writer, self.index, self.stride * self.steps
        if writer.in_order:
            return f"for ({index} base = start; base + mine < end; base += {chunk}) {{"
        if not self._turns or self._loops_before % 2 == 0:
            return f"for ({index} base = start; base - shift < end; base += {chunk}) {{"
        return f"for ({index} base = final; base >= start; base -= {chunk}) {{"

    def _put_turn(self) -> None:
        """The last chunk of a row, and the one that the pass before ended with."""
        writer, index, chunk = self.writer, self.index, self.stride * self.steps
        if not self._loops_before:
            writer.put(f"const {index} final = start + (end - 1 + shift - start) / {chunk} * {chunk};")
            writer.put(f"{index} turn = final;")
        elif self._loops_before > 1:
            writer.put(f"turn = {'start' if self._loops_before % 2 == 0 else 'final'};")

    @property
    def _turns(self) -> bool:
        """Whether every other pass goes back: over elements of whole rows that are not in registers."""
        return not (self.over_rows or self.layout.in_registers or self.code.is_split or self.writer.in_order)

    @property
    def _loops_before(self) -> int:
        return sum(row_pass.loops for row_pass in self.writer.program.passes[: self.number])

    def _is_complete(self, name: Reduction) -> bool:
        """Whether the loop itself leaves the result of all threads of the row."""
        return self.layout.in_registers and name in JOINT

    def _is_one_a_vector(self, name: Reduction) -> bool:
        """Over elements, whether there is one result for all elements of a vector."""
        return not self.over_rows and name in JOINT

    def _declare(self, r: int, name: Reduction) -> None:
        width = 1 if self._is_one_a_vector(name) else self.vector
        for s in self.states(r):
            count = 1 if s.is_single else width
            stem = s.name if self.over_rows or self._is_one_a_vector(name) else s.name + "_v"
            self.writer.put(
                f"{s.type} {stem}[{count}];",
                f"UNROLL for (int v = 0; v < {count}; v++) {stem}[v] = {s.nothing};",
            )
        if self._has_origins(name):
            self.writer.put(f"{self.real} origin{r}[{self.vector}];")

    def _has_origins(self, name: Reduction) -> bool:
        """Whether a thread adds up distances from its first element of each row, and squares of them, until it has seen
        all of its elements: without a division for every few of them."""
        return name == "moments" and self.over_rows and not self.layout.in_registers

    def _gather(self, r: int, name: Reduction) -> None:
        """The results of a thread's vectors as one, and those of the row's threads."""
        writer, states = self.writer, self.states(r)
        if self._has_origins(name):
            mean, squares, seen = (s.name for s in states)
            writer.put(
                f"UNROLL for (int v = 0; v < {self.vector}; v++) {{",
                f"const {self.real} apart = {seen}[0] > 0 ? {mean}[v] / {seen}[0] : 0;",
                f"{squares}[v] -= {mean}[v] * apart;",
                f"if ({squares}[v] < 0) {squares}[v] = 0;",
                f"{mean}[v] = {seen}[0] > 0 ? origin{r}[v] + apart : 0;",
                "}",
            )
        if not self.over_rows and not self._is_one_a_vector(name):
            writer.put(*(f"{s.type} {s.name}[1]; {s.name}[0] = {s.name}_v[0];" for s in states))
            if self.vector > 1:
                a, b = [f"{s.name}[0]" for s in states], [f"{s.name}_v[v]" for s in states]
                writer.put(
                    f"UNROLL for (int v = 1; v < {self.vector}; v++) {{",
                    *combined(name, a, b, self.real, writer.fold_function),
                    "}",
                )
        layout = self.layout
        writer.put(
            *combine_threads(
                name,
                states,
                self.real,
                writer.fold_function,
                writer.width,
                layout.columns,
                layout.row_threads,
            )
        )

    # ---- elements

    def _values(self, expressions: Sequence[object]) -> tuple[list[str], list[str]]:
        """Statements that make what expressions see of the element (u, v), and their arguments."""
        writer, program = self.writer, self.writer.program
        lines = []
        arguments = [writer.element(t) if writer.kind(t) != "" else "0" for t in range(self.code.inputs)]
        if program.needs_positions:
            place = writer.offset(len(self.code.dtypes))
            if place == "d0" and len(self.layout.reduced) == 1:
                place = "i"
            else:
                lines += writer.offset_lines("i")
            lines.append(f"const {self.index} place = {place};")
        if program.position:
            # sums of integers that f32 has are exact
            is_exact = self.real == "f64" or self.layout.row < 2**24
            arguments.append("i_real" if is_exact and place == "i" else "place")
        keeps = [*writer.kept, *((self.number, e) for e in self.row_pass.keeps)]
        before = len(arguments)
        needed: set[int] = set()
        for expression in expressions:
            needed |= expression.used()  # type: ignore[attr-defined]
        own = set()
        for n in reversed(range(len(keeps))):
            row_pass, expression = keeps[n]
            if row_pass == self.number or (before + n in needed and not self.layout.in_registers):
                own.add(n)
                needed |= expression.used()
        for n, (row_pass, expression) in enumerate(keeps):
            if n in own:
                # row values known when the keep was made, of which there are as many as its pass had
                bound = writer.bound[: writer.known[row_pass]]
                lines.append(f"const {self.real} e{n} = {writer.call(expression, [*arguments, *bound])};")
                if self.layout.in_registers:
                    lines.append(f"k{n}[u * {self.vector} + v] = e{n};")
            elif before + n in needed:
                lines.append(f"const {self.real} e{n} = k{n}[u * {self.vector} + v];")
            arguments.append(f"e{n}")
        return lines, [*arguments, *writer.bound]

    def _keep_and_fold(self, loop_reductions: Sequence[tuple[int, Reduction]]) -> None:
        writer, row_pass = self.writer, self.row_pass
        if not loop_reductions and not row_pass.keeps:
            return
        lines, arguments = self._values([e for r, e in enumerate([e for _, e in row_pass.reductions])])
        plain, joint = [], []
        for r, name in loop_reductions:
            value = writer.call(row_pass.reductions[r][1], arguments)
            names = [s.name if self.over_rows else s.name + "_v" for s in self.states(r)]
            if name in JOINT:
                joint.append((r, name, value))
            elif name in ARGS:
                plain += ["{", f"const {self.real} value = {value};"]
                plain += [
                    *combined(
                        name, [f"{s}[v]" for s in names], ["value", "place"], self.real, writer.fold_function
                    ),
                    "}",
                ]
            else:
                plain += combined(name, [f"{s}[v]" for s in names], [value], self.real, writer.fold_function)
        if (plain or row_pass.keeps) and not joint:
            writer.put(*self.over_elements([*lines, *plain]))
        for r, name, value in joint:
            # the loop of the first computes the others too
            getattr(self, f"_{name}")(r, [*lines, *plain] if r == joint[0][0] else lines, lines, value)

    @property
    def _wide(self) -> int:
        """Results of joint reductions that a thread has."""
        return self.vector if self.over_rows else 1

    def _moments(self, r: int, once: Sequence[str], lines: Sequence[str], value: str) -> None:
        """The mean of a few elements, their distances from it, and both put behind what there is.

        A row in registers has its mean before the distances. `once`: statements of other reductions too.
        """
        writer, real, states, held = self.writer, self.real, self.states(r), self.layout.in_registers
        if self._has_origins("moments"):
            self._distances(r, once, lines, value)
            return
        # over elements, each position in a vector has a sum of its own
        writer.put(
            "{", f"{real} total[{self.vector}], squares[{self.vector}], mean[{self._wide}]; {real} count = 0;"
        )
        writer.put(f"UNROLL for (int v = 0; v < {self.vector}; v++) total[v] = squares[v] = 0;")
        one = "" if held else "count += 1;" if not self.over_rows else "if (v == 0) count += 1;"
        writer.put(*self.over_elements([*once, f"total[v] += {value};", one]))
        if held:
            writer.put(f"count = ({real})n;")
        writer.put(f"const {real} share = count > 0 ? 1 / count : 0;")
        self._summed("total")
        if held:
            self._combine_row("total", states[0], "add")
        mean = "total" if not held else states[0].name
        writer.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) mean[v] = {mean}[v] * share;")
        mean = "mean[v]" if self.over_rows else "mean[0]"
        apart = [f"const {real} distance = {value} - {mean};", "squares[v] += distance * distance;"]
        writer.put(*self.over_elements([*lines, *apart]))
        self._summed("squares")
        if held:
            self._combine_row("squares", states[1], "add")
            writer.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) {states[0].name}[v] = mean[v];", "}")
            return
        a = [f"{s.name}[{'0' if s.is_single else 'v'}]" for s in states]
        b = ["mean[v]", "squares[v]", "count"]
        writer.put(
            f"UNROLL for (int v = 0; v < {self._wide}; v++) {{",
            *combined("moments", a, b, real, writer.fold_function),
            "}",
            *counts_added("moments", a, b),
            "}",
        )

    def _distances(self, r: int, once: Sequence[str], lines: Sequence[str], value: str) -> None:
        """Distances from an element of each row, and their squares, added up."""
        total, squares, seen = (s.name for s in self.states(r))
        self.writer.put(f"if ({seen}[0] == 0) {{", *self._origins(r, lines, value), "}")
        added = [f"const {self.real} distance = {value} - origin{r}[v];", f"{total}[v] += distance;"]
        added += [f"{squares}[v] += distance * distance;", f"if (v == 0) {seen}[0] += 1;"]
        self.writer.put(*self.over_elements([*once, *added]))

    def _origins(self, r: int, lines: Sequence[str], value: str) -> list[str]:
        """Statements that make an element of each row the origin of distances: the one between two others, so that it
        is none that is far from all."""
        samples, real = min(3, self.steps), self.real
        every = f"UNROLL for (int v = 0; v < {self.vector}; v++)"
        found = [
            f"{real} samples[{samples}][{self.vector}];",
            f"UNROLL for (int u = 0; u < {samples}; u++) {{",
            f"const {self.index} i = base + mine + u * {self.stride};",
            f"{every} samples[u][v] = u > 0 ? samples[0][v] : 0;",
            f"if (i < end) {every} {{ const {real} i_real = ({real})i;",
            *[*lines, f"samples[u][v] = {value};"],
            "} }",
        ]
        middle = "samples[0][v]"
        if samples == 3:
            least, most = (f"f{one}(samples[0][v], samples[1][v])" for one in ("min", "max"))
            middle = f"fmax({least}, fmin({most}, samples[2][v]))"
        # of what is not finite there is no distance
        return [
            *found,
            f"{every} {{ const {real} middle = {middle};",
            f"origin{r}[v] = middle - middle == 0 ? middle : 0; }}",
        ]

    def _powers(self, r: int, once: Sequence[str], lines: Sequence[str], value: str) -> None:
        """The greatest of a few elements and what there is, and the sum of powers from there on.

        A row in registers has its greatest element before the powers. `once`: statements of other reductions too.
        """
        writer, real, held, (top, total) = self.writer, self.real, self.layout.in_registers, self.states(r)
        least = c_constant(-float("inf"), real)
        writer.put("{", f"{real} most[{self.vector}], powers[{self.vector}], origin[{self._wide}];")
        writer.put(f"UNROLL for (int v = 0; v < {self.vector}; v++) {{ most[v] = {least}; powers[v] = 0; }}")
        larger = [*lines, f"most[v] = fold_max_number_{real}(most[v], {value});"]
        pairs = self._pairs(r)
        writer.put(*pairs[0], *self.over_elements(larger, pairs[1]), *pairs[2])
        if not self.over_rows and self.vector > 1:
            writer.put(
                f"UNROLL for (int v = 1; v < {self.vector}; v++) most[0] = fold_max_number_{real}(most[0], most[v]);"
            )
        if held:
            self._combine_row("most", top, "max_number")
        before = [
            f"most[v] = fold_max_number_{real}(most[v], {top.name}[v]);",
            f"origin[v] = most[v] == {least} ? 0 : most[v];",
            f"if ({top.name}[v] != {least}) {total.name}[v] *= exp({top.name}[v] - origin[v]);",
            f"{top.name}[v] = most[v];",
        ]
        writer.put(
            f"UNROLL for (int v = 0; v < {self._wide}; v++) {{",
            *([f"origin[v] = {top.name}[v] == {least} ? 0 : {top.name}[v];"] if held else before),
            "}",
        )
        origin = "origin[v]" if self.over_rows else "origin[0]"
        writer.put(*self.over_elements([*once, f"powers[v] += {writer.exp}({value} - {origin});"]))
        self._summed("powers")
        if held:
            self._combine_row("powers", total, "add")
            writer.put("}")
        else:
            writer.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) {total.name}[v] += powers[v];", "}")

    def _pairs(self, r: int) -> tuple[list[str], list[str], list[str]]:
        """Statements for the greatest of two elements at once, where they are two of 16 bits: before whole vectors, for
        one, and behind all; none elsewhere."""
        writer, expression = self.writer, self.row_pass.reductions[r][1]
        step = expression.instructions[-1]
        if self.over_rows or step.operation != "input" or step.arguments[0] >= self.code.inputs:
            return [], [], []
        t = step.arguments[0]
        dtype, words = self.code.dtypes[t], writer.words(t)
        if writer.kind(t) != "words" or dtype not in ("f16", "bf16"):
            return [], [], []
        every = f"UNROLL for (int k = 0; k < {words}; k++)"
        least = {"f16": "0xfc00fc00u", "bf16": "0xff80ff80u"}[dtype]
        behind = [
            f"most[{half}] = fold_max_number_{self.real}(most[{half}], element_{dtype}(pairs[k], {2 * half}));"
            for half in (0, 1)
        ]
        return (
            [f"u32 pairs[{words}]; {every} pairs[k] = {least};"],
            [f"{every} pairs[k] = max_number_pair_{dtype}(pairs[k], w{t}[u * {words} + k]);"],
            [f"{every} {{", *behind, "}"],
        )

    def _combine_row(self, name: str, state: State, reduction: Reduction) -> None:
        """The numbers of an array combined over the row's threads, in the state's array."""
        writer, layout = self.writer, self.layout
        one = State(state.name, state.type, "")
        writer.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) {state.name}[v] = {name}[v];")
        writer.put(
            *combine_threads(
                reduction,
                [one],
                self.real,
                writer.fold_function,
                writer.width,
                layout.columns,
                layout.row_threads,
            )
        )

    def _summed(self, name: str) -> None:
        """Over elements: the sum of a vector, neighbours first."""
        if self.over_rows:
            return
        distance = self.vector // 2
        while distance:
            self.writer.put(
                f"UNROLL for (int v = 0; v < {distance}; v++) {name}[v] += {name}[v + {distance}];"
            )
            distance //= 2

    # ---- loads

    def _load(self, inputs: Sequence[int]) -> None:
        if inputs:
            lines = (
                self.load_over_rows(inputs)
                if self.over_rows
                else self.over_vectors(*self.loads_over_elements(inputs))
            )
            self.writer.put(*lines)

    # ---- writes

    def _write(self) -> None:
        writer, v = self.writer, self.vector
        lines, arguments = self._values([e for _, e in self.row_pass.writes])
        declared, made = [], list(lines)
        for n, (output, expression) in enumerate(self.row_pass.writes):
            value = writer.call(expression, arguments)
            declared.append(f"{self.real} out{n}[{v}];")
            made.append(
                f"out{n}[v] = {value};" if output in self.code.plain else f"out{n}[v] = alpha * {value};"
            )
        every = [f"UNROLL for (int v = 0; v < {v}; v++) {{"]
        if self.over_rows:
            every.append(f"const {self.real} i_real = ({self.real})i;")
            body = [*declared, *every, *made, "}", *writer.offset_lines("i")]
            for n, (output, _) in enumerate(self.row_pass.writes):
                body += self.store_over_rows(n, output)
            writer.put(*self.over_vectors_down(body))
            return
        here = [
            f"const {self.index} i = first + v * element_step;",
            f"const {self.real} i_real = ({self.real})i;",
        ]
        stores, whole = [], []
        for n, (output, _) in enumerate(self.row_pass.writes):
            checked_store = self.store_over_elements(n, output)
            stores += checked_store
            whole += self.whole_store(n, output) or checked_store
        checked = ["if (last >= lo && first < end) {", *declared, *every, *here, *made, "}", *stores, "}"]
        next_vectors, next_checked = self._next_loads()
        body = [*declared, *every, *here, *made, "}", *whole]
        writer.put(*self.over_vectors([*next_vectors, *body], [*next_checked, *checked]))
