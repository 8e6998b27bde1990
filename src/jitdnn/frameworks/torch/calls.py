"""Calls of converted modules that were made before, in the shortest way to their kernels.

A call by functional.py and kinds.py builds a key of all that tells kinds of calls apart, and looks it up. A module
makes the same few calls again and again, so it remembers them: PyTorch's own guards of compiled graphs, written in C++,
tell whether a call is the one of before (classes of tensors, dispatch keys with those that modes, autocast and
transforms add, types, devices, shapes, strides, who wants a gradient); one node of autograd stands for the layer with
its bias, and one list of launches for its gradients. Where torch's kernels run in both directions, torch's own function
is called. All else takes the long way, which is also what decides who runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, get_autocast_dtype, is_autocast_enabled

from jitdnn.frameworks.torch import guards, kinds, whole
from jitdnn.frameworks.torch.guards import Remembered
from jitdnn.frameworks.torch.kinds import (
    RESULT,
    Computation,
    Kind,
    Launched,
    decided,
    observers,
    threads_apart,
    watching,
)
from jitdnn.frameworks.torch.launch import recorded
from jitdnn.frameworks.torch.registry import Operator, applied, as_autocast, hooks_of_saved, plain_device
from jitdnn.frameworks.torch.together import TOGETHER, Together
from jitdnn.recorders import recorders
from jitdnn.settings import current

CALLS = "_jitdnn_calls"
"""The attribute of a module that remembers its calls."""
_EPOCH = 3  # its place in what tells calls apart
GRADIENTS, TEXT = 0, 4
"""And those of whether gradients are recorded and of the options, of normalizations' calls, too."""
_is_grad_enabled, _get_num_threads = torch.is_grad_enabled, torch.get_num_threads


@dataclass(frozen=True)
class Layer:
    """What converted modules of a kind compute: forward, the gradients of x, w and the bias, and the operator of all
    three, which has gradients itself.

    `by_torch(mask, dy, x, w, ...)` gives torch's function of dy, x and w for those gradients that the mask says, where
    one call for several costs less than one for each.
    """

    forward: Computation
    gradients: tuple[Computation, ...]
    backward: Operator
    by_torch: Callable[..., Callable[[Tensor, Tensor, Tensor], Sequence[Tensor | None]]] | None = None


def has_own(module: Any) -> bool:
    """Whether the weight and the bias are the module's own: a parametrization gives another one in each call."""
    own = module._parameters
    return "weight" in own and "bias" in own


def recalled(
    calls: Remembered | None, x: Tensor, w: Tensor | None, bias: Tensor | None, now: tuple[Any, ...]
) -> Callable[[Tensor, Any, Any], Tensor] | None:
    """What runs this call if the module has made it before.

    `now`: what else than the tensors tells calls apart: whether gradients are recorded, torch's threads, the level of
    derivatives taken forward, the epoch of kinds.py, and what the module was given.
    """
    if calls is not None and not (
        observers or threads_apart or x.is_nested
    ):  # guards end the process for these
        entries: tuple[Entry, ...] = calls.entries
        for entry in entries:
            if entry.state != now or entry.has_bias is (bias is None):
                continue
            if entry.cast is not None and get_autocast_dtype(entry.device) is not entry.cast:
                continue
            if entry.check(x, w) if bias is None else entry.check(x, w, bias):
                return entry.run
    return None


def learn(
    module: Any, layer: Layer, operands: tuple[Any, ...], options: str, now: tuple[Any, ...],
    function: Callable[..., Tensor], after: tuple[Any, ...] = (),
) -> None:  # fmt: skip
    """Remember a call that has just run, if calls like it take the way to a kernel that was chosen.

    `operands`: x, w, the bias or None, and what else the layer takes; `function` is torch's own, of x, w, the bias and
    what comes `after`.
    """
    if observers or threads_apart or not has_own(module):
        return
    calls = Remembered.of(module, CALLS)
    if calls.is_full or not whole.is_ours(function, (*operands[:3], *after), options):
        return  # of torch's function stock_calls.py remembers that
    entry = entry_of(layer, operands, options, now, function, after)
    if entry is not None:
        entry.together = module.__dict__.get(TOGETHER)
        calls.add(entry, _EPOCH)


