"""Steps of a front made ready for each kind of inputs, and run without Python for each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from jitdnn.errors import DeviceError, JitdnnError
from jitdnn.graph.handle import EngineHandle
from jitdnn.graph.ir import AnyArray, Graph
from jitdnn.graph.lower.builder import Builder, Shared
from jitdnn.graph.operand import NeedsValue, Operand, Untraceable
from jitdnn.graph.originals import Originals, arrays_in
from jitdnn.graph.passes import Memo, optimized
from jitdnn.graph.passes.attention import with_attention
from jitdnn.graph.plan import Plan, Unforeseen
from jitdnn.graph.taken import OnGpu, require_on, taken
from jitdnn.graph.tracer import Bodies, Rest, Step, Tracer, operands_in
from jitdnn.locks import lock
from jitdnn.recorders import NotRecordable
from jitdnn.retention import Recent
from jitdnn.tensor import dtype_name
from jitdnn.tensor.array import address_of

MOST_PLANS = 16
"""Kinds of inputs for which an engine keeps a plan; what was not used for longest is made again."""
_MOST_KEYED = 16  # elements of an input of integers whose values may be part of a kind
_MOST_VALUES = 64  # different values, after which they are not


@dataclass
class Prepared:
    """What runs for one kind of inputs.

    `plan` is None where nothing is left to run, or where all is run node by node for `reason`. `given`: which inputs
    the plan takes. `results`: for each output its number among those of the plan, or what is known of it. `rest` is
    what follows when the plan has run.
    """

    plan: Plan | None
    given: tuple[str, ...] = ()
    results: tuple[Any, ...] = ()
    graph: Graph | None = None
    calls: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    rest: Rest | None = None
    names: tuple[str, ...] = ()
    after: Engine | None = None


@dataclass(frozen=True)
class Part:
    """A stretch of a run: the engine that runs it, what it prepared, and the inputs."""

    engine: Engine
    prepared: Prepared
    inputs: Mapping[str, Any]


class _Place(int):
    """The number of an output of a plan."""


class Engine:
    """A front's steps as a function of arrays, prepared at the first call of each kind of inputs.

    `steps` in order, `inputs` and `outputs` by name; `constants` have the values that are known. `threads` and other
    settings hold for its kernels (None: those in force when a plan is made); `device`: a GPU, by its name, `cuda:0`.
    May be shared by threads.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        inputs: Sequence[str],
        outputs: Sequence[str],
        constants: Mapping[str, Any],
        *,
        passes: Callable[[Graph, Memo, bool], Graph] = optimized,
        shared: Shared | None = None,
        **settings: Any,
    ) -> None:
        self.steps, self.inputs, self.outputs = tuple(steps), tuple(inputs), tuple(outputs)
        self._constants = dict(constants)
        self._passes = passes
        self._settings = settings
        self._handle = EngineHandle(**settings)
        self._gpu = self._handle.on_gpu
        self._shared = shared or new_shared(self._gpu is not None)
        self._prepared: Recent[Any, Prepared] = Recent(MOST_PLANS)
        self._keyed: set[str] = set()  # inputs whose values are part of a kind
        self._values: set[Any] = set()
        self._bodies: dict[int, tuple[Any, Engine]] = {}  # with the graph, whose identity is the key
        self._lock = lock()
        self._folded = False
        self._is_lone = False  # made for one step of constants
        self._unforeseen: set[str] = set()  # steps whose results are of other kinds than was inferred

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs for named inputs: arrays, or sequences of such.

        Results are in memory of their own: of the host, or, where an input is on the engine's GPU, there and by the
        library of the first that is. Raises what the front's functions raise, and DeviceError for an input elsewhere.
        """
        inputs, like = self._taken(inputs)
        engine = self
        while True:
            found = engine._run(inputs, like)
            if isinstance(found, list):
                return found if like is None else [self._handed_out(one, like) for one in found]
            engine, inputs = found

    def _taken(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], OnGpu | None]:
        """The inputs with arrays on a GPU as the engine takes them, and the first of those."""
        like = None
        if all(type(value) is np.ndarray for value in inputs.values()):
            return inputs, like
        found = {name: taken(value, name) for name, value in inputs.items()}
        for name, value in found.items():
            if isinstance(value, OnGpu):
                require_on(value, None if self._gpu is None else self._gpu.device_id, name)
                like = like or value
        return found, like

    def _handed_out(self, result: Any, like: OnGpu) -> Any:
        """A result of the host by the library of an array on the GPU, and there."""
        if not isinstance(result, np.ndarray):
            return result
        from jitdnn.graph.gpu_plan import on_device

        return on_device(result, like, self._handle)

    def _fetched(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs in the host's memory."""
        return {n: v.numpy() if isinstance(v, OnGpu) else v for n, v in inputs.items()}

    def _plan(self, graph: Graph) -> Plan:
        if self._gpu is None:
            return Plan(graph, Builder(graph, self._shared, self._handle))
        from jitdnn.graph.gpu_plan import GpuPlan
        from jitdnn.graph.lower.gpu import GpuBuilder

        return GpuPlan(graph, GpuBuilder(graph, self._shared, self._handle))

    def parts(self, inputs: Mapping[str, Any]) -> Iterator[Part]:
        """What runs for inputs one after the other: one part, or more where a result whose shape nobody can tell cuts
        the steps. Each but the last is run when the next one is asked for, since that is made of its results."""
        engine = self
        inputs, _ = self._taken(inputs)
        while True:
            prepared = engine.prepared(inputs)
            if prepared.rest is None:
                yield Part(engine, prepared, inputs)
                return
            found = engine._run(inputs)
            if isinstance(found, list):
                raise AssertionError("a part that another follows gave the outputs")
            if found[0] is not engine:  # else a kind was foretold wrongly, and all is made anew
                yield Part(engine, prepared, inputs)
            engine, inputs = found

    def _run(
        self, inputs: Mapping[str, Any], like: OnGpu | None = None
    ) -> list[Any] | tuple[Engine, dict[str, Any]]:
        """The outputs, or the engine for what follows with its inputs. `like`: an array of whose kind and where the
        plan's are to be if nothing follows."""
        prepared = self.prepared(inputs)
        if prepared.reason:
            return self._by_step(inputs)
        made: list[Any] = []
        if prepared.plan is not None:
            try:
                where: dict[str, Any] = {} if like is None or prepared.rest is not None else {"like": like}
                made = prepared.plan.run(self.arrays(prepared, inputs), self.run_body, **where)
            except Unforeseen as error:
                with self._lock:
                    self._unforeseen.add(str(error))
                    self._prepared.clear()
                return self, dict(inputs)
        results = [made[one] if isinstance(one, _Place) else one for one in prepared.results]
        if prepared.rest is None or prepared.after is None:
            known = zip(results, prepared.results, strict=True)
            return [one if isinstance(place, _Place) else _own(one) for one, place in known]
        values = dict(zip(prepared.names, results, strict=True))
        self._compute(prepared.rest.step, values)
        return prepared.after, {name: values[name] for name in prepared.after.inputs}

    def host_times(self, prepared: Prepared, inputs: Mapping[str, Any]) -> list[float]:
        """Seconds of the steps that the host runs behind the plan or, where there is none, in its place."""
        if prepared.reason:
            values, steps = {**self._constants, **self._fetched(inputs)}, self.steps
        elif prepared.rest is not None:
            made = (
                []
                if prepared.plan is None
                else prepared.plan.run(self.arrays(prepared, inputs), self.run_body)
            )
            results = [made[one] if isinstance(one, _Place) else one for one in prepared.results]
            values, steps = dict(zip(prepared.names, results, strict=True)), (prepared.rest.step,)
        else:
            return []
        found = []
        for step in steps:
            begun = time.perf_counter()
            self._compute(step, values)
            found.append(time.perf_counter() - begun)
        return found

    def _by_step(self, inputs: Mapping[str, Any]) -> list[Any]:
        values = {**self._constants, **self._fetched(inputs)}
        for step in self.steps:
            self._compute(step, values)
        return [_own(values[name]) for name in self.outputs]

    def _compute(self, step: Step, values: dict[str, Any]) -> None:
        for name, result in zip(step.makes, step.compute(values, self.run_body), strict=False):
            if name:
                values[name] = result

    def arrays(self, prepared: Prepared, inputs: Mapping[str, Any]) -> list[AnyArray]:
        """The inputs that a plan takes, each dense in memory."""
        return [_dense(inputs[name]) for name in prepared.given]

    def prepared(self, inputs: Mapping[str, Any]) -> Prepared:
        """What runs for inputs of these kinds, made now where it is not there."""
        key = self._key(inputs)
        found = self._prepared.get(key)
        if found is not None:
            return found
        with self._lock:
            key = self._key(inputs)
            found = self._prepared.recall(key)
            if found is None:
                with self._shared.originals.making():
                    found = self._make(inputs)
                    self._keep_constants(found)
                key = self._key(inputs)
                self._prepared.put(key, found)
            return found

    def _keep_constants(self, found: Prepared) -> None:
        """Say which constants runs read beside those that launches do."""
        originals = self._shared.originals
        if found.reason or found.rest is not None:
            originals.stay()  # the host's functions may read any
        originals.read(address_of(array) for array in arrays_in(list(found.results)))

    def _key(self, inputs: Mapping[str, Any]) -> Any:
        parts: list[Any] = [self._handle.settings.serial]
        for name in self.inputs:
            value = inputs.get(name)
            if type(value) is np.ndarray:
                parts.append(value.shape)
                parts.append(value.dtype)
                if name in self._keyed:
                    parts.append(value.tobytes())
            elif isinstance(value, OnGpu):
                parts += [value.shape, value.dtype]
                if name in self._keyed:
                    parts.append(value.numpy().tobytes())
            else:
                parts.append(_kind(value))
        return tuple(parts)

    def _make(self, inputs: Mapping[str, Any]) -> Prepared:
        self._fold()
        while True:
            try:
                return self._traced(inputs)
            except _Again:
                continue
            except (Untraceable, NotRecordable) as error:
                return Prepared(None, reason=str(error) or type(error).__name__)

    def _fold(self) -> None:
        """Compute once, for plans of all kinds, what depends on constants alone."""
        if self._folded:
            return
        left = []
        for step in self.steps:
            if step.is_pure and all(name in self._constants for name in step.reads):
                try:
                    results = self._known(step, self._constants)
                except JitdnnError:
                    left.append(step)  # raises when it is run
                    continue
                for name, result in zip(step.makes, results, strict=False):
                    if name:
                        self._constants[name] = result
                if self._gpu is None:
                    self._shared.originals.add(arrays_in(results), partial(self._computed, step))
            else:
                left.append(step)
        self.steps = tuple(left)
        self._folded = True

    def _computed(self, step: Step) -> list[AnyArray]:
        """The arrays among the results of a step that reads constants alone."""
        return list(arrays_in(step.compute(self._constants, self.run_body)))

    def _known(self, step: Step, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results of a step whose operands are known: by the host, or by the GPU where the host lacks what it takes
        to compile its own kernels."""
        try:
            return step.compute(values, self.run_body)
        except DeviceError:
            read = {name: values[name] for name in step.reads if name in values}
            if (
                self._gpu is None
                or self._is_lone
                or not any(isinstance(v, np.ndarray) for v in read.values())
            ):
                raise
            makes = tuple(name for name in step.makes if name)
            lone = Engine([step], tuple(read), makes, {}, shared=self._shared, **self._settings)
            lone._is_lone = True
            made = dict(zip(makes, lone.run(read), strict=True))
            return tuple(made.get(name) for name in step.makes)

    def _traced(self, inputs: Mapping[str, Any]) -> Prepared:
        has_dot = self._handle.has_dot
        tracer = Tracer(self._shared.memo, self._unforeseen, has_dot, self._known)
        values: dict[str, Any] = dict(self._constants)
        operands: dict[str, Operand] = {}
        for name in self.inputs:
            given = inputs.get(name)
            if (
                isinstance(given, (np.ndarray, OnGpu))
                and name not in self._keyed
                and dtype_name(given.dtype) is not None
            ):
                values[name] = operands[name] = tracer.input(given.shape, given.dtype)
            elif isinstance(given, list) and any(isinstance(one, np.ndarray) for one in given):
                raise Untraceable(f"input {name!r} is a sequence")
            else:
                values[name] = given.numpy() if isinstance(given, OnGpu) else given
        rest = tracer.run(self.steps, values)
        self._ask(tracer, operands, inputs)
        if rest is None:
            names = self.outputs
        else:
            needed = {n for step in rest.steps for n in step.reads} | set(self.outputs)
            needed -= {n for step in (rest.step, *rest.steps) for n in step.makes}
            names = tuple(dict.fromkeys(n for n in (*rest.step.reads, *sorted(needed)) if n in values))
        leaving: list[Operand] = []
        results: list[Any] = []
        for name in names:
            held = values[name]
            if isinstance(held, Operand):
                results.append(_Place(len(leaving)))
                leaving.append(held)
            elif any(True for _ in operands_in([held])):
                raise Untraceable(f"{name!r} is a sequence of tensors")
            else:
                results.append(held)
        plan, graph, used = None, None, tuple(operands)
        if leaving:
            traced = tracer.graph(tuple(operands.values()), leaving)
            if self._handle.has_attention:
                traced = with_attention(traced)
            graph = self._passes(traced, self._shared.memo, has_dot)
            plan = self._plan(graph)
        if rest is None:
            return Prepared(plan, used, tuple(results), graph, dict(tracer.calls))
        makes = tuple(n for n in rest.step.makes if n)
        later = [n for n in names if isinstance(values[n], Operand)]
        later += [n for n in makes if n not in later]
        wanted = {n for step in rest.steps for n in step.reads} | set(self.outputs)
        after = Engine(
            rest.steps, tuple(n for n in later if n in wanted), self.outputs,
            {n: v for n, v in values.items() if not isinstance(v, Operand) and n not in makes},
            passes=self._passes, shared=self._shared, **self._settings,
        )  # fmt: skip
        return Prepared(plan, used, tuple(results), graph, dict(tracer.calls), "", rest, names, after)

    def _ask(self, tracer: Tracer, operands: Mapping[str, Operand], inputs: Mapping[str, Any]) -> None:
        """Make values of inputs part of the kind where they decide what is computed, unless there are too many."""
        names = {operand.value: name for name, operand in operands.items()}
        wanted = set()
        for value in tracer.asked:
            roots = tracer.roots(value)
            small = [root.size <= _MOST_KEYED and root.dtype.kind in "iub" for root in roots]
            if roots and all(small) and len(self._values) < _MOST_VALUES:
                wanted |= {names[root] for root in roots if root in names}
        if wanted - self._keyed:
            self._keyed |= wanted
            raise _Again
        kept = self._fetched({n: inputs[n] for n in sorted(self._keyed) if n in inputs})
        self._values.add(tuple(np.asarray(value).tobytes() for value in kept.values()))
        if len(self._values) >= _MOST_VALUES and self._keyed:
            self._keyed.clear()
            raise _Again

    def run_body(self, graph: Any, inputs: Sequence[Any], outer: Mapping[str, Any]) -> tuple[Any, ...]:
        """A graph inside of a step, by an engine of its own."""
        _, engine = self._bodies.get(id(graph), (None, None))
        if engine is None:
            names = (*graph.inputs, *sorted(graph.captured))
            known = {n: outer[n] for n in graph.captured if n in self._constants}
            constants = {**known, **graph.constants}
            engine = Engine(
                graph.steps, tuple(n for n in names if n not in constants), graph.outputs, constants,
                passes=self._passes, shared=self._shared, **self._settings,
            )  # fmt: skip
            _, engine = self._bodies.setdefault(id(graph), (graph, engine))
        given = {
            **{n: outer[n] for n in graph.captured if n in outer},
            **dict(zip(graph.inputs, inputs, strict=False)),
        }
        return tuple(engine.run({n: given[n] for n in engine.inputs if n in given}))


def new_shared(on_gpu: bool, originals: Originals | None = None) -> Shared:
    """What engines of one model share."""
    if not on_gpu:
        return Shared(originals)
    from jitdnn.graph.lower.gpu import GpuShared

    return GpuShared(originals)


class _Again(Exception):
    """Values of inputs have become part of the kind."""


def _kind(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_kind(one) for one in value)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return type(value)


def _dense(array: Any) -> Any:
    if isinstance(array, OnGpu):
        return array
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _own(value: Any) -> Any:
    """A result that is a constant of the model, an input or a view of one, in memory of its own."""
    if isinstance(value, list):
        return [_own(one) for one in value]
    return value.copy() if isinstance(value, np.ndarray) else value


__all__ = ["MOST_PLANS", "Bodies", "Engine", "NeedsValue", "Part", "Prepared", "new_shared"]
