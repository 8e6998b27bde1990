"""Computations that there are two ways to run, ours and torch's: which one runs is known for each kind of call.

A kind is told by the shapes, strides and types of the tensors, the other arguments, the options and torch's number of
threads. Its first call prepares both ways and chooses (choice.py); every later one is a look-up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from jitdnn.errors import JitdnnError
from jitdnn.frameworks.torch import choice, variety
from jitdnn.frameworks.torch.choice import Decision, decide
from jitdnn.frameworks.torch.options import canonical, handle_of, is_disabled, parse
from jitdnn.frameworks.torch.progress import part
from jitdnn.handle import Handle
from jitdnn.problems.problem import Problem
from jitdnn.retention import Recent

DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
DEVICES = ("cpu", "cuda")


RESULT = -1
"""In place of the number of an operand: what a kernel writes."""


@dataclass(frozen=True)
class Launched:
    """A way that is nothing but one launch: `run(addresses)` of the operands with these numbers, and of the result that
    `made()` gives; behind a forward one `add(result, bias)`, where the kernel takes none. `handle`: of a processor, on
    which launches can be lists. `settle(addresses)` chooses between algorithms of ours (rivals.py).
    `launch`: of a GPU, what generated code is made of (launch.py)."""

    run: Callable[[Sequence[int]], None]
    handle: Handle | None
    roles: tuple[int, ...]
    made: Callable[[], Tensor]
    add: Callable[[Tensor, Tensor], Any] | None = None
    settle: Callable[[Sequence[int]], None] | None = None
    launch: Any = None


@dataclass(frozen=True)
class Ways:
    """Both ways to run a kind of call: functions of the same operands as the computation itself.

    `problem`: what ours is as a problem of the library, where it is one; `has_bias` whether a bias is added by the same
    kernel. `refusal`: why ours cannot run, in words. `what`: the kind in words where the problem does not tell it.
    `has_several_types`: whether ours take operands of several types. `launched`: ours, where it is one launch alone.
    `is_stock_kept`: whether torch's kernel, too, writes into memory that stays with the process (arena.py).
    """

    ours: Callable[..., Any]
    stock: Callable[..., Any]
    problem: Problem | None = None
    has_bias: bool = False
    refusal: str | None = None
    what: str = ""
    has_several_types: bool = False
    launched: Launched | None = None
    is_stock_kept: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of call after its first one: who runs it, and why. `handle` is None where ours refuses."""

    name: str
    decision: Decision
    run: Callable[..., Any]
    problem: Problem | None = None
    handle: Handle | None = None
    has_bias: bool = False
    launched: Launched | None = None
    is_stock_kept: bool = False


@dataclass(frozen=True)
class Way:
    """Calls by another way than straight to the kernels: `name` tells their times in the store from others.

    `stock` is None for torch's kernel.
    """

    name: str
    ours: Callable[[], Any]
    stock: Callable[[], Any] | None = None


Observer: TypeAlias = Callable[[Kind, tuple[Any, ...]], None]
#: who wants to know of every call: gets its kind and its operands
observers: list[Observer] = []
#: who is told of the calls of a thread instead, by its number, while what it measures is nobody else's business
threads_apart: dict[int, list[Observer]] = {}
#: the kinds of calls that were made, by what tells them apart
known: Recent[tuple[Any, ...], list[Kind | None]] = Recent(16384)
#: those that are decided anew when kernels of ours are compiled
_for_now: Recent[tuple[Any, ...], list[Kind | None]] = Recent(16384)
#: grows whenever all kinds are chosen anew
epoch = 0