def entry_of(
    layer: Layer, operands: tuple[Any, ...], options: str, now: tuple[Any, ...], function: Callable[..., Tensor],
    after: tuple[Any, ...] = (),
) -> Entry | None:  # fmt: skip
    """What runs such calls, where kernels were chosen for them; see `learn`."""
    if not guards.are_there():
        return None
    device = plain_device(operands[:3])
    if not device or not isinstance(operands[1], Tensor):
        return None
    cast = get_autocast_dtype(device) if is_autocast_enabled(device) else None
    given = operands[:3]
    if cast is not None:
        operands = tuple(as_autocast(one, device, cast) for one in operands)
    found = decided((layer.forward,), options, operands)
    if found is None or found[0] is None:
        return None

    def stock(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        return function(x, w, bias, *after)

    return Entry(layer, given, operands[3:], options, now, found[0], stock, cast)


def short(
    layer: Layer,
    operands: tuple[Any, ...],
    options: str,
    function: Callable[..., Tensor],
    after: tuple[Any, ...],
) -> Callable[[], Tensor] | None:
    """A call of these operands as a module makes it that remembers it, of which whole.py takes the time."""
    now = (_is_grad_enabled(), _get_num_threads(), -1, kinds.epoch)
    entry = entry_of(layer, operands, options, now, function, after)
    return None if entry is None else partial(entry.run, *operands[:3])


class Entry:
    """A call that was made before: who it is for, and what runs it."""

    __slots__ = (
        "_arguments", "_casts", "_layer", "_options", "_stock", "_wanted", "backwards", "cast", "check", "device",
        "has_bias", "kind", "run", "state", "together", "uncast",
    )  # fmt: skip

    def __init__(
        self, layer: Layer, tensors: tuple[Any, ...], arguments: tuple[Any, ...], options: str, now: tuple[Any, ...],
        kind: Kind, stock: Callable[..., Tensor], cast: torch.dtype | None,
    ) -> None:  # fmt: skip
        x, w, bias = tensors
        self.state, self.has_bias, self.kind = now, bias is not None, kind
        self.check = guards.guard(*(one for one in tensors if one is not None))
        #: what autocast makes of the operands, and where
        self.cast, self.device = cast, x.device.type
        self.together: Together | None = None
        self._casts = tuple(
            cast is not None and as_autocast(one, self.device, cast) is not one for one in tensors
        )
        self._layer, self._arguments, self._options, self._stock = layer, arguments, options, stock
        self.backwards: tuple[_Backward, ...] = ()
        self.run: Callable[[Tensor, Any, Any], Tensor] = stock
        #: of operands that are cast already
        self.uncast = _forward(kind, bias is not None)
        if kind.decision.is_ours:
            self.run = self.uncast if cast is None else self.forward
        self._wanted = tuple(one is not None and one.requires_grad for one in (x, w, bias))
        if _is_grad_enabled() and any(self._wanted):
            self.run = partial(_apply, self) if cast is None else self._apply_cast

    def forward(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """The result, without a history, of operands that are cast."""
        return self.uncast(*self.lowered(x, *self._together(w, bias)))

    def _apply_cast(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """The result with a history, of weights that are cast together with those of other layers where they can be."""
        found: Tensor = _apply(self, x, *self._together(w, bias))
        return found

    def _together(self, w: Tensor, bias: Any) -> tuple[Tensor, Any]:
        together, cast = self.together, self.cast
        if together is None or cast is None:
            return w, bias
        _, casts_w, casts_bias = self._casts
        own_w, own_bias = casts_w and together.cast(w, cast), casts_bias and together.cast(bias, cast)
        return (
            w if own_w is False or own_w is None else own_w,
            bias if own_bias is False or own_bias is None else own_bias,
        )

    def lowered(self, x: Tensor, w: Tensor, bias: Any) -> tuple[Tensor, Tensor, Any]:
        """Operands as autocast gives them: which of them it casts is the same in all calls of the kind."""
        cast = self.cast
        if cast is None:
            return x, w, bias
        casts_x, casts_w, casts_bias = self._casts
        return (
            x.to(cast) if casts_x else x, w.to(cast) if casts_w else w, bias.to(cast) if casts_bias else bias,
        )  # fmt: skip

    def gradients(self, dy: Tensor, x: Tensor, w: Tensor, needs: tuple[bool, ...]) -> Sequence[Tensor | None]:
        """The gradients of x, w and the bias that are needed, by the way that decides who runs."""
        mask = list(needs[1:])
        grads = self._layer.backward(dy, x, w, *self._arguments, mask, self._options)
        if (
            not (_is_grad_enabled() or watching())
            and kinds.epoch == self.state[_EPOCH]
            and plain_device((dy, x, w))
            and len(self.backwards) < guards.MOST
        ):
            wanted = tuple(
                one if is_wanted else None for one, is_wanted in zip(self._layer.gradients, mask, strict=True)
            )
            found = decided(wanted, self._options, (dy, x, w, *self._arguments))
            if found is not None:
                threads, by_torch = _get_num_threads(), self._layer.by_torch
                torchs = [one is not None and not one.decision.is_ours for one in found]
                both = None
                if by_torch is not None and sum(torchs) > 1:
                    both = by_torch(torchs, dy, x, w, *self._arguments)
                known = _Backward(found, both, needs, threads, guards.guard(dy, x, w))
                self.backwards = (*self.backwards, known)
                if needs[1:] == self._wanted:
                    self._decide(found)
        return tuple(grad if is_wanted else None for grad, is_wanted in zip(grads, mask, strict=True))

    def _decide(self, found: list[Kind | None]) -> None:
        """Torch's own function, from the next call on, where neither ours runs forward or backward, nor torch's kernels
        in our memory."""
        all_kinds = [self.kind, *(one for one in found if one is not None)]
        if not any(one.decision.is_ours or one.is_stock_kept for one in all_kinds):
            self.run = self._as_torch

    def _as_torch(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        # a checkpoint that began with our node counts on what that saves
        found: Tensor = self._stock(x, w, bias) if hooks_of_saved(False) is None else _apply(self, x, w, bias)
        return found


class _Backward:
    """The gradients of calls that were asked for before: `run(dy, x, w)` gives what a node of autograd hands back, by
    one list of launches where all are ours. `by_torch`: torch's one call for those that are torch's, if any."""

    __slots__ = ("check", "needs", "run", "threads")

    def __init__(
        self,
        found: list[Kind | None],
        by_torch: Callable[[Tensor, Tensor, Tensor], Sequence[Tensor | None]] | None,
        needs: tuple[bool, ...],
        threads: int,
        check: Callable[..., bool],
    ) -> None:
        self.needs, self.threads, self.check = needs, threads, check
        self.run: Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]]
        self.run = _together(found) or _one_by_one(found, by_torch)


def _one_by_one(
    found: list[Kind | None],
    by_torch: Callable[[Tensor, Tensor, Tensor], Sequence[Tensor | None]] | None,
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]]:
    """The gradients of dy, x and w by a call each, or those that are torch's by one."""
    if by_torch is None:
        runs = [None if one is None else one.run for one in found]
        return lambda dy, x, w: (None, *[None if run is None else run(dy, x, w) for run in runs])
    ours = [
        (place, one.run) for place, one in enumerate(found, 1) if one is not None and one.decision.is_ours
    ]

    def run(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor | None, ...]:
        grads = [None, *by_torch(dy, x, w)]
        for place, own in ours:
            grads[place] = own(dy, x, w)
        return tuple(grads)

    return run


def _together(
    found: list[Kind | None],
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]] | None:
    """The gradients of dy, x and w by one call of generated code; None where a part of them is no launch."""
    launched = [None if one is None else one.launched for one in found]
    wanted = {place: one for place, one in enumerate(launched) if one is not None}
    if any(one is not None and one.launched is None for one in found) or not wanted:
        return None
    is_list = all(one.handle is not None for one in wanted.values())
    replay = _listed(list(wanted.values()), 3) if is_list else None
    if is_list and replay is None:
        return None
    # written out, as the forward passes are: with loops over the gradients it takes twice as long
    space: dict[str, Any] = {"replay": replay}
    lines = ["def run(dy, x, w):"]
    for place, one in wanted.items():
        space[f"made{place}"], space[f"at{place}"] = one.made, one.run
        lines.append(f"    d{place} = made{place}()")
        if not is_list:
            order = [f"d{place}" if role == RESULT else ("dy", "x", "w")[role] for role in one.roles]
            lines.append(f"    at{place}(({_addresses(order)},))")
    results = ", ".join(f"d{place}" if place in wanted else "None" for place in range(len(found)))
    if is_list:
        lines.append(f"    replay(({_addresses(['dy', 'x', 'w', *(f'd{place}' for place in wanted)])}))")
    lines.append(f"    return None, {results}")
    exec(compile("\n".join(lines), "<jitdnn gradients>", "exec"), space)
    run: Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]] = space["run"]
    return run


