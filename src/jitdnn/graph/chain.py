"""`jd.chain`: a function of arrays that calls this package, prepared once for each kind of inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitdnn import log
from jitdnn.arguments import integer, optional, shown
from jitdnn.errors import InvalidType
from jitdnn.graph.engine import Engine
from jitdnn.graph.explain import explained
from jitdnn.graph.operand import Operand, Untraceable
from jitdnn.graph.options import engine_options
from jitdnn.graph.substitution import Substitution
from jitdnn.graph.taken import OnGpu, taken
from jitdnn.graph.tracer import Tracer, operands_in
from jitdnn.locks import lock
from jitdnn.retention import Recent
from jitdnn.tensor import dtype_name

_MOST_KINDS = 16
_THREADS = optional(integer("threads", least=1))


def chain(function: Callable[..., Any], *, threads: int | None = None) -> Chain:
    """Return a function that computes what `function` does, as one list of launches.

        def block(x, r):
            return jd.relu(jd.conv(x, w, padding=1) + r)

        fast = jd.chain(block)
        y = fast(x, r)

    `function` takes arrays and returns one, or a tuple, list or dictionary of them; between the two it calls functions
    of this package and NumPy's that move elements, and adds, subtracts, multiplies and divides arrays of float32 or
    float64. For each kind of arguments (shapes and dtypes of the arrays, the values of all else) it is called with
    stand-ins that have no elements. What it does to them is folded, fused, given places in one piece of memory and
    noted as launches, and further calls run those by one call of generated code. Arrays that it reads from outside, as
    `w` here, are taken as they are then: they may become part of filters, and changes of their elements go unseen; hand
    over what changes as an argument. Arguments that are arrays are NumPy's, or all on one GPU, where the function is
    computed then, by one CUDA graph. Results are in memory of their own, of the kind of the first such array.

    What cannot be traced (a branch on elements, an array of another library in host memory, arrays in several places,
    `out`, jitdnn's functions reached as attributes of an object) is called as it is, and the logger `jitdnn` says why,
    once. `threads`: how many its kernels use, instead of the setting.

    Raises InvalidType for what cannot be called, InvalidArgument for a number of threads that is none; what is returned
    raises as `function` does. Results differ from those of `function` by rounding where kernels are fused. Threads may
    share it.
    """
    if not callable(function):
        raise InvalidType(f"function is {shown(function)}: it must be a function of arrays")
    return Chain(function, _THREADS.settled(threads))


@dataclass
class _Kind:
    """What was made of a call: an engine and how its results are arranged; without one the reason."""

    engine: Engine | None = None
    arranged: Callable[[Sequence[Any]], Any] | None = None
    reason: str = ""


class Chain:
    """What `jd.chain` returns: called as the function is."""

    def __init__(self, function: Callable[..., Any], threads: int | None = None) -> None:
        self._function = function
        self._settings: dict[str, Any] = {} if threads is None else {"threads": threads}
        self._kinds: Recent[Any, _Kind] = Recent(_MOST_KINDS)
        self._lock = lock()
        functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<chain {self._name}>"

    @property
    def _name(self) -> str:
        return str(getattr(self._function, "__qualname__", type(self._function).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns for these arguments."""
        arrays, key = _split(args, kwargs)
        if key is not None:
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._prepare(key, args, kwargs, arrays)
            if kind.engine is not None and kind.arranged is not None:
                return kind.arranged(kind.engine.run(arrays))
        elif not arrays:
            self._tell("an argument is no array that is taken, and cannot tell one call from another")
        return self._function(*args, **kwargs)

    def explain(self, *args: Any, measure: bool = True, **kwargs: Any) -> str:
        """What runs for such arguments, as text: a row for each kernel with its algorithm and its share of the time,
        and what was not fused and why; or why the function is called as it is. With `measure` times are the least of a
        few runs, else estimates."""
        arrays, key = _split(args, kwargs)
        if key is None:
            return "called as it is: an argument cannot tell one call from another"
        kind = self._kinds.get(key) or self._prepare(key, args, kwargs, arrays)
        if kind.engine is None:
            return f"called as it is: {kind.reason}"
        return explained(kind.engine, arrays, measure)

    def _prepare(self, key: Hashable, args: Any, kwargs: Any, arrays: dict[str, Any]) -> _Kind:
        with self._lock:
            found = self._kinds.recall(key)
            if found is None:
                found = self._made(args, kwargs, arrays)
                self._kinds.put(key, found)
                if found.engine is None:
                    self._tell(found.reason)
            return found

    def _made(self, args: Any, kwargs: Any, arrays: dict[str, Any]) -> _Kind:
        try:
            for name, array in arrays.items():
                if dtype_name(array.dtype) is None:
                    raise Untraceable(f"argument {name} is of type {array.dtype}")
            tracer = Tracer()
            stand_ins = {name: tracer.input(array.shape, array.dtype) for name, array in arrays.items()}
            call = _call(Substitution().function(self._function), args, kwargs, arrays)
            leaves, arranged = _taken_apart(call(stand_ins))
            if not any(isinstance(leaf, Operand) for leaf in leaves):
                raise Untraceable("no result depends on an argument")
            names = tuple(f"result {number}" for number in range(len(leaves)))
            step = _Step(self._name, tuple(arrays), names, call, _call(self._function, args, kwargs, arrays))
            engine = Engine([step], tuple(arrays), names, {}, **self._settings, **_where(arrays))
            prepared = engine.prepared(arrays)
            if prepared.reason or prepared.calls or prepared.rest:
                raise Untraceable(prepared.reason or next(iter(prepared.calls.values()), "elements decide"))
        except Exception as error:  # whatever it is, the call without stand-ins says it better
            return _Kind(reason=str(error) or type(error).__name__)
        return _Kind(engine, arranged)

    def _tell(self, reason: str) -> None:
        log.fallback_once(
            ("chain", self._name, reason),
            f"{self._name} is called as it is, without a list of launches: {reason}",
        )


@dataclass(frozen=True)
class _Step:
    """The function as the one step of an engine; `whole` is the function as it is."""

    title: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    call: Callable[[Mapping[str, Any]], Any]
    whole: Callable[[Mapping[str, Any]], Any]
    is_pure: bool = True

    def compute(self, values: Mapping[str, Any], bodies: Any = None) -> tuple[Any, ...]:
        given = {name: values[name] for name in self.reads}
        traces = any(True for _ in operands_in(given.values()))
        return tuple(_taken_apart((self.call if traces else self.whole)(given))[0])

    def kinds(self, values: Mapping[str, Any]) -> None:
        return None


def _split(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Hashable | None]:
    """The arrays among arguments by name, and what tells this kind of call; None where that cannot be told."""
    arrays: dict[str, Any] = {}
    parts: list[Any] = []
    for name, value in (*((f"argument {n}", value) for n, value in enumerate(args, 1)), *kwargs.items()):
        value = taken(value, name)
        if isinstance(value, OnGpu):
            arrays[name] = value
            parts.append((name, value.shape, value.dtype, value.array.device_id))
        elif type(value) is np.ndarray:
            arrays[name] = value
            parts.append((name, value.shape, value.dtype))
        elif value is None or isinstance(value, (bool, int, float, str, tuple, np.dtype)):
            # 0.0 and -0.0 are equal and not the same, and a NaN equals none
            parts.append((name, type(value), repr(value) if isinstance(value, float) else value))
        else:
            return {}, None
    if len({_device_of(array) for array in arrays.values()}) > 1:
        return {}, None
    key = tuple(parts)
    try:
        hash(key)
    except TypeError:
        return {}, None
    return arrays, key


def _device_of(array: Any) -> Any:
    return array.array.device_id if isinstance(array, OnGpu) else None


def _where(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an engine for arrays that are in one place."""
    place = next(map(_device_of, arrays.values()), None)
    return {} if place is None else engine_options("{}:{}".format(*place))


def _call(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], arrays: Collection[str]
) -> Callable[[Mapping[str, Any]], Any]:
    """The function of the arrays by name; what is none of them is as it was given."""
    fixed = [None if f"argument {n}" in arrays else value for n, value in enumerate(args, 1)]
    named = {name: None if name in arrays else value for name, value in kwargs.items()}

    def call(arrays: Mapping[str, Any]) -> Any:
        given = [arrays.get(f"argument {n}", value) for n, value in enumerate(fixed, 1)]
        return function(*given, **{name: arrays.get(name, value) for name, value in named.items()})

    return call


def _taken_apart(result: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The arrays of a result, and what arranges others so."""
    if isinstance(result, (Operand, np.ndarray)):
        return [result], lambda made: made[0]
    if isinstance(result, dict) and all(isinstance(v, (Operand, np.ndarray)) for v in result.values()):
        names = list(result)
        return list(result.values()), lambda made: dict(zip(names, made, strict=True))
    if type(result) in (tuple, list) and all(isinstance(v, (Operand, np.ndarray)) for v in result):
        kind = type(result)
        return list(result), kind
    raise Untraceable(
        f"it returns {shown(result)}: an array is needed, or a tuple, list or dictionary of them"
    )
