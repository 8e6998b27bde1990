"""One pass over a row as text: load some vectors, reduce them, write what is made of them; then the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.formulas.row_programs import ARGS, JOINT, Pass
from jitdnn.kernels.gpu.reduction.combine import State, combine_threads, combined, counts_added, states_of
from jitdnn.kernels.gpu.reduction.vectors import Vectors
from jitdnn.rtcg.c_source import c_constant
from jitdnn.rtcg.folds import Reduction

if TYPE_CHECKING:
    from jitdnn.kernels.gpu.reduction.code import Text


def write_pass(text: Text, number: int) -> None:
    """The pass's loop, and its reductions over the team; the results are in the arrays s<number>_<reduction>."""
    row_pass = text.program.passes[number]
    writer = _PassWriter(text, number, row_pass)
    for r, (name, expression) in enumerate(row_pass.reductions):
        if name == "first":
            writer.first(r, expression)
    if row_pass.loops:
        writer.loop()


class _PassWriter(Vectors):
    def __init__(self, text: Text, number: int, row_pass: Pass) -> None:
        super().__init__(text, number, row_pass)
        self.late: list[int] = []  # inputs that are loaded when they are needed

    def states(self, r: int) -> list[State]:
        return states_of(self.row_pass.reductions[r][0], f"s{self.number}_{r}", self.real, self.index)

    # ---- the first element

    def first(self, r: int, expression: object) -> None:
        text = self.text
        (state,) = self.states(r)
        lane = "column * lane0_{}" if self.over_rows else "0"
        values = [
            text.element(t)
            if text.kind(t) == "own"
            else f"LOAD({self.code.dtypes[t]}, x{t}, {lane.format(t)})"
            for t in range(self.code.inputs)
        ]
        values += ["0"] * (text.program.position + len(text.kept)) + text.bound
        value = text.call(expression, values)  # type: ignore[arg-type]
        text.put(f"{self.real} {state.name}[{text.width}];")
        if self.over_rows:
            text.put(*text.over_columns(f"{state.name}[v] = is_column && n > 0 ? {value} : 0;"))
        else:
            text.put(f"{state.name}[0] = is_on && n > 0 ? {value} : 0;")

    # ---- the loop

    def loop(self) -> None:
        text, row_pass = self.text, self.row_pass
        loop_reductions = [(r, name) for r, (name, _) in enumerate(row_pass.reductions) if name != "first"]
        for r, name in loop_reductions:
            self._declare(r, name)
        inputs = text.used([row_pass])
        again: list[int] = []
        if self.layout.in_registers:
            text.put(f"{{ const {self.index} base = start;")
            inputs = [t for t in inputs if t not in text.loaded]
            self.late = [t for t in inputs if t in text.late]
            text.loaded |= {*inputs}
        elif self._turns:
            if self._loops_before:
                again = [t for t in inputs if t in text.loaded and text.kind(t) != "own"]
            text.loaded = {*inputs}
            self._put_turn()
            text.put(self._chunks())
        else:
            text.put(self._chunks())
            text.put(*(text.registers(t) for t in inputs if text.kind(t) != "own"))
        if not self.over_rows:
            text.put(*self.which_are_full())
        if again:
            # the first chunk is the last one of the pass before
            text.put("if (base != turn) {")
            self._load(again)
            text.put("}")
        self._load([t for t in inputs if text.kind(t) != "own" and t not in self.late and t not in again])
        if self.layout.in_registers and not text.late:
            self._load_early()
        self._keep_and_fold(loop_reductions)
        if row_pass.writes:
            self._write()
        text.put("}")
        for r, name in loop_reductions:
            if not self._is_complete(name):
                self._gather(r, name)
        made = len(text.kept)
        text.kept += [(self.number, e) for e in row_pass.keeps]
        assert made <= len(text.kept)

    def _load_early(self) -> None:
        """Along: the first vectors of what only a later pass writes with, and all rows share.

        The others follow one by one when they are needed, from a cache, and take no registers before.
        """
        text, passes = self.text, self.text.program.passes
        if self.over_rows or self.steps == 1:
            return
        for number in range(self.number + 1, len(passes)):
            row_pass = passes[number]
            fresh = {t for t in text.used([row_pass]) if t not in text.loaded and text.kind(t) != "own"}
            if row_pass.writes and not row_pass.loop_reductions and not row_pass.keeps:
                text.late |= {
                    t for t in fresh if any(extent > 1 and not s[t] for extent, s in self.layout.kept)
                }
        if text.late:
            _, checked = self.loads_over_elements(sorted(text.late))
            text.put("{ const int u = 0;", *self.vector_ends(), *checked, "}")

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
        """The head of the loop over a row that is not held. Every other pass goes back, to what was read last."""
        text, index, chunk = self.text, self.index, self.stride * self.steps
        if text.in_order:
            return f"for ({index} base = start; base + mine < end; base += {chunk}) {{"
        if not self._turns or self._loops_before % 2 == 0:
            return f"for ({index} base = start; base - shift < end; base += {chunk}) {{"
        return f"for ({index} base = final; base >= start; base -= {chunk}) {{"

    def _put_turn(self) -> None:
        """The last chunk of a row, and the one that the pass before ended with."""
        text, index, chunk = self.text, self.index, self.stride * self.steps
        if not self._loops_before:
            text.put(f"const {index} final = start + (end - 1 + shift - start) / {chunk} * {chunk};")
            text.put(f"{index} turn = final;")
        elif self._loops_before > 1:
            text.put(f"turn = {'start' if self._loops_before % 2 == 0 else 'final'};")

    @property
    def _turns(self) -> bool:
        """Whether every other pass goes back: along whole rows that are not held."""
        return not (self.over_rows or self.layout.in_registers or self.code.is_split or self.text.in_order)

    @property
    def _loops_before(self) -> int:
        return sum(row_pass.loops for row_pass in self.text.program.passes[: self.number])

    def _is_complete(self, name: Reduction) -> bool:
        """Whether the loop itself leaves the result of the whole team."""
        return self.layout.in_registers and name in JOINT

    def _is_lone(self, name: Reduction) -> bool:
        """Along rows, whether there is one result for all elements of a vector."""
        return not self.over_rows and name in JOINT

    def _declare(self, r: int, name: Reduction) -> None:
        width = 1 if self._is_lone(name) else self.vector
        for s in self.states(r):
            count = 1 if s.is_single else width
            stem = s.name if self.over_rows or self._is_lone(name) else s.name + "_v"
            self.text.put(
                f"{s.type} {stem}[{count}];",
                f"UNROLL for (int v = 0; v < {count}; v++) {stem}[v] = {s.nothing};",
            )

    def _gather(self, r: int, name: Reduction) -> None:
        """The results of a thread's vectors as one, and those of the team's threads."""
        text, states = self.text, self.states(r)
        if not self.over_rows and not self._is_lone(name):
            text.put(*(f"{s.type} {s.name}[1]; {s.name}[0] = {s.name}_v[0];" for s in states))
            if self.vector > 1:
                a, b = [f"{s.name}[0]" for s in states], [f"{s.name}_v[v]" for s in states]
                text.put(
                    f"UNROLL for (int v = 1; v < {self.vector}; v++) {{",
                    *combined(name, a, b, self.real, text.fold_function),
                    "}",
                )
        layout = self.layout
        text.put(
            *combine_threads(
                name, states, self.real, text.fold_function, text.width, layout.columns, layout.row_threads
            )
        )

    # ---- elements

    def _values(self, expressions: Sequence[object]) -> tuple[list[str], list[str]]:
        """Statements that make what expressions see of the element (u, v), and their arguments."""
        text, program = self.text, self.text.program
        lines = []
        arguments = [text.element(t) if text.kind(t) != "" else "0" for t in range(self.code.inputs)]
        if program.places:
            place = text.offset(len(self.code.dtypes))
            if place == "d0" and len(self.layout.reduced) == 1:
                place = "i"
            else:
                lines += text.offset_lines("i")
            lines.append(f"const {self.index} place = {place};")
        if program.position:
            # sums of whole numbers that f32 has are exact
            is_exact = self.real == "f64" or self.layout.row < 2**24
            arguments.append("i_real" if is_exact and place == "i" else "place")
        keeps = [*text.kept, *((self.number, e) for e in self.row_pass.keeps)]
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
                bound = text.bound[: text.known[row_pass]]
                lines.append(f"const {self.real} e{n} = {text.call(expression, [*arguments, *bound])};")
                if self.layout.in_registers:
                    lines.append(f"k{n}[u * {self.vector} + v] = e{n};")
            elif before + n in needed:
                lines.append(f"const {self.real} e{n} = k{n}[u * {self.vector} + v];")
            arguments.append(f"e{n}")
        return lines, [*arguments, *text.bound]

    def _keep_and_fold(self, loop_reductions: Sequence[tuple[int, Reduction]]) -> None:
        text, row_pass = self.text, self.row_pass
        if not loop_reductions and not row_pass.keeps:
            return
        lines, arguments = self._values([e for r, e in enumerate([e for _, e in row_pass.reductions])])
        plain, joint = [], []
        for r, name in loop_reductions:
            value = text.call(row_pass.reductions[r][1], arguments)
            names = [s.name if self.over_rows else s.name + "_v" for s in self.states(r)]
            if name in JOINT:
                joint.append((r, name, value))
            elif name in ARGS:
                plain += ["{", f"const {self.real} value = {value};"]
                plain += [
                    *combined(
                        name, [f"{s}[v]" for s in names], ["value", "place"], self.real, text.fold_function
                    ),
                    "}",
                ]
            else:
                plain += combined(name, [f"{s}[v]" for s in names], [value], self.real, text.fold_function)
        if (plain or row_pass.keeps) and not joint:
            text.put(*self.over_elements([*lines, *plain]))
        for r, name, value in joint:
            # the first of them has the others beside it
            getattr(self, f"_{name}")(r, [*lines, *plain] if r == joint[0][0] else lines, lines, value)

    @property
    def _wide(self) -> int:
        """Results of joint reductions that a thread has."""
        return self.vector if self.over_rows else 1

    def _moments(self, r: int, once: Sequence[str], lines: Sequence[str], value: str) -> None:
        """The mean of a few elements, their distances from it, and both put behind what there is.

        A row that is held has its mean before the distances. `once`: statements of other reductions too.
        """
        text, real, states, held = self.text, self.real, self.states(r), self.layout.in_registers
        # along, each place of a vector adds up for itself
        text.put(
            "{", f"{real} total[{self.vector}], squares[{self.vector}], mean[{self._wide}]; {real} count = 0;"
        )
        text.put(f"UNROLL for (int v = 0; v < {self.vector}; v++) total[v] = squares[v] = 0;")
        one = "" if held else "count += 1;" if not self.over_rows else "if (v == 0) count += 1;"
        text.put(*self.over_elements([*once, f"total[v] += {value};", one]))
        if held:
            text.put(f"count = ({real})n;")
        text.put(f"const {real} share = count > 0 ? 1 / count : 0;")
        self._summed("total")
        if held:
            self._joined("total", states[0], "add")
        mean = "total" if not held else states[0].name
        text.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) mean[v] = {mean}[v] * share;")
        mean = "mean[v]" if self.over_rows else "mean[0]"
        apart = [f"const {real} distance = {value} - {mean};", "squares[v] += distance * distance;"]
        text.put(*self.over_elements([*lines, *apart]))
        self._summed("squares")
        if held:
            self._joined("squares", states[1], "add")
            text.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) {states[0].name}[v] = mean[v];", "}")
            return
        a = [f"{s.name}[{'0' if s.is_single else 'v'}]" for s in states]
        b = ["mean[v]", "squares[v]", "count"]
        text.put(
            f"UNROLL for (int v = 0; v < {self._wide}; v++) {{",
            *combined("moments", a, b, real, text.fold_function),
            "}",
            *counts_added("moments", a, b),
            "}",
        )

    def _powers(self, r: int, once: Sequence[str], lines: Sequence[str], value: str) -> None:
        """The greatest of a few elements and what there is, and the sum of powers from there on.

        A row that is held has its greatest element before the powers. `once`: statements of other reductions too.
        """
        text, real, held, (top, total) = self.text, self.real, self.layout.in_registers, self.states(r)
        least = c_constant(-float("inf"), real)
        text.put("{", f"{real} most[{self.vector}], powers[{self.vector}], origin[{self._wide}];")
        text.put(f"UNROLL for (int v = 0; v < {self.vector}; v++) {{ most[v] = {least}; powers[v] = 0; }}")
        larger = [*lines, f"most[v] = fold_max_number_{real}(most[v], {value});"]
        pairs = self._pairs(r)
        text.put(*pairs[0], *self.over_elements(larger, pairs[1]), *pairs[2])
        if not self.over_rows and self.vector > 1:
            text.put(
                f"UNROLL for (int v = 1; v < {self.vector}; v++) most[0] = fold_max_number_{real}(most[0], most[v]);"
            )
        if held:
            self._joined("most", top, "max_number")
        before = [
            f"most[v] = fold_max_number_{real}(most[v], {top.name}[v]);",
            f"origin[v] = most[v] == {least} ? 0 : most[v];",
            f"if ({top.name}[v] != {least}) {total.name}[v] *= exp({top.name}[v] - origin[v]);",
            f"{top.name}[v] = most[v];",
        ]
        text.put(
            f"UNROLL for (int v = 0; v < {self._wide}; v++) {{",
            *([f"origin[v] = {top.name}[v] == {least} ? 0 : {top.name}[v];"] if held else before),
            "}",
        )
        origin = "origin[v]" if self.over_rows else "origin[0]"
        text.put(*self.over_elements([*once, f"powers[v] += {text.exp}({value} - {origin});"]))
        self._summed("powers")
        if held:
            self._joined("powers", total, "add")
            text.put("}")
        else:
            text.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) {total.name}[v] += powers[v];", "}")

    def _pairs(self, r: int) -> tuple[list[str], list[str], list[str]]:
        """Statements for the greatest of two elements at once, where they are two of 16 bits: before whole vectors, for
        one, and behind all; none elsewhere."""
        text, expression = self.text, self.row_pass.reductions[r][1]
        step = expression.instructions[-1]
        if self.over_rows or step.operation != "input" or step.arguments[0] >= self.code.inputs:
            return [], [], []
        t = step.arguments[0]
        dtype, words = self.code.dtypes[t], text.words(t)
        if text.kind(t) != "words" or dtype not in ("f16", "bf16"):
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

    def _joined(self, name: str, state: State, reduction: Reduction) -> None:
        """The numbers of an array over the team, in the state's array."""
        text, layout = self.text, self.layout
        one = State(state.name, state.type, "")
        text.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) {state.name}[v] = {name}[v];")
        text.put(
            *combine_threads(
                reduction,
                [one],
                self.real,
                text.fold_function,
                text.width,
                layout.columns,
                layout.row_threads,
            )
        )

    def _summed(self, name: str) -> None:
        """Along: the places of a vector added up, neighbours first."""
        if self.over_rows:
            return
        distance = self.vector // 2
        while distance:
            self.text.put(f"UNROLL for (int v = 0; v < {distance}; v++) {name}[v] += {name}[v + {distance}];")
            distance //= 2

    # ---- loads

    def _load(self, inputs: Sequence[int]) -> None:
        if inputs:
            lines = (
                self.load_over_rows(inputs)
                if self.over_rows
                else self.over_vectors(*self.loads_over_elements(inputs))
            )
            self.text.put(*lines)

    # ---- writes

    def _write(self) -> None:
        text, v = self.text, self.vector
        lines, arguments = self._values([e for _, e in self.row_pass.writes])
        declared, made = [], list(lines)
        for n, (output, expression) in enumerate(self.row_pass.writes):
            value = text.call(expression, arguments)
            declared.append(f"{self.real} out{n}[{v}];")
            made.append(
                f"out{n}[v] = {value};" if output in self.code.plain else f"out{n}[v] = alpha * {value};"
            )
        every = [f"UNROLL for (int v = 0; v < {v}; v++) {{"]
        if self.over_rows:
            every.append(f"const {self.real} i_real = ({self.real})i;")
            body = [*declared, *every, *made, "}", *text.offset_lines("i")]
            for n, (output, _) in enumerate(self.row_pass.writes):
                body += self.store_over_rows(n, output)
            text.put(*self.over_vectors_down(body))
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
        ahead, ahead_checked = self._next_loads()
        body = [*declared, *every, *here, *made, "}", *whole]
        text.put(*self.over_vectors([*ahead, *body], [*ahead_checked, *checked]))