def _addresses(names: Sequence[str]) -> str:
    return ", ".join(f"{name}.data_ptr()" for name in names)


def _forward(kind: Kind, has_bias: bool) -> Callable[[Tensor, Any, Any], Tensor]:
    """The result of x, w and the bias; `kind.run` in a shorter way where ours is a launch alone."""
    slow, launched = kind.run, kind.launched
    if launched is not None and launched.handle is None:
        return _forward_on_gpu(launched, has_bias)
    replay = None if launched is None else _listed([launched], 2 + has_bias)
    if launched is None or replay is None:
        return slow
    made, add = launched.made, launched.add

    def run(x: Tensor, w: Any, bias: Any) -> Tensor:
        if recorders or current().log == "debug":
            found: Tensor = slow(x, w, bias)
            return found
        y = made()
        replay((x.data_ptr(), w.data_ptr(), y.data_ptr()))
        return y

    def run_with_bias(x: Tensor, w: Any, bias: Any) -> Tensor:
        if recorders or current().log == "debug":
            found: Tensor = slow(x, w, bias)
            return found
        y = made()
        replay((x.data_ptr(), w.data_ptr(), bias.data_ptr(), y.data_ptr()))
        if add is not None:
            add(y, bias)
        return y

    return run_with_bias if has_bias else run


