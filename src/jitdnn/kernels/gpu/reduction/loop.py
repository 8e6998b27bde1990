"""One sweep over a row as text: load some vectors, reduce them, write what is made of them; then the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.formulas.row_programs import ARGS, JOINT, Sweep
from jitdnn.kernels.gpu.reduction.combine import State, counted, folded, states_of, team_text
from jitdnn.kernels.gpu.reduction.vectors import Vectors
from jitdnn.rtcg.c_source import c_constant
from jitdnn.rtcg.folds import Reduction

if TYPE_CHECKING:
    from jitdnn.kernels.gpu.reduction.code import Text


def write_sweep(text: Text, number: int) -> None:
    """The sweep's loop, and its reductions over the team; the results are in the arrays s<number>_<reduction>."""
    sweep = text.program.sweeps[number]
    writer = _Sweep(text, number, sweep)
    for r, (name, expression) in enumerate(sweep.reductions):
        if name == "first":
            writer.first(r, expression)
    if sweep.loops:
        writer.loop()


class _Sweep(Vectors):
    def __init__(self, text: Text, number: int, sweep: Sweep) -> None:
        super().__init__(text, number, sweep)
        self.late: list[int] = []  # inputs that are loaded when they are needed

    def states(self, r: int) -> list[State]:
        return states_of(self.sweep.reductions[r][0], f"s{self.number}_{r}", self.real, self.index)

    # ---- the first element

    def first(self, r: int, expression: object) -> None:
        text = self.text
        (state,) = self.states(r)
        lane = "column * lane0_{}" if self.across else "0"
        values = [
            text.element(t)
            if text.kind(t) == "own"
            else f"LOAD({self.code.dtypes[t]}, x{t}, {lane.format(t)})"
            for t in range(self.code.inputs)
        ]
        values += ["0"] * (text.program.position + len(text.kept)) + text.bound
        value = text.call(expression, values)  # type: ignore[arg-type]
        text.put(f"{self.real} {state.name}[{text.width}];")
        if self.across:
            text.put(*text.over_columns(f"{state.name}[v] = is_column && n > 0 ? {value} : 0;"))
        else:
            text.put(f"{state.name}[0] = is_on && n > 0 ? {value} : 0;")

    # ---- the loop

    def loop(self) -> None:
        text, sweep = self.text, self.sweep
        folds = [(r, name) for r, (name, _) in enumerate(sweep.reductions) if name != "first"]
        for r, name in folds:
            self._declare(r, name)
        inputs = text.used([sweep])
        again: list[int] = []
        if self.layout.is_held:
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
        if not self.across:
            text.put(*self.which_are_full())
        if again:
            # the first chunk is the last one of the sweep before
            text.put("if (base != turn) {")
            self._load(again)
            text.put("}")
        self._load([t for t in inputs if text.kind(t) != "own" and t not in self.late and t not in again])
        if self.layout.is_held and not text.late:
            self._load_early()
        self._keep_and_fold(folds)
        if sweep.writes:
            self._write()
        text.put("}")
        for r, name in folds:
            if not self._is_complete(name):
                self._gather(r, name)
        made = len(text.kept)
        text.kept += [(self.number, e) for e in sweep.keeps]
        assert made <= len(text.kept)

    def _load_early(self) -> None:
        """Along: the first vectors of what only a later sweep writes with, and all rows share.

        The others follow one by one when they are needed, from a cache, and take no registers before.
        """
        text, sweeps = self.text, self.text.program.sweeps
        if self.across or self.steps == 1:
            return
        for number in range(self.number + 1, len(sweeps)):
            sweep = sweeps[number]
            fresh = {t for t in text.used([sweep]) if t not in text.loaded and text.kind(t) != "own"}
            if sweep.writes and not sweep.folds and not sweep.keeps:
                text.late |= {
                    t for t in fresh if any(extent > 1 and not s[t] for extent, s in self.layout.kept)
                }
        if text.late:
            _, checked = self.loads_along(sorted(text.late))
            text.put("{ const int u = 0;", *self.vector_ends(), *checked, "}")

    def _next_loads(self) -> tuple[list[str], list[str]]:
        """Statements that load the vector behind u of what is loaded late: where u is full, and otherwise."""
        if not self.late:
            return [], []
        vectors, checked = self.loads_along(self.late)
        _, end = self.full
        head = ["{ const int behind = u + 1; {", "const int u = behind;", *self.vector_ends()]
        others = [f"if (u < {self.steps}) {{", *checked, "}", "} }"]
        return [*head, f"if (u < {end}) {{", *vectors, "} else", *others], [*head, *others]

    def _chunks(self) -> str:
        """The head of the loop over a row that is not held. Every other sweep goes back, to what was read last."""
        text, index, chunk = self.text, self.index, self.stride * self.steps
        if text.in_order:
            return f"for ({index} base = start; base + mine < end; base += {chunk}) {{"
        if not self._turns or self._loops_before % 2 == 0:
            return f"for ({index} base = start; base - shift < end; base += {chunk}) {{"
        return f"for ({index} base = final; base >= start; base -= {chunk}) {{"

    def _put_turn(self) -> None:
        """The last chunk of a row, and the one that the sweep before ended with."""
        text, index, chunk = self.text, self.index, self.stride * self.steps
        if not self._loops_before:
            text.put(f"const {index} final = start + (end - 1 + shift - start) / {chunk} * {chunk};")
            text.put(f"{index} turn = final;")
        elif self._loops_before > 1:
            text.put(f"turn = {'start' if self._loops_before % 2 == 0 else 'final'};")

    @property
    def _turns(self) -> bool:
        """Whether every other sweep goes back: along whole rows that are not held."""
        return not (self.across or self.layout.is_held or self.code.is_split or self.text.in_order)

    @property
    def _loops_before(self) -> int:
        return sum(sweep.loops for sweep in self.text.program.sweeps[: self.number])

    def _is_complete(self, name: Reduction) -> bool:
        """Whether the loop itself leaves the result of the whole team."""
        return self.layout.is_held and name in JOINT

    def _is_lone(self, name: Reduction) -> bool:
        """Along rows, whether there is one result for all elements of a vector."""
        return not self.across and name in JOINT

    def _declare(self, r: int, name: Reduction) -> None:
        width = 1 if self._is_lone(name) else self.vector
        for s in self.states(r):
            count = 1 if s.is_single else width
            stem = s.name if self.across or self._is_lone(name) else s.name + "_v"
            self.text.put(
                f"{s.type} {stem}[{count}];",
                f"UNROLL for (int v = 0; v < {count}; v++) {stem}[v] = {s.nothing};",
            )

    def _gather(self, r: int, name: Reduction) -> None:
        """The results of a thread's vectors as one, and those of the team's threads."""
        text, states = self.text, self.states(r)
        if not self.across and not self._is_lone(name):
            text.put(*(f"{s.type} {s.name}[1]; {s.name}[0] = {s.name}_v[0];" for s in states))
            if self.vector > 1:
                a, b = [f"{s.name}[0]" for s in states], [f"{s.name}_v[v]" for s in states]
                text.put(
                    f"UNROLL for (int v = 1; v < {self.vector}; v++) {{",
                    *folded(name, a, b, self.real, text.fold_call),
                    "}",
                )
        layout = self.layout
        text.put(*team_text(name, states, self.real, text.fold_call, text.width, layout.columns, layout.team))

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
        keeps = [*text.kept, *((self.number, e) for e in self.sweep.keeps)]
        before = len(arguments)
        needed: set[int] = set()
        for expression in expressions:
            needed |= expression.used()  # type: ignore[attr-defined]
        own = set()
        for n in reversed(range(len(keeps))):
            sweep, expression = keeps[n]
            if sweep == self.number or (before + n in needed and not self.layout.is_held):
                own.add(n)
                needed |= expression.used()
        for n, (sweep, expression) in enumerate(keeps):
            if n in own:
                # row values known when the keep was made, of which there are as many as its sweep had
                bound = text.bound[: text.known[sweep]]
                lines.append(f"const {self.real} e{n} = {text.call(expression, [*arguments, *bound])};")
                if self.layout.is_held:
                    lines.append(f"k{n}[u * {self.vector} + v] = e{n};")
            elif before + n in needed:
                lines.append(f"const {self.real} e{n} = k{n}[u * {self.vector} + v];")
            arguments.append(f"e{n}")
        return lines, [*arguments, *text.bound]

    def _keep_and_fold(self, folds: Sequence[tuple[int, Reduction]]) -> None:
        text, sweep = self.text, self.sweep
        if not folds and not sweep.keeps:
            return
        lines, arguments = self._values([e for r, e in enumerate([e for _, e in sweep.reductions])])
        plain, joint = [], []
        for r, name in folds:
            value = text.call(sweep.reductions[r][1], arguments)
            names = [s.name if self.across else s.name + "_v" for s in self.states(r)]
            if name in JOINT:
                joint.append((r, name, value))
            elif name in ARGS:
                plain += ["{", f"const {self.real} value = {value};"]
                plain += [
                    *folded(name, [f"{s}[v]" for s in names], ["value", "place"], self.real, text.fold_call),
                    "}",
                ]
            else:
                plain += folded(name, [f"{s}[v]" for s in names], [value], self.real, text.fold_call)
        if (plain or sweep.keeps) and not joint:
            text.put(*self.over_elements([*lines, *plain]))
        for r, name, value in joint:
            # the first of them has the others beside it
            getattr(self, f"_{name}")(r, [*lines, *plain] if r == joint[0][0] else lines, lines, value)

    @property
    def _wide(self) -> int:
        """Results of joint reductions that a thread has."""
        return self.vector if self.across else 1

    def _moments(self, r: int, once: Sequence[str], lines: Sequence[str], value: str) -> None:
        """The mean of a few elements, their distances from it, and both put behind what there is.

        A row that is held has its mean before the distances. `once`: statements of other reductions too.
        """
        text, real, states, held = self.text, self.real, self.states(r), self.layout.is_held
        # along, each place of a vector adds up for itself
        text.put(
            "{", f"{real} total[{self.vector}], squares[{self.vector}], mean[{self._wide}]; {real} count = 0;"
        )
        text.put(f"UNROLL for (int v = 0; v < {self.vector}; v++) total[v] = squares[v] = 0;")
        one = "" if held else "count += 1;" if not self.across else "if (v == 0) count += 1;"
        text.put(*self.over_elements([*once, f"total[v] += {value};", one]))
        if held:
            text.put(f"count = ({real})n;")
        text.put(f"const {real} share = count > 0 ? 1 / count : 0;")
        self._summed("total")
        if held:
            self._joined("total", states[0], "add")
        mean = "total" if not held else states[0].name
        text.put(f"UNROLL for (int v = 0; v < {self._wide}; v++) mean[v] = {mean}[v] * share;")
        mean = "mean[v]" if self.across else "mean[0]"
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
            *folded("moments", a, b, real, text.fold_call),
            "}",
            *counted("moments", a, b),
            "}",
        )

    def _powers(self, r: int, once: Sequence[str], lines: Sequence[str], value: str) -> None:
        """The greatest of a few elements and what there is, and the sum of powers from there on.

        A row that is held has its greatest element before the powers. `once`: statements of other reductions too.
        """
        text, real, held, (top, total) = self.text, self.real, self.layout.is_held, self.states(r)
        least = c_constant(-float("inf"), real)
        text.put("{", f"{real} most[{self.vector}], powers[{self.vector}], origin[{self._wide}];")
        text.put(f"UNROLL for (int v = 0; v < {self.vector}; v++) {{ most[v] = {least}; powers[v] = 0; }}")
        larger = [*lines, f"most[v] = fold_max_number_{real}(most[v], {value});"]
        pairs = self._pairs(r)
        text.put(*pairs[0], *self.over_elements(larger, pairs[1]), *pairs[2])
        if not self.across and self.vector > 1:
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
        origin = "origin[v]" if self.across else "origin[0]"
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
        text, expression = self.text, self.sweep.reductions[r][1]
        step = expression.instructions[-1]
        if self.across or step.operation != "input" or step.arguments[0] >= self.code.inputs:
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
            *team_text(reduction, [one], self.real, text.fold_call, text.width, layout.columns, layout.team)
        )

    def _summed(self, name: str) -> None:
        """Along: the places of a vector added up, neighbours first."""
        if self.across:
            return
        distance = self.vector // 2
        while distance:
            self.text.put(f"UNROLL for (int v = 0; v < {distance}; v++) {name}[v] += {name}[v + {distance}];")
            distance //= 2

    # ---- loads

    def _load(self, inputs: Sequence[int]) -> None:
        if inputs:
            lines = self.load_across(inputs) if self.across else self.over_vectors(*self.loads_along(inputs))
            self.text.put(*lines)

    # ---- writes

    def _write(self) -> None:
        text, v = self.text, self.vector
        lines, arguments = self._values([e for _, e in self.sweep.writes])
        declared, made = [], list(lines)
        for n, (output, expression) in enumerate(self.sweep.writes):
            value = text.call(expression, arguments)
            declared.append(f"{self.real} out{n}[{v}];")
            made.append(
                f"out{n}[v] = {value};" if output in self.code.plain else f"out{n}[v] = alpha * {value};"
            )
        every = [f"UNROLL for (int v = 0; v < {v}; v++) {{"]
        if self.across:
            every.append(f"const {self.real} i_real = ({self.real})i;")
            body = [*declared, *every, *made, "}", *text.offset_lines("i")]
            for n, (output, _) in enumerate(self.sweep.writes):
                body += self.store_across(n, output)
            text.put(*self.over_rows(body))
            return
        here = [
            f"const {self.index} i = first + v * element_step;",
            f"const {self.real} i_real = ({self.real})i;",
        ]
        stores, whole = [], []
        for n, (output, _) in enumerate(self.sweep.writes):
            checked_store = self.store_along(n, output)
            stores += checked_store
            whole += self.whole_store(n, output) or checked_store
        checked = ["if (last >= lo && first < end) {", *declared, *every, *here, *made, "}", *stores, "}"]
        ahead, ahead_checked = self._next_loads()
        body = [*declared, *every, *here, *made, "}", *whole]
        text.put(*self.over_vectors([*ahead, *body], [*ahead_checked, *checked]))
