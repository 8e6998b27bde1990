"""The vectors of a pass over rows as text: which of them a thread has, how they are loaded and stored.

Over elements, a thread's vectors are `u`, and `v` their elements; over rows, `u` are elements of a row and `v` the
rows of a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.formulas.row_programs import Pass
from jitdnn.kernels.gpu.reduction.writer import Writer
from jitdnn.tensor import DTYPES


class Vectors:
    """What a thread has at a time of the elements that one pass goes through."""

    def __init__(self, writer: Writer, number: int, row_pass: Pass) -> None:
        self.writer, self.number, self.row_pass = writer, number, row_pass
        self.layout, self.code = writer.layout, writer.code
        self.vector, self.steps = self.layout.vector, self.layout.steps
        self.over_rows = self.layout.over_rows
        self.real, self.index = writer.real, writer.index
        self.stride = 1 if writer.in_order else self.layout.row_threads
        if not self.over_rows:
            self.stride *= self.vector

    def vector_ends(self) -> list[str]:
        """The numbers of a vector's first and last element."""
        return [
            f"const {self.index} first = base + mine + u * {self.stride} - shift;",
            f"const {self.index} last = first + {self.vector - 1} * element_step;",
        ]

    @property
    def full(self) -> tuple[int, int]:
        """Over elements: the vectors, first and end, of which most threads have every element."""
        exact = self.layout.row % (self.stride * self.steps) == 0
        return (0 if self.layout.is_even else 1), self.steps - (0 if self.layout.is_even and exact else 1)

    def which_are_full(self) -> list[str]:
        """Over elements: whether the thread has every element of the vectors of `full`."""
        begin, end = self.full
        if begin >= end or self.writer.in_order:
            return []
        first = f"base + mine + {begin * self.stride} - shift >= lo"
        last = f"base + mine + {(end - 1) * self.stride + self.vector - 1} - shift < end"
        return [f"const int is_full = is_vector && {first} && {last};"]

    def over_vectors(self, whole: Sequence[str], checked: Sequence[str]) -> list[str]:
        """Over elements: statements for every vector u: `whole` where all its elements are there, else `checked`.

        Vectors that most threads have as a whole are worked through without a branch between them.
        """
        ends, (begin, end) = self.vector_ends(), self.full

        def loop(first: int, last: int, body: Sequence[str]) -> list[str]:
            head = f"UNROLL for (int u = {first}; u < {last}; u++) {{"
            return [head, *ends, *body, "}"] if first < last else []

        if begin >= end or self.writer.in_order:
            return loop(0, self.steps, checked)
        return [
            *loop(0, begin, checked),
            "if (is_full) {", *loop(begin, end, whole), "} else {", *loop(begin, end, checked), "}",
            *loop(end, self.steps, checked),
        ]  # fmt: skip

    def over_elements(self, body: Sequence[str], instead: Sequence[str] = ()) -> list[str]:
        """`body` for every element (u, v) that there is, number `i` (as a real number `i_real`).

        Over elements, `instead` is for whole vectors.
        """
        if self.over_rows:
            each = f"UNROLL for (int v = 0; v < {self.vector}; v++) {{ const {self.real} i_real = ({self.real})i;"
            return self.over_vectors_down([each, *body, "}"])
        every = f"UNROLL for (int v = 0; v < {self.vector}; v++) {{ const {self.index} i = first + v"
        own = f"const {self.real} i_real = ({self.real})i;"
        whole = [
            f"const {self.real} first_real = ({self.real})first;",
            f"{every}; const {self.real} i_real = first_real + ({self.real})v;", *body, "}",
        ]  # fmt: skip
        checked = [
            "if (first >= lo && last < end) {",
            f"{every} * element_step; {own}", *body, "}",
            "} else if (last >= lo && first < end) {",
            f"{every} * element_step; {own}", "if (i >= lo && i < end) {", *body, "}", "}", "}",
        ]  # fmt: skip
        return self.over_vectors(instead or whole, checked)

    def over_vectors_down(self, body: Sequence[str]) -> list[str]:
        """Over rows: `body` for every vector u that there is, of the elements number `i`."""
        return [
            f"UNROLL for (int u = 0; u < {self.steps}; u++) {{",
            f"const {self.index} i = base + mine + u * {self.stride};",
            "if (i < end) {",
            *body,
            "}",
            "}",
        ]

    # ---- loads

    def bits(self, t: int, place: str) -> str:
        """A statement that puts the element v of a vector among its words."""
        size, words = DTYPES[self.code.dtypes[t]], self.writer.words(t)
        kind = {1: "u8", 2: "u16", 4: "u32"}[size]
        bits = f"(u32)((GLOBAL const {kind} *)x{t})[{place}]"
        return f"w{t}[u * {words} + v * {size} / 4] |= {bits} << (v * {size} % 4 * 8);"

    def loads_over_elements(self, inputs: Sequence[int]) -> tuple[list[str], list[str]]:
        """Statements that load the vector u: a whole one, and any."""
        writer, v = self.writer, self.vector
        vectors, ones, none = list(writer.offset_lines("first")), list(writer.offset_lines("i")), []
        for t in inputs:
            kind, dtype, words = writer.kind(t), self.code.dtypes[t], writer.words(t)
            place, value = writer.offset(t), f"w{t}[u * {v} + v]"
            if kind == "words":
                none.append(f"UNROLL for (int k = 0; k < {words}; k++) w{t}[u * {words} + k] = 0;")
                vectors.append(
                    f"load_words(w{t} + u * {words}, (GLOBAL const u8 *)(x{t} + {place}), {words});"
                )
                ones.append(self.bits(t, place))
                continue
            none.append(f"UNROLL for (int v = 0; v < {v}; v++) {value} = 0;")
            ones.append(f"{value} = LOAD({dtype}, x{t}, {place});")
            step = self.layout.reduced[-1][1][t]
            last = len(self.layout.reduced) - 1
            each = f"{place} + v * ({self.index})reduced{last}_{t}" if step else place
            vectors.append(f"UNROLL for (int v = 0; v < {v}; v++) {value} = LOAD({dtype}, x{t}, {each});")
        checked = [
            "{", *none,
            f"UNROLL for (int v = 0; v < {v}; v++) {{ const {self.index} i = first + v * element_step;",
            "if (i >= lo && i < end) {", *ones, "}", "}", "}",
        ]  # fmt: skip
        if v > 1:
            checked = ["if (is_vector && first >= lo && last < end) {", *vectors, "} else", *checked]
        return vectors, checked

    def load_over_rows(self, inputs: Sequence[int]) -> list[str]:
        writer, v = self.writer, self.vector
        lines = list(writer.offset_lines("i"))
        for t in inputs:
            kind, dtype, words = writer.kind(t), self.code.dtypes[t], writer.words(t)
            place = writer.offset(t)
            if kind == "same":
                lines.append(f"w{t}[u] = LOAD({dtype}, x{t}, {place});")
            elif kind == "words":
                begin = f"(GLOBAL const u8 *)(x{t} + {place} + column0)"
                lines += [
                    "if (is_vector) {",
                    f"if (column0 < lanes) load_words(w{t} + u * {words}, {begin}, {words});",
                    "} else {",
                    f"UNROLL for (int k = 0; k < {words}; k++) w{t}[u * {words} + k] = 0;",
                    *writer.over_columns("if (is_column) " + self.bits(t, f"{place} + column")),
                    "}",
                ]  # fmt: skip
            else:
                value = f"is_column ? ({self.real})LOAD({dtype}, x{t}, {place} + column * lane0_{t}) : 0"
                lines += writer.over_columns(f"w{t}[u * {v} + v] = {value};")
        return self.over_vectors_down(lines)

    # ---- stores

    def is_unit(self, t: int) -> bool:
        vectorized = self.layout.lanes if self.over_rows else self.layout.reduced[-1]
        is_real = self.code.dtypes[t] in ("f16", "bf16", "f32")
        return vectorized[1][t] == 1 and is_real and self.vector > 1

    def one(self, n: int, output: int, place: str) -> list[str]:
        """Store element v of a result."""
        t = self.code.inputs + output
        dtype, lines = self.code.dtypes[t], [f"{self.real} result = out{n}[v];"]
        if output not in self.code.plain:
            lines.append(f"if (beta != 0) result += beta * ({self.real})LOAD({dtype}, x{t}, {place});")
        return [*lines, f"STORE({dtype}, x{t}, {place}, result);"]

    def vector_store(self, n: int, output: int, place: str) -> list[str]:
        """Store a whole vector of a result."""
        t = self.code.inputs + output
        dtype, words, v = self.code.dtypes[t], self.writer.words(t), self.vector
        size = DTYPES[dtype]
        lines = ["{", f"GLOBAL u8 *target = (GLOBAL u8 *)(x{t} + {place});", f"u32 packed[{words}];"]
        if output not in self.code.plain:
            lines += [
                "if (beta != 0) {",
                f"load_words(packed, target, {words});",
                f"UNROLL for (int v = 0; v < {v}; v++) "
                f"out{n}[v] += beta * element_{dtype}(packed[v * {size} / 4], v * {size} % 4);",
                "}",
            ]
        return [
            *lines,
            f"UNROLL for (int k = 0; k < {words}; k++) packed[k] = 0;",
            f"UNROLL for (int v = 0; v < {v}; v++) "
            f"packed[v * {size} / 4] |= (u32)bits_{dtype}(out{n}[v]) << (v * {size} % 4 * 8);",
            f"store_words(target, packed, {words});",
            "}",
        ]

    def store_over_elements(self, n: int, output: int) -> list[str]:
        writer, t, v = self.writer, self.code.inputs + output, self.vector
        here = f"const {self.index} i = first + v * element_step;"
        ones = [
            f"UNROLL for (int v = 0; v < {v}; v++) {{ {here}", "if (i >= lo && i < end) {", *writer.offset_lines("i"),
            *self.one(n, output, writer.offset(t)), "}", "}",
        ]  # fmt: skip
        whole = self.whole_store(n, output)
        if not whole:
            return ones
        return ["if (is_vector && first >= lo && last < end)", *whole, "else {", *ones, "}"]

    def whole_store(self, n: int, output: int) -> list[str]:
        """Over elements: store a vector that is there as a whole, if it may be stored as such."""
        writer, t = self.writer, self.code.inputs + output
        if not self.is_unit(t):
            return []
        return ["{", *writer.offset_lines("first"), *self.vector_store(n, output, writer.offset(t)), "}"]

    def store_over_rows(self, n: int, output: int) -> list[str]:
        writer, t = self.writer, self.code.inputs + output
        place = writer.offset(t)
        ones = writer.over_columns(
            "if (is_column) {", *self.one(n, output, f"{place} + column * lane0_{t}"), "}"
        )
        if not self.is_unit(t):
            return ones
        whole = self.vector_store(n, output, f"{place} + column0")
        return ["if (is_vector) {", "if (column0 < lanes)", *whole, "} else {", *ones, "}"]
