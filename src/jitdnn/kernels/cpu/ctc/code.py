"""The code of CTC loss, one task for each sequence: the recursion over labels in vectors, times one after the other.

States are two rows, one of labels and one of blanks, of logarithms relative to the greatest one of the row before, so
that their precision does not depend on the length of the sequence; the sum of what was subtracted is in f64.

    forward    rows of alpha, each overwriting the last but one
    backward   rows of alpha, all kept in the workspace; then rows of beta from the last time to the first, and the
               gradients: the posterior of a symbol is the sum of its exp(alpha + beta) over that of all states

A row has one more vector of -infinity at each end, so that the neighbours of every state can be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.ctc.plan import FIXED_ROWS, CtcPlan
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Register, Value


@dataclass(frozen=True, eq=False)
class _Sequence:
    """The sequence of a task."""

    n: Value
    times: Value
    count: Value  # of labels; there is one blank more
    padded: Value  # ``count + 1`` rounded up to vectors
    blank_and_shift: (
        Pointer  # of a time: log-probability of the blank, and what is subtracted from all states
    )
    maximum: Pointer  # the greatest state of the newest row


class _CtcCode:
    """Traces the kernel."""

    def __init__(self, module: Module, plan: CtcPlan, slots: Slots) -> None:
        self.plan, self.slot_names = plan, slots
        self.real, self.lanes = plan.real, module.isa.lanes(plan.real)
        self.step_alpha = self._trace_step_alpha(module)
        self.gather_logs = self._trace_gather_logs(module)
        if plan.direction == "bwd":
            self.step_beta = self._trace_step_beta(module)
        with module.task("sequence") as (k, args, task, thread):
            self._enter(k, args)
            start = (
                Pointer(k, self.arguments.workspace("i8").v, "i8")
                + self.slots["losses_bytes"]
                + thread * self.slots["thread_bytes"]
            )
            self._make_buffers(k, Pointer(k, start.v, self.real))
            self._sequence(k, task)
        if plan.direction == "fwd" and plan.is_reduced:
            with module.task("total") as (k, args, _, _):
                self._enter(k, args)
                self._total(k)

    def _enter(self, k: Builder, args: Pointer) -> None:
        plan = self.plan
        self.arguments = Arguments(k, args, len(plan.names))
        self.slots = self.slot_names.load(self.arguments)
        self.pointers = {name: self.arguments.pointer(n, plan.dtypes[n]) for n, name in enumerate(plan.names)}
        self.scale = Scale(k, self.arguments, plan.dtype)

    def _make_buffers(self, k: Builder, start: Pointer) -> None:
        """The buffers of a thread. Pointers to rows skip the vector before the row."""
        row, times, lanes = self.slots["row"], self.slots["times"], self.lanes
        self.label_symbols = Pointer(k, start.v, "i64")  # of the labels, in at most two rows
        self.fixed_rows = [start + (row * (n + 2) + lanes) for n in range(FIXED_ROWS)]
        self.log_norms = start + row * (FIXED_ROWS + 2)
        self.posteriors = self.log_norms + times
        self.alphas = self.posteriors + ((self.slots["symbols"] + (lanes - 1)) // lanes + 1) * lanes + lanes

    # ---- functions

    def _log_sum_exp(self, k: Builder, values: Sequence[Value]) -> Value:
        """log(sum(exp(values)))."""
        maximum = values[0]
        for value in values[1:]:
            maximum = value.max(maximum)
        shift = k.select(maximum == -math.inf, 0.0, maximum)
        total = vector_math.exp(k, values[0] - shift)
        for value in values[1:]:
            total = total + vector_math.exp(k, value - shift)
        return vector_math.log(k, total) + shift

    def _trace_gather_logs(self, module: Module) -> Function:
        """Trace ``gather_logs(x, step, symbols, count, padded, norm, target)``.

        ``target[i]`` is the log-probability of symbol ``symbols[i]``, -infinity for i from ``count`` to ``padded``.
        """
        plan, real, lanes = self.plan, self.real, self.lanes
        with module.function(
            "gather_logs", x=plan.dtype, step=None, symbols="i64", count=None, padded=None, norm=real, target=real
        ) as (k, (x, step, symbols, count, padded, norm, target), function):  # fmt: skip
            for i in k.range(count):
                target.store(k.convert(x.load(symbols.load(i) * step), real), i)
            log_norm = norm.splat(0, lanes)
            for i in k.range(0, padded, lanes):
                value = target.load(i, lanes)
                if plan.inputs == "probs":
                    value = vector_math.log(k, value)
                elif plan.inputs == "logits":
                    value = value - log_norm
                target.store(k.select(k.mask(count - i, lanes), value, -math.inf), i)
        return function

    def _trace_step_alpha(self, module: Module) -> Function:
        """Trace ``step_alpha(labels, blanks, skips, logs, pair, next_labels, next_blanks, padded, maximum)``.

        A row of alpha from the one before. ``logs`` are the log-probabilities of the labels; ``pair``: that of the
        blank, and what is subtracted from all states; the greatest state is stored to ``maximum``.
        """
        real, lanes = self.real, self.lanes
        rows = ("labels", "blanks", "skips", "logs", "pair", "next_labels", "next_blanks")
        parameters: dict[str, str | None] = {**dict.fromkeys(rows, real), "padded": None, "maximum": real}
        with module.function("step_alpha", **parameters) as (k, given, function):
            labels, blanks, skips, logs, pair, next_labels, next_blanks, padded, maximum = given
            log_blank, shift = pair.splat(0, lanes), pair.splat(1, lanes)
            greatest = k.register(k.constant(-math.inf, real, lanes))
            for i in k.range(0, padded, lanes):
                own, before = labels.load(i, lanes), labels.load(i - 1, lanes)
                between = blanks.load(i, lanes)
                label = self._log_sum_exp(k, [own, between, before + skips.load(i, lanes)]) + (
                    logs.load(i, lanes) - shift
                )
                blank = self._log_sum_exp(k, [between, before]) + (log_blank - shift)
                next_labels.store(label, i)
                next_blanks.store(blank, i)
                greatest.set(label.max(blank.max(greatest.get())))
            maximum.store(k.reduce(greatest.get(), "max"))
        return function

    def _trace_step_beta(self, module: Module) -> Function:
        """Trace ``step_beta`` with the parameters below.

        A row of beta from the one after it, to which the logarithms of its own time were added; alpha + beta are
        stored to ``joint_labels`` and ``joint_blanks``, and the greatest of these to ``maximum``.
        """
        real, lanes = self.real, self.lanes
        rows = (
            "labels", "blanks", "skips", "alpha_labels", "alpha_blanks", "next_labels", "next_blanks", "joint_labels",
            "joint_blanks",
        )  # fmt: skip
        parameters: dict[str, str | None] = {**dict.fromkeys(rows, real), "padded": None, "maximum": real}
        with module.function("step_beta", **parameters) as (k, given, function):
            labels, blanks, skips, alpha_labels, alpha_blanks, next_labels, next_blanks, *others = given
            joint_labels, joint_blanks, padded, maximum = others
            greatest = k.register(k.constant(-math.inf, real, lanes))
            for i in k.range(0, padded, lanes):
                own, after = labels.load(i, lanes), labels.load(i + 1, lanes)
                label = self._log_sum_exp(
                    k, [own, blanks.load(i + 1, lanes), after + skips.load(i + 1, lanes)]
                )
                blank = self._log_sum_exp(k, [blanks.load(i, lanes), own])
                next_labels.store(label, i)
                next_blanks.store(blank, i)
                label, blank = label + alpha_labels.load(i, lanes), blank + alpha_blanks.load(i, lanes)
                joint_labels.store(label, i)
                joint_blanks.store(blank, i)
                greatest.set(label.max(blank.max(greatest.get())))
            maximum.store(k.reduce(greatest.get(), "max"))
        return function

    # ---- a sequence

    def _lengths(self, k: Builder, n: Value) -> tuple[Value, Value]:
        """Times and labels of sequence n, within their limits."""
        limited = []
        for name, limit in (("input_lengths", "times"), ("target_lengths", "longest")):
            value = k.convert(self.pointers[name].load(n * self.slots[f"{name}0"]), "i64")
            limited.append(value.max(0).min(self.slots[limit]))
        return limited[0], limited[1]

    def _sequence(self, k: Builder, n: Value) -> None:
        slots, lanes, real = self.slots, self.lanes, self.real
        times, count = self._lengths(k, n)
        padded = (count + lanes) // lanes * lanes  # one blank more than labels
        for row in self.fixed_rows:
            for i in k.range(-lanes, padded + lanes, lanes):
                row.store(k.constant(-math.inf, real, lanes), i)
        is_valid = self._read_labels(k, n, count)
        self._compute_log_norms(k, n, times)
        blank_and_shift, maximum = k.local(real, 2), k.local(real, 1)
        sequence = _Sequence(n, times, count, padded, blank_and_shift, maximum)
        total = k.register(k.constant(0.0, "f64"))
        maximum.store(k.constant(0.0, real))
        loss = k.register(k.select(count > 0, k.constant(math.inf, "f64"), 0.0))
        with k.when(times > 0):
            self._compute_alphas(k, sequence, total)
            last = self._alpha_rows(k, times - 1)
            ends = [last[0].load(count - 1), last[1].load(count)]
            loss.set(-(k.convert(self._log_sum_exp(k, ends), "f64") + total.get()))
        loss.set(k.select(is_valid.get() > 0, loss.get(), math.nan))
        if self.plan.direction == "bwd":
            self._gradient(k, sequence, loss.get())
            return
        value = loss.get()
        if self.plan.zero_infinity:
            value = k.select(value == math.inf, 0.0, value)
        if not self.plan.is_reduced:
            target = self.pointers["loss"] + n * slots["loss0"]
            self.scale.store(target, 1, k.convert(value, real))
            return
        if self.plan.reduction == "mean":
            value = value / (k.convert(count.max(1), "f64") * k.convert(slots["batch"], "f64"))
        self.arguments.workspace("f64").store(value, n)

    def _read_labels(self, k: Builder, n: Value, count: Value) -> Register:
        """Load the labels, and mark those that differ from the one before; 0 if one is missing or no symbol."""
        slots = self.slots
        source, step = self.pointers["targets"], slots["targets1" if self.plan.is_padded else "targets0"]
        first = k.register(k.integer(0))
        is_valid = k.register(k.integer(1))
        if self.plan.is_padded:
            source = source + n * slots["targets0"]
        else:
            for earlier in k.range(n):
                first += self._lengths(k, earlier)[1]
            with k.when((count > 0) & (first.get() + count > slots["labels"])):
                is_valid.set(k.integer(0))
        skips = self.fixed_rows[1]
        previous = k.register(k.integer(-1))
        for i in k.range(count):
            symbol = k.register(k.integer(0))
            with k.when(is_valid.get() > 0):
                symbol.set(k.convert(source.load((first.get() + i) * step), "i64"))
            with k.when((symbol.get() < 0) | (symbol.get() >= slots["symbols"])):
                is_valid.set(k.integer(0))
                symbol.set(k.integer(0))
            self.label_symbols.store(symbol.get(), i)
            differs = symbol.get() != previous.get()
            skips.store(k.select(differs & (i > 0), k.constant(0.0, self.real), -math.inf), i)
            previous.set(symbol.get())
        return is_valid

    def _compute_log_norms(self, k: Builder, n: Value, times: Value) -> None:
        """The logarithm of the sum of exponentials of each time, where x is not normalized; else 0."""
        slots, lanes, real = self.slots, self.lanes, self.real
        if self.plan.inputs != "logits":
            for t in k.range(times):
                self.log_norms.store(k.constant(0.0, real), t)
            return
        step: int | Value = 1 if self.plan.is_contiguous else slots["x2"]
        for t in k.range(times):
            x = self._at_time("x", n, t)
            greatest = k.register(k.constant(-math.inf, real, lanes))
            for _, keep, value in self._symbols(k, x, step):
                greatest.set(k.select(keep, value, -math.inf).max(greatest.get()))
            maximum = k.reduce(greatest.get(), "max")
            shift = k.splat(k.select(maximum == -math.inf, 0.0, maximum), lanes)
            total = k.register(k.constant(0.0, real, lanes))
            for _, keep, value in self._symbols(k, x, step):
                total += k.select(keep, vector_math.exp(k, value - shift), 0.0)
            norm = vector_math.log(k, k.reduce(total.get())) + k.extract(shift, 0)
            self.log_norms.store(norm, t)

    def _at_time(self, name: str, n: Value, t: Value) -> Pointer:
        """The symbols of x or dx of a sequence at a time."""
        pointer: Pointer = self.pointers[name]
        return pointer + (t * self.slots[f"{name}0"] + n * self.slots[f"{name}1"])

    def _symbols(self, k: Builder, x: Pointer, step: int | Value) -> Iterator[tuple[Value, Value, Value]]:
        """Loops over the vectors of x at a time: the first symbol, the mask, and the values."""
        lanes = self.lanes
        for a in k.range(0, self.slots["symbols"], lanes):
            keep = k.mask(self.slots["symbols"] - a, lanes)
            yield a, keep, k.convert((x + k.integer(step) * a).load_strided(0, step, lanes, keep), self.real)

    def _alpha_rows(self, k: Builder, t: Value) -> tuple[Pointer, Pointer]:
        """The rows of alpha at a time."""
        number = t if self.plan.direction == "bwd" else t % 2
        start = self.alphas + number * (self.slots["row"] * 2)
        return start, start + self.slots["row"]

    def _log_probabilities(self, k: Builder, sequence: _Sequence, t: Value) -> None:
        """The logarithms of a time: of the labels to their row, of the blank to ``blank_and_shift``."""
        slots = self.slots
        x = self._at_time("x", sequence.n, t)
        step = k.integer(1) if self.plan.is_contiguous else slots["x2"]
        k.call(
            self.gather_logs, x, step, self.label_symbols, sequence.count, sequence.padded, self.log_norms + t,
            self.fixed_rows[0],
        )  # fmt: skip
        log_blank = k.convert(x.load(slots["blank"] * step), self.real)
        if self.plan.inputs == "probs":
            log_blank = vector_math.log(k, log_blank)
        elif self.plan.inputs == "logits":
            log_blank = log_blank - self.log_norms.load(t)
        sequence.blank_and_shift.store(log_blank, 0)

    def _compute_alphas(self, k: Builder, sequence: _Sequence, total: Register) -> None:
        """All rows of alpha; the sum of what was subtracted from the last one is added to ``total``."""
        real, lanes, padded = self.real, self.lanes, sequence.padded
        pair, maximum = sequence.blank_and_shift, sequence.maximum
        log_labels, skips = self.fixed_rows[:2]
        minus_infinity = k.constant(-math.inf, real, lanes)
        self._log_probabilities(k, sequence, k.integer(0))
        labels, blanks = self._alpha_rows(k, k.integer(0))
        for i in k.range(-lanes, padded + lanes, lanes):
            labels.store(minus_infinity, i)
            blanks.store(minus_infinity, i)
        labels.store(log_labels.load(0), 0)  # -infinity if there is no label
        blanks.store(pair.load(0), 0)
        first = log_labels.load(0).max(pair.load(0))
        maximum.store(first)
        for t in k.range(1, sequence.times):
            self._log_probabilities(k, sequence, t)
            previous, current = self._alpha_rows(k, t - 1), self._alpha_rows(k, t)
            for row in current:
                row.store(minus_infinity, -lanes)
                row.store(minus_infinity, padded)
            shift = maximum.load(0)
            shift = k.select(shift == -math.inf, 0.0, shift)
            pair.store(shift, 1)
            total += k.convert(shift, "f64")
            k.call(self.step_alpha, *previous, skips, log_labels, pair, *current, padded, maximum)

    # ---- the gradient

    def _gradient(self, k: Builder, sequence: _Sequence, loss: Value) -> None:
        slots, real, lanes, plan = self.slots, self.real, self.lanes, self.plan
        n, times, count, padded = sequence.n, sequence.times, sequence.count, sequence.padded
        dloss = k.convert(self.pointers["dloss"].load(0 if plan.is_reduced else n * slots["dloss0"]), real)
        if plan.reduction == "mean":
            dloss = dloss / (k.convert(count.max(1), real) * k.convert(slots["batch"], real))
        of_infinite = k.constant(0.0 if plan.zero_infinity else math.nan, real)
        dloss = k.select(loss == math.inf, of_infinite, dloss)
        dloss = k.select(loss != loss, k.constant(math.nan, real), dloss)
        log_labels, skips = self.fixed_rows[:2]
        minus_infinity = k.constant(-math.inf, real, lanes)
        for a in k.range(0, slots["symbols"], lanes):
            self.posteriors.store(k.constant(0.0, real, lanes), a)
        labels, blanks, next_labels, next_blanks, *joint = self.fixed_rows[2:]
        for number in k.range(times):
            t = times - 1 - number
            alpha = self._alpha_rows(k, t)
            with k.when(number == 0):
                self._last_beta(k, sequence, (next_labels, next_blanks), alpha, joint)
            with k.when(number > 0):
                k.call(
                    self.step_beta, labels, blanks, skips, *alpha, next_labels, next_blanks, *joint, padded,
                    sequence.maximum,
                )  # fmt: skip
            self._log_probabilities(k, sequence, t)
            self._compute_posteriors(k, sequence, joint)
            self._store_gradient(k, n, t, dloss)
            for i in k.range(count):
                self.posteriors.store(k.constant(0.0, real), self.label_symbols.load(i))
            self.posteriors.store(k.constant(0.0, real), slots["blank"])
            # beta and the logarithms of this time, relative to the greatest, for the time before
            log_blank = k.splat(sequence.blank_and_shift.load(0), lanes)
            greatest = k.register(minus_infinity)
            for i in k.range(0, padded, lanes):
                label = next_labels.load(i, lanes) + log_labels.load(i, lanes)
                blank = next_blanks.load(i, lanes) + log_blank
                labels.store(label, i)
                blanks.store(blank, i)
                greatest.set(label.max(blank.max(greatest.get())))
            shift = k.reduce(greatest.get(), "max")
            shift = k.splat(k.select(shift == -math.inf, 0.0, shift), lanes)
            for i in k.range(0, padded, lanes):
                labels.store(labels.load(i, lanes) - shift, i)
                blanks.store(blanks.load(i, lanes) - shift, i)
        for t in k.range(times, slots["times"]):
            self._store_zeros(k, n, t)

    def _last_beta(
        self, k: Builder, sequence: _Sequence, beta: Sequence[Pointer], alpha: Sequence[Pointer],
        joint: Sequence[Pointer],
    ) -> None:  # fmt: skip
        """Beta at the last time, and alpha + beta."""
        real, lanes = self.real, self.lanes
        (labels, blanks), (alpha_labels, alpha_blanks), (joint_labels, joint_blanks) = beta, alpha, joint
        blanks.store(k.constant(0.0, real), sequence.count)
        with k.when(sequence.count > 0):
            labels.store(k.constant(0.0, real), sequence.count - 1)
        greatest = k.register(k.constant(-math.inf, real, lanes))
        for i in k.range(0, sequence.padded, lanes):
            label = labels.load(i, lanes) + alpha_labels.load(i, lanes)
            blank = blanks.load(i, lanes) + alpha_blanks.load(i, lanes)
            joint_labels.store(label, i)
            joint_blanks.store(blank, i)
            greatest.set(label.max(blank.max(greatest.get())))
        sequence.maximum.store(k.reduce(greatest.get(), "max"))

    def _compute_posteriors(self, k: Builder, sequence: _Sequence, joint: Sequence[Pointer]) -> None:
        """The posteriors of the symbols: exp(alpha + beta) over its sum."""
        count, real, lanes = sequence.count, self.real, self.lanes
        joint_labels, joint_blanks = joint
        greatest = sequence.maximum.load(0)
        shift = k.splat(k.select(greatest == -math.inf, 0.0, greatest), lanes)
        label_sum, blank_sum = (k.register(k.constant(0.0, real, lanes)) for _ in range(2))
        for i in k.range(0, sequence.padded, lanes):
            label = vector_math.exp(k, joint_labels.load(i, lanes) - shift)
            joint_labels.store(label, i)
            label_sum += label
            blank_sum += vector_math.exp(k, joint_blanks.load(i, lanes) - shift)
        blanks = k.reduce(blank_sum.get())
        total = k.reduce(label_sum.get()) + blanks
        inverse = k.select(total == 0.0, k.constant(0.0, real), 1.0 / total)
        for i in k.range(count):
            symbol = self.label_symbols.load(i)
            self.posteriors.store(self.posteriors.load(symbol) + joint_labels.load(i) * inverse, symbol)
        blank = self.slots["blank"]
        self.posteriors.store(self.posteriors.load(blank) + blanks * inverse, blank)

    def _store_gradient(self, k: Builder, n: Value, t: Value, dloss: Value) -> None:
        """dx of a time."""
        slots, lanes, plan = self.slots, self.lanes, self.plan
        x, dx = self._at_time("x", n, t), self._at_time("dx", n, t)
        step_x: int | Value = 1 if plan.is_contiguous else slots["x2"]
        step: int | Value = 1 if plan.is_contiguous else slots["dx2"]
        norm, factor = k.splat(self.log_norms.load(t), lanes), k.splat(dloss, lanes)
        for a, keep, value in self._symbols(k, x, step_x):
            probability = value if plan.inputs == "probs" else vector_math.exp(k, value - norm)
            result = (probability - self.posteriors.load(a, lanes)) * factor
            self.scale.store(dx + k.integer(step) * a, step, result, keep)

    def _store_zeros(self, k: Builder, n: Value, t: Value) -> None:
        slots, lanes = self.slots, self.lanes
        dx = self._at_time("dx", n, t)
        step: int | Value = 1 if self.plan.is_contiguous else slots["dx2"]
        for a in k.range(0, slots["symbols"], lanes):
            zero = k.constant(0.0, self.real, lanes)
            self.scale.store(dx + k.integer(step) * a, step, zero, k.mask(slots["symbols"] - a, lanes))

    def _total(self, k: Builder) -> None:
        """The sum of all losses, in order."""
        losses = self.arguments.workspace("f64")
        total = k.register(k.constant(0.0, "f64"))
        for n in k.range(self.slots["batch"]):
            total += losses.load(n)
        self.scale.store(self.pointers["loss"], 1, k.convert(total.get(), self.real))


def trace(module: Module, plan: CtcPlan, slots: Slots) -> None:
    """Trace the task "sequence" and, where losses are added up, "total"."""
    _CtcCode(module, plan, slots)
