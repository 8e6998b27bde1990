"""CTC loss, a sequence a task: the recursion over labels in vectors, times one after the other.

States are kept as two rows, one of labels and one of blanks, of logarithms relative to the greatest of the row before,
so that their digits do not depend on how long the sequence is; the sum of what was taken away is kept in f64.

    forward    rows of alpha, each overwriting the one before the last
    backward   rows of alpha, all kept in the workspace; then from the end rows of beta, and with each the gradient:
               what is said at a time is exp(alpha + beta) over its sum

A row has room for one vector more, and one in front: -infinity, so that the neighbours of every state can be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value
from jitdnn.tensor import compute_dtype

# rows of a thread beside those of alpha: logarithms, skips, two times two of beta, two of alpha + beta
FIXED_ROWS = 8


@dataclass(frozen=True)
class CtcCode:
    """What is compiled in; sizes and strides are given at run time."""

    direction: str
    reduction: str
    inputs: str
    dtype: str
    dtypes: tuple[str, ...]  # of all operands
    names: tuple[str, ...]
    is_padded: bool
    zero_infinity: bool
    is_unit: bool  # symbols are neighbours, in x and dx

    @property
    def real(self) -> str:
        return compute_dtype(self.dtype)

    @property
    def is_kept(self) -> bool:
        return self.reduction == "none"


class _Ctc:
    """Traces the kernel."""

    def __init__(self, module: Module, code: CtcCode, slots: Slots) -> None:
        self.code, self.slots_table = code, slots
        self.real, self.lanes = code.real, module.isa.lanes(code.real)
        self.advance = self._trace_advance(module)
        self.fetch = self._trace_fetch(module)
        if code.direction == "bwd":
            self.retreat = self._trace_retreat(module)
        with module.task("sequence") as (k, args, task, thread):
            self._enter(k, args)
            start = (
                Pointer(k, self.arguments.workspace("i8").v, "i8")
                + self.at["kept"]
                + thread * self.at["room"]
            )
            self._place(k, Pointer(k, start.v, self.real))
            self._sequence(k, task)
        if code.direction == "fwd" and not code.is_kept:
            with module.task("total") as (k, args, _, _):
                self._enter(k, args)
                self._total(k)

    def _enter(self, k: Builder, args: Pointer) -> None:
        code = self.code
        self.arguments = Arguments(k, args, len(code.names))
        self.at = self.slots_table.load(self.arguments)
        self.pointers = {name: self.arguments.pointer(n, code.dtypes[n]) for n, name in enumerate(code.names)}
        self.scale = Scale(k, self.arguments, code.dtype)

    def _place(self, k: Builder, start: Pointer) -> None:
        """The parts of a thread's room: rows begin behind the vector in front."""
        row, times, lanes = self.at["row"], self.at["times"], self.lanes
        self.chosen = Pointer(k, start.v, "i64")  # the labels; a number has two elements at most
        self.fixed = [start + (row * (n + 2) + lanes) for n in range(FIXED_ROWS)]
        self.norms = start + row * (FIXED_ROWS + 2)
        self.said = self.norms + times
        self.alphas = self.said + ((self.at["symbols"] + (lanes - 1)) // lanes + 1) * lanes + lanes

    # ---- functions

    def _sum_of(self, k: Builder, values: Sequence[Value]) -> Value:
        """log(sum(exp(values)))."""
        top = values[0]
        for value in values[1:]:
            top = value.max(top)
        shift = k.select(top == -math.inf, 0.0, top)
        total = vector_math.exp(k, values[0] - shift)
        for value in values[1:]:
            total = total + vector_math.exp(k, value - shift)
        return vector_math.log(k, total) + shift

    def _trace_fetch(self, module: Module) -> Function:
        """Trace ``fetch(x, step, symbols, count, padded, norm, target)``: logarithms of the labels' probabilities.

        ``target[i]`` is that of symbol ``symbols[i]``, -infinity for i from ``count`` to ``padded``.
        """
        code, real, lanes = self.code, self.real, self.lanes
        with module.function(
            "fetch", x=code.dtype, step=None, symbols="i64", count=None, padded=None, norm=real, target=real
        ) as (k, (x, step, symbols, count, padded, norm, target), function):  # fmt: skip
            for i in k.range(count):
                target.store(k.convert(x.load(symbols.load(i) * step), real), i)
            less = norm.splat(0, lanes)
            for i in k.range(0, padded, lanes):
                value = target.load(i, lanes)
                if code.inputs == "probs":
                    value = vector_math.log(k, value)
                elif code.inputs == "logits":
                    value = value - less
                target.store(k.select(k.mask(count - i, lanes), value, -math.inf), i)
        return function

    def _trace_advance(self, module: Module) -> Function:
        """Trace ``advance(labels, blanks, skips, lp, less, next_labels, next_blanks, padded, top)``.

        A row of alpha from the one before; ``less`` holds the logarithm of the blank's probability and what is taken
        away from all; the greatest state goes to ``top``.
        """
        real, lanes = self.real, self.lanes
        with module.function(
            "advance", labels=real, blanks=real, skips=real, lp=real, less=real, next_labels=real, next_blanks=real,
            padded=None, top=real,
        ) as (k, (labels, blanks, skips, lp, less, next_labels, next_blanks, padded, top), function):  # fmt: skip
            blank, shift = less.splat(0, lanes), less.splat(1, lanes)
            most = k.register(k.constant(-math.inf, real, lanes))
            for i in k.range(0, padded, lanes):
                own, before = labels.load(i, lanes), labels.load(i - 1, lanes)
                between = blanks.load(i, lanes)
                label = self._sum_of(k, [own, between, before + skips.load(i, lanes)]) + (
                    lp.load(i, lanes) - shift
                )
                gap = self._sum_of(k, [between, before]) + (blank - shift)
                next_labels.store(label, i)
                next_blanks.store(gap, i)
                most.set(label.max(gap.max(most.get())))
            top.store(k.reduce(most.get(), "max"))
        return function

    def _trace_retreat(self, module: Module) -> Function:
        """Trace ``retreat(labels, blanks, skips, alpha_labels, alpha_blanks, next_labels, next_blanks, powers, gaps,
        padded, top)``.

        A row of beta from the one after it, to which the logarithms of its own time were added; alpha + beta in
        ``powers`` and ``gaps``, and the greatest of these in ``top``.
        """
        real, lanes = self.real, self.lanes
        names = ("labels", "blanks", "skips", "alpha_labels", "alpha_blanks", "next_labels", "next_blanks", "powers",
                 "gaps")  # fmt: skip
        parameters: dict[str, str | None] = {**dict.fromkeys(names, real), "padded": None, "top": real}
        with module.function("retreat", **parameters) as (k, given, function):
            (
                labels,
                blanks,
                skips,
                of_labels,
                of_blanks,
                next_labels,
                next_blanks,
                powers,
                gaps,
                padded,
                top,
            ) = given
            most = k.register(k.constant(-math.inf, real, lanes))
            for i in k.range(0, padded, lanes):
                own, after = labels.load(i, lanes), labels.load(i + 1, lanes)
                label = self._sum_of(k, [own, blanks.load(i + 1, lanes), after + skips.load(i + 1, lanes)])
                gap = self._sum_of(k, [blanks.load(i, lanes), own])
                next_labels.store(label, i)
                next_blanks.store(gap, i)
                label, gap = label + of_labels.load(i, lanes), gap + of_blanks.load(i, lanes)
                powers.store(label, i)
                gaps.store(gap, i)
                most.set(label.max(gap.max(most.get())))
            top.store(k.reduce(most.get(), "max"))
        return function

    # ---- a sequence

    def _lengths(self, k: Builder, n: Value) -> tuple[Value, Value]:
        """Times and labels of sequence n, within their limits."""
        found = []
        for name, limit in (("input_lengths", "times"), ("target_lengths", "longest")):
            value = k.convert(self.pointers[name].load(n * self.at[f"{name}0"]), "i64")
            found.append(value.max(0).min(self.at[limit]))
        return found[0], found[1]

    def _sequence(self, k: Builder, n: Value) -> None:
        at, lanes, real = self.at, self.lanes, self.real
        times, count = self._lengths(k, n)
        padded = (count + lanes) // lanes * lanes  # one blank more than labels
        for row in self.fixed:
            for i in k.range(-lanes, padded + lanes, lanes):
                row.store(k.constant(-math.inf, real, lanes), i)
        is_good = self._read_labels(k, n, count)
        self._norms(k, n, times)
        less = k.local(real, 2)
        top = k.local(real, 1)
        total = k.register(k.constant(0.0, "f64"))
        top.store(k.constant(0.0, real))
        loss = k.register(k.select(count > 0, k.constant(math.inf, "f64"), 0.0))
        with k.when(times > 0):
            self._alphas(k, n, times, count, padded, less, top, total)
            last = self._row(k, times - 1)
            ends = [last[0].load(count - 1), last[1].load(count)]
            loss.set(-(k.convert(self._sum_of(k, ends), "f64") + total.get()))
        loss.set(k.select(is_good.get() > 0, loss.get(), math.nan))
        if self.code.direction == "bwd":
            self._gradient(k, n, times, count, padded, less, top, loss.get())
            return
        value = loss.get()
        if self.code.zero_infinity:
            value = k.select(value == math.inf, 0.0, value)
        if self.code.is_kept:
            target = self.pointers["loss"] + n * at["loss0"]
            self.scale.store(target, 1, k.convert(value, real))
        else:
            if self.code.reduction == "mean":
                value = value / (k.convert(count.max(1), "f64") * k.convert(at["batch"], "f64"))
            self.arguments.workspace("f64").store(value, n)

    def _read_labels(self, k: Builder, n: Value, count: Value) -> Register:
        """The labels as numbers that are symbols, and where neighbours differ; 0 if one is none or missing."""
        at = self.at
        source, step = self.pointers["targets"], at["targets1" if self.code.is_padded else "targets0"]
        first = k.register(k.integer(0))
        is_good = k.register(k.integer(1))
        if self.code.is_padded:
            source = source + n * at["targets0"]
        else:
            for earlier in k.range(n):
                first += self._lengths(k, earlier)[1]
            with k.when((count > 0) & (first.get() + count > at["labels"])):
                is_good.set(k.integer(0))
        skips = self.fixed[1]
        previous = k.register(k.integer(-1))
        for i in k.range(count):
            symbol = k.register(k.integer(0))
            with k.when(is_good.get() > 0):
                symbol.set(k.convert(source.load((first.get() + i) * step), "i64"))
            with k.when((symbol.get() < 0) | (symbol.get() >= at["symbols"])):
                is_good.set(k.integer(0))
                symbol.set(k.integer(0))
            self.chosen.store(symbol.get(), i)
            differs = symbol.get() != previous.get()
            skips.store(k.select(differs & (i > 0), k.constant(0.0, self.real), -math.inf), i)
            previous.set(symbol.get())
        return is_good

    def _norms(self, k: Builder, n: Value, times: Value) -> None:
        """The logarithm of the sum of exponentials of each time, where x is not normalized."""
        at, lanes, real = self.at, self.lanes, self.real
        if self.code.inputs != "logits":
            for t in k.range(times):
                self.norms.store(k.constant(0.0, real), t)
            return
        step: int | Value = 1 if self.code.is_unit else at["x2"]
        for t in k.range(times):
            x = self.pointers["x"] + (t * at["x0"] + n * at["x1"])
            most = k.register(k.constant(-math.inf, real, lanes))
            for a in k.range(0, at["symbols"], lanes):
                keep = k.mask(at["symbols"] - a, lanes)
                value = k.convert((x + k.integer(step) * a).load_strided(0, step, lanes, keep), real)
                most.set(k.select(keep, value, -math.inf).max(most.get()))
            top = k.reduce(most.get(), "max")
            shift = k.splat(k.select(top == -math.inf, 0.0, top), lanes)
            total = k.register(k.constant(0.0, real, lanes))
            for a in k.range(0, at["symbols"], lanes):
                keep = k.mask(at["symbols"] - a, lanes)
                value = k.convert((x + k.integer(step) * a).load_strided(0, step, lanes, keep), real)
                total += k.select(keep, vector_math.exp(k, value - shift), 0.0)
            norm = vector_math.log(k, k.reduce(total.get())) + k.extract(shift, 0)
            self.norms.store(norm, t)

    def _row(self, k: Builder, t: Value) -> tuple[Pointer, Pointer]:
        """The rows of alpha at a time."""
        number = t if self.code.direction == "bwd" else t % 2
        start = self.alphas + number * (self.at["row"] * 2)
        return start, start + self.at["row"]

    def _logs(self, k: Builder, n: Value, t: Value, count: Value, padded: Value, less: Pointer) -> None:
        """The logarithms of a time: of the labels in their row, of the blank in ``less``."""
        at = self.at
        x = self.pointers["x"] + (t * at["x0"] + n * at["x1"])
        step = k.integer(1) if self.code.is_unit else at["x2"]
        k.call(self.fetch, x, step, self.chosen, count, padded, self.norms + t, self.fixed[0])
        blank = k.convert(x.load(at["blank"] * step), self.real)
        if self.code.inputs == "probs":
            blank = vector_math.log(k, blank)
        elif self.code.inputs == "logits":
            blank = blank - self.norms.load(t)
        less.store(blank, 0)

    def _alphas(
        self, k: Builder, n: Value, times: Value, count: Value, padded: Value, less: Pointer, top: Pointer,
        total: Register,
    ) -> None:  # fmt: skip
        """All rows of alpha; what was taken away from the last one is in ``total``."""
        real, lanes = self.real, self.lanes
        lp, skips = self.fixed[:2]
        nothing = k.constant(-math.inf, real, lanes)
        self._logs(k, n, k.integer(0), count, padded, less)
        labels, blanks = self._row(k, k.integer(0))
        for i in k.range(-lanes, padded + lanes, lanes):
            labels.store(nothing, i)
            blanks.store(nothing, i)
        labels.store(lp.load(0), 0)  # -infinity if there is no label
        blanks.store(less.load(0), 0)
        first = lp.load(0).max(less.load(0))
        top.store(first)
        for t in k.range(1, times):
            self._logs(k, n, t, count, padded, less)
            here, there = self._row(k, t - 1), self._row(k, t)
            for row in there:
                row.store(nothing, -lanes)
                row.store(nothing, padded)
            shift = top.load(0)
            shift = k.select(shift == -math.inf, 0.0, shift)
            less.store(shift, 1)
            total += k.convert(shift, "f64")
            k.call(self.advance, *here, skips, lp, less, *there, padded, top)

    # ---- the gradient

    def _gradient(
        self, k: Builder, n: Value, times: Value, count: Value, padded: Value, less: Pointer, top: Pointer,
        loss: Value,
    ) -> None:  # fmt: skip
        at, real, lanes, code = self.at, self.real, self.lanes, self.code
        slope = k.convert(self.pointers["dloss"].load(n * at["dloss0"] if code.is_kept else 0), real)
        if code.reduction == "mean":
            slope = slope / (k.convert(count.max(1), real) * k.convert(at["batch"], real))
        bad = k.constant(0.0 if code.zero_infinity else math.nan, real)
        slope = k.select(loss == math.inf, bad, slope)
        slope = k.select(loss != loss, k.constant(math.nan, real), slope)
        lp, skips = self.fixed[:2]
        nothing = k.constant(-math.inf, real, lanes)
        for a in k.range(0, at["symbols"], lanes):
            self.said.store(k.constant(0.0, real, lanes), a)
        labels, blanks, next_labels, next_blanks, powers, gaps = self.fixed[2:]
        for turn in k.range(times):
            t = times - 1 - turn
            of_labels, of_blanks = self._row(k, t)
            with k.when(turn == 0):
                self._last(
                    k, count, padded, next_labels, next_blanks, of_labels, of_blanks, powers, gaps, top
                )
            with k.when(turn > 0):
                k.call(
                    self.retreat, labels, blanks, skips, of_labels, of_blanks, next_labels, next_blanks, powers, gaps,
                    padded, top,
                )  # fmt: skip
            self._logs(k, n, t, count, padded, less)
            self._count(k, count, padded, powers, gaps, top)
            self._write(k, n, t, slope)
            for i in k.range(count):
                self.said.store(k.constant(0.0, real), self.chosen.load(i))
            self.said.store(k.constant(0.0, real), at["blank"])
            # beta and the logarithms of this time, relative to the greatest, for the time before
            blank = k.splat(less.load(0), lanes)
            most = k.register(nothing)
            for i in k.range(0, padded, lanes):
                label, gap = (
                    next_labels.load(i, lanes) + lp.load(i, lanes),
                    next_blanks.load(i, lanes) + blank,
                )
                labels.store(label, i)
                blanks.store(gap, i)
                most.set(label.max(gap.max(most.get())))
            shift = k.reduce(most.get(), "max")
            shift = k.splat(k.select(shift == -math.inf, 0.0, shift), lanes)
            for i in k.range(0, padded, lanes):
                labels.store(labels.load(i, lanes) - shift, i)
                blanks.store(blanks.load(i, lanes) - shift, i)
        for t in k.range(times, at["times"]):
            self._write_zeros(k, n, t)

    def _last(
        self, k: Builder, count: Value, padded: Value, labels: Pointer, blanks: Pointer, of_labels: Pointer,
        of_blanks: Pointer, powers: Pointer, gaps: Pointer, top: Pointer,
    ) -> None:  # fmt: skip
        """Beta at the last time, and with it alpha + beta."""
        real, lanes = self.real, self.lanes
        blanks.store(k.constant(0.0, real), count)
        with k.when(count > 0):
            labels.store(k.constant(0.0, real), count - 1)
        most = k.register(k.constant(-math.inf, real, lanes))
        for i in k.range(0, padded, lanes):
            label = labels.load(i, lanes) + of_labels.load(i, lanes)
            gap = blanks.load(i, lanes) + of_blanks.load(i, lanes)
            powers.store(label, i)
            gaps.store(gap, i)
            most.set(label.max(gap.max(most.get())))
        top.store(k.reduce(most.get(), "max"))

    def _count(
        self, k: Builder, count: Value, padded: Value, powers: Pointer, gaps: Pointer, top: Pointer
    ) -> None:
        """What is said, by symbol: exp(alpha + beta) over its sum."""
        real, lanes = self.real, self.lanes
        greatest = top.load(0)
        shift = k.splat(k.select(greatest == -math.inf, 0.0, greatest), lanes)
        of_labels, of_blanks = (k.register(k.constant(0.0, real, lanes)) for _ in range(2))
        for i in k.range(0, padded, lanes):
            label = vector_math.exp(k, powers.load(i, lanes) - shift)
            powers.store(label, i)
            of_labels += label
            of_blanks += vector_math.exp(k, gaps.load(i, lanes) - shift)
        blank = k.reduce(of_blanks.get())
        total = k.reduce(of_labels.get()) + blank
        inverse = k.select(total == 0.0, k.constant(0.0, real), 1.0 / total)
        for i in k.range(count):
            symbol = self.chosen.load(i)
            self.said.store(self.said.load(symbol) + powers.load(i) * inverse, symbol)
        place = self.at["blank"]
        self.said.store(self.said.load(place) + blank * inverse, place)

    def _write(self, k: Builder, n: Value, t: Value, slope: Value) -> None:
        """dx of a time."""
        at, lanes, code = self.at, self.lanes, self.code
        x = self.pointers["x"] + (t * at["x0"] + n * at["x1"])
        dx = self.pointers["dx"] + (t * at["dx0"] + n * at["dx1"])
        step_x: int | Value = 1 if code.is_unit else at["x2"]
        step: int | Value = 1 if code.is_unit else at["dx2"]
        norm, factor = k.splat(self.norms.load(t), lanes), k.splat(slope, lanes)
        for a in k.range(0, at["symbols"], lanes):
            keep = k.mask(at["symbols"] - a, lanes)
            value = k.convert((x + k.integer(step_x) * a).load_strided(0, step_x, lanes, keep), self.real)
            if code.inputs != "probs":
                value = vector_math.exp(k, value - norm)
            result = (value - self.said.load(a, lanes)) * factor
            self.scale.store(dx + k.integer(step) * a, step, result, keep)

    def _write_zeros(self, k: Builder, n: Value, t: Value) -> None:
        at, lanes = self.at, self.lanes
        dx = self.pointers["dx"] + (t * at["dx0"] + n * at["dx1"])
        step: int | Value = 1 if self.code.is_unit else at["dx2"]
        for a in k.range(0, at["symbols"], lanes):
            zero = k.constant(0.0, self.real, lanes)
            self.scale.store(dx + k.integer(step) * a, step, zero, k.mask(at["symbols"] - a, lanes))

    def _total(self, k: Builder) -> None:
        """The sum of all losses, in order."""
        losses = self.arguments.workspace("f64")
        total = k.register(k.constant(0.0, "f64"))
        for n in k.range(self.at["batch"]):
            total += losses.load(n)
        self.scale.store(self.pointers["loss"], 1, k.convert(total.get(), self.real))


def trace_ctc(module: Module, code: CtcCode, slots: Slots) -> None:
    """Trace the tasks "sequence" and, where losses are added up, "total"."""
    _Ctc(module, code, slots)