def _forward_on_gpu(launched: Launched, has_bias: bool) -> Callable[[Tensor, Any, Any], Tensor]:
    made, at, add, takes_bias = launched.made, launched.run, launched.add, len(launched.roles) == 4

    def run(x: Tensor, w: Any, bias: Any) -> Tensor:
        y = made()
        at((x.data_ptr(), w.data_ptr(), y.data_ptr()))
        return y

    def run_with_bias(x: Tensor, w: Any, bias: Any) -> Tensor:
        y = made()
        if takes_bias:
            at((x.data_ptr(), w.data_ptr(), y.data_ptr(), bias.data_ptr()))
        else:
            at((x.data_ptr(), w.data_ptr(), y.data_ptr()))
        if add is not None:
            add(y, bias)
        return y

    return run_with_bias if has_bias else run


def _listed(launched: Sequence[Launched], operands: int) -> Callable[[Sequence[int]], None] | None:
    """Launches as one list, which takes the addresses of so many operands and then those of the results; None where
    they cannot be recorded."""
    handle = launched[0].handle

    def run(addresses: Sequence[int]) -> None:
        for number, one in enumerate(launched, operands):
            one.run([addresses[number if role == RESULT else role] for role in one.roles])

    return None if handle is None else recorded(run, operands + len(launched), handle)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """What the node of a call hands back to autograd."""
    entry = ctx.entry
    x, w = ctx.saved_tensors
    needs = ctx.needs_input_grad
    if not (_is_grad_enabled() or watching()):
        threads = _get_num_threads()
        for known in entry.backwards:
            if known.needs == needs and known.threads == threads and known.check(dy, x, w):
                found: tuple[Tensor | None, ...] = known.run(dy, x, w)
                return found
    return None, *entry.gradients(dy, x, w, needs)


class _Layer(torch.autograd.Function):
    """A layer with gradients."""

    @staticmethod
    def forward(ctx: Any, entry: Entry, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        if entry.cast is not None:
            x, w, bias = entry.lowered(x, w, bias)  # autograd casts gradients to what they are of
        ctx.save_for_backward(x, w)
        ctx.entry = entry
        return entry.uncast(x, w, bias)

    backward = staticmethod(_gradients)


_apply = applied(_Layer, _gradients)