class Computation:
    """A function of tensors and other arguments that runs by ours or by torch's kernels.

    `prepare(handle, *operands)` gives the two ways for so many operands of a kind. `weight`: which of them is the
    weight of a layer, whose other operands may be ever others; `torchs(*operands)` is torch's kernel then.
    """

    def __init__(
        self, name: str, prepare: Callable[..., Ways], operands: int, weight: int | None = None,
        torchs: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self._prepare = prepare
        self._operands = operands
        self._weight, self._torchs = weight, torchs

    def _layer(self, options: str, operands: tuple[Any, ...]) -> Hashable:
        """What tells layers apart, and not their calls."""
        if self._weight is None:
            return None
        weight, others = operands[self._weight], operands[self._weight + 1 :]
        rest = tuple(
            tuple(one) if isinstance(one, list) else one for one in others if not isinstance(one, Tensor)
        )
        return (
            self,
            canonical(options),
            torch.get_num_threads(),
            weight.shape,
            weight.dtype,
            weight.device,
            rest,
        )

    def kernel(self, *operands: Any) -> Any:
        """The kernel of an operator whose last argument is the options, which are left out where they are empty."""
        count = self._operands
        return self(operands[count] if len(operands) > count else "", *operands[:count])

    def __call__(self, options: str, *operands: Any) -> Any:
        """Run it; `options` are the text of options.py."""
        (result,) = run_together((self,), options, operands)
        return result

    def problem(self, options: str, operands: tuple[Any, ...]) -> tuple[Problem, bool] | None:
        """What ours compute for operands of this kind, and whether a bias is added by the
        same kernel; None where ours refuse, or run it by no plan."""
        try:
            ways = self._prepare(handle_of(options, operands[0].device.type), *operands)
        except JitdnnError:
            return None
        return None if ways.refusal or ways.problem is None else (ways.problem, ways.has_bias)

    def choose(self, options: str, operands: tuple[Any, ...], way: Way | None = None) -> Kind:
        """Who runs calls of this kind: by stored times, or measured now. Nothing is kept of it but the times.

        `way`: how ours are called and what they are measured beside, where that is not one kernel beside the other.
        """
        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        layer = self._layer(options, operands) if way is None else None
        if (
            self._torchs is not None
            and layer is not None
            and variety.is_full(layer)
            and parse(options).measure != "never"
        ):
            return Kind(self.name, Decision(False, variety.REASON), self._torchs(*operands))
        handle = handle_of(options, tensors[0].device.type)
        ways = self._prepare(handle, *operands)
        reason = ways.refusal or _refusal(tensors, ways.has_several_types)
        if reason is not None:
            return Kind(self.name, Decision(False, f"refused: {reason}"), ways.stock)
        shown = (
            ways.problem if ways.problem is not None and not ways.what else f"{ways.what} {words(operands)}"
        )
        bias = " with a bias" if ways.has_bias else ""
        where = "" if way is None else f" {way.name}"
        text = canonical(options)
        what = f"torch {self.name} {shown}{bias}{where}{' ' if text else ''}{text}"

        def call(function: Callable[..., Any]) -> Callable[[], Any]:
            return lambda: function(*operands)

        ours, stock, how = call(ways.ours), call(ways.stock), parse(options).measure
        if how != "never" and ways.launched is not None and ways.launched.settle is not None:
            ours = _first_then(partial(_settled, ways.launched, operands, ours), ours)
        if way is None and how in ("first", "kernels", "host", "both"):
            how = choice.PARTS  # what the host pays for them whole.py counts, and the program's own steps
        if way is not None:
            ours, stock = _first_then(ours, way.ours), way.stock or stock
        decision = decide(what, handle, tensors[0].device, how, ours, stock, layer)
        run = ways.ours if decision.is_ours else ways.stock
        launched = ways.launched if decision.is_ours else None
        own = at(tensors[0].device, handle)
        kept = ways.is_stock_kept
        return Kind(self.name, decision, run, ways.problem, own, ways.has_bias, launched, kept)


@dataclass(frozen=True)
class Operation:
    """An operator of x, of as many `parameters` (or None) behind it, and of arguments that are no tensors.

    `forward` takes these, and gives a result or several, of which the first is the layer's;
    `keep(ctx, x, result, arguments, *parameters)` keeps tensors of them for the backward pass. `gradient` takes the
    result's gradient, those tensors, and `behind(x, *arguments)`, and gives the gradients of x and the parameters, as
    `derivative(ctx, dy, kept, behind, options)` does, which has gradients itself. `kept(ctx, saved, again)`: those
    tensors of the ones that were saved, where others are kept besides; `again(x)` computes the result anew.
    """

    forward: Computation
    gradient: Computation
    keep: Callable[..., None]
    derivative: Callable[..., Sequence[Tensor | None]]
    behind: Callable[..., tuple[Any, ...]]
    parameters: int = 0
    kept: Callable[..., tuple[Tensor, ...]] | None = None

    def forward_of(self, options: str, operands: tuple[Any, ...]) -> Callable[..., Any] | None:
        """What was chosen for calls like this one; None where that is not settled."""
        return _chosen_for(self.forward, options, operands)

    def gradient_of(self, options: str, operands: tuple[Any, ...]) -> Callable[..., Any] | None:
        """The same of the gradient."""
        return _chosen_for(self.gradient, options, operands)


def _chosen_for(
    computation: Computation, options: str, operands: tuple[Any, ...]
) -> Callable[..., Any] | None:
    found = decided((computation,), options, operands)
    return None if found is None or found[0] is None else found[0].run


def at(device: torch.device, handle: Handle) -> Handle:
    """The handle that calls with tensors of this device run by: theirs plan for it, and `explain` shows those plans."""
    return handle if device.type == "cpu" else handle.at((device.type, device.index or 0))


def _first_then(first: Callable[[], Any], then: Callable[[], Any]) -> Callable[[], Any]:
    """The first call goes straight to our kernel, whose refusal an operator would hide."""
    left = [first]

    def run() -> Any:
        return left.pop()() if left else then()

    return run


def _settled(launched: Launched, operands: tuple[Any, ...], ours: Callable[[], Any]) -> Any:
    """Ours, behind the choice between its algorithms."""
    assert launched.settle is not None
    result = launched.made()
    launched.settle([(result if role == RESULT else operands[role]).data_ptr() for role in launched.roles])
    return ours()


def words(operands: tuple[Any, ...]) -> str:
    """Operands for the name of a kind in the store."""
    return " ".join(
        f"{DTYPES.get(one.dtype, one.dtype)} {tuple(one.shape)} by {one.stride()}"
        if isinstance(one, Tensor)
        else str(one)
        for one in operands
    )


def run_together(
    computations: tuple[Computation | None, ...], options: str, operands: tuple[Any, ...]
) -> list[Any]:
    """The results of several computations of the same operands, None for None; one look-up for all."""
    key = _key(computations, options, operands)
    kinds = known.get(key)
    if kinds is None:
        kinds = known.older(key) or _chosen(key, computations, options, operands)
    if observers or threads_apart:
        for kind in filter(None, kinds):
            tell(kind, operands)
    return [None if kind is None else kind.run(*operands) for kind in kinds]


def _key(
    computations: tuple[Computation | None, ...], options: str, operands: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What tells kinds of calls apart."""
    return (
        computations,
        options,
        torch.get_num_threads(),
        *[
            (one.shape, one.stride(), one.dtype, one.device)
            if isinstance(one, Tensor)
            else (tuple(one) if isinstance(one, list) else one)
            for one in operands
        ],
    )


def decided(
    computations: tuple[Computation | None, ...], options: str, operands: tuple[Any, ...]
) -> list[Kind | None] | None:
    """Who runs such calls from now on; None if that is not settled."""
    return known.recall(_key(computations, options, operands))


def tell(kind: Kind, operands: tuple[Any, ...]) -> None:
    """Tell those who want to know of a call."""
    for observe in watching():
        observe(kind, operands)


def watching() -> list[Observer]:
    """Who wants to know of the calls of this thread.

    Autograd's own threads, which run backward passes on GPUs, belong to whoever measures, if anybody does.
    """
    if not threads_apart:
        return observers
    own = threads_apart.get(threading.get_ident())
    if own is None and isinstance(threading.current_thread(), threading._DummyThread):
        own = next(iter(threads_apart.values()), None)
    return observers if own is None else own


@contextmanager
def apart(*instead: Observer) -> Iterator[list[Observer]]:
    """Calls of this thread in the block are told to `instead` alone, a list that may be changed; those of other
    threads are told to who watches them."""
    here = threading.get_ident()
    before = threads_apart.get(here)
    threads_apart[here] = own = list(instead)
    try:
        yield own
    finally:
        if before is None:
            del threads_apart[here]
        else:
            threads_apart[here] = before


def _chosen(
    key: Any, computations: tuple[Computation | None, ...], options: str, operands: tuple[Any, ...]
) -> list[Kind | None]:
    """What runs, from now on or for now: while ours is being compiled, and in a capture, where nothing is measured."""
    for_now = _for_now.recall(key)
    if for_now is not None and (
        _is_capturing() or any(kind and kind.decision.is_for_now for kind in for_now)
    ):
        return for_now
    with part():
        kinds = [None if one is None else one.choose(options, operands) for one in computations]
    kept = _for_now if any(kind and kind.decision.waits_for for kind in kinds) else known
    return kept.put(key, kinds)


def _is_capturing() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def forget() -> None:
    """Choose anew at the next calls (with the times that are stored by then)."""
    global epoch
    epoch += 1
    known.clear()
    _for_now.clear()
    variety.forget()


def _refusal(operands: list[Tensor], has_several_types: bool) -> str | None:
    """Why operands cannot be ours, in words; None if they can. What else ours refuses it says itself."""
    first = operands[0]
    if is_disabled():
        return "JITDNN_DISABLE is set"
    if first.device.type not in DEVICES:
        return f"the operands are on {first.device.type}: ours run on {' and '.join(DEVICES)}"
    for operand in operands:
        if operand.dtype not in DTYPES:
            return f"an operand is {operand.dtype}: it must be {', '.join(map(str, DTYPES))}"
        if operand.device != first.device or (operand.dtype != first.dtype and not has_several_types):
            return "the operands are of several types or devices"
        if operand.layout is not torch.strided or operand.is_conj() or operand.is_neg():
            return "an operand is sparse, or a view that is conjugated or negated when it is read"
        if operand.numel() == 0:
            return "an operand is empty"
    return None
