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
from torch.nn import Parameter

from jitdnn.devices.launch_list import LaunchList
from jitdnn.frameworks.torch import guards, kinds, native_gradients, whole
from jitdnn.frameworks.torch.guards import CALLS, EPOCH, Remembered
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
from jitdnn.frameworks.torch.launch import listed, offering, shortening
from jitdnn.frameworks.torch.native_run import Place, on_cpu, on_gpu
from jitdnn.frameworks.torch.registry import (
    Operator,
    as_autocast,
    differentiated,
    hooks_of_saved,
    node,
    plain_device,
)
from jitdnn.frameworks.torch.together import TOGETHER, Together
from jitdnn.handle import Handle
from jitdnn.recorders import recorders
from jitdnn.settings import current

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


def learn(
    module: Any, layer: Layer, operands: tuple[Any, ...], options: str, now: tuple[Any, ...],
    function: Callable[..., Tensor], after: tuple[Any, ...] = (),
) -> None:  # fmt: skip
    """Remember a call that has just run, if calls like it take the way to a kernel that was chosen.

    `operands`: x, w, the bias or None, and what else the layer takes; `function` is torch's own, of x, w, the bias and
    what comes `after`. `now`: what else than the tensors tells calls apart: whether gradients are recorded, torch's
    threads, the level of derivatives taken forward, the epoch of kinds.py, the options, what the module was given, and
    whether there is no bias.
    """
    if not has_own(module):
        return
    calls: Remembered = module.__dict__.get(CALLS) or Remembered()
    if not calls.is_learning or not whole.is_ours(function, (*operands[:3], *after), options):
        return  # of torch's function stock_calls.py remembers that
    entry = entry_of(layer, operands, options, now, function, after)
    if entry is not None:
        entry.together = module.__dict__.get(TOGETHER)
        calls.add(entry)
        module.__dict__[CALLS] = calls


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
    now = (_is_grad_enabled(), _get_num_threads(), -1, kinds.epoch)  # which is looked for by nobody
    entry = entry_of(layer, operands, options, now, function, after)
    return None if entry is None else partial(entry.run, *operands[:3])


class Entry:
    """A call that was made before: who it is for, and what runs it."""

    __slots__ = (
        "_arguments",
        "_casts",
        "_casts_weight_apart",
        "_layer",
        "_options",
        "_stock",
        "_wanted",
        "apply",
        "backwards",
        "cast",
        "check",
        "device",
        "differentiate",
        "kind",
        "run",
        "state",
        "together",
        "uncast",
    )  # fmt: skip

    def __init__(
        self, layer: Layer, tensors: tuple[Any, ...], arguments: tuple[Any, ...], options: str, now: tuple[Any, ...],
        kind: Kind, stock: Callable[..., Tensor], cast: torch.dtype | None,
    ) -> None:  # fmt: skip
        x, w, bias = tensors
        self.state, self.kind = now, kind
        #: what autocast makes of the operands, and where
        self.cast, self.device = cast, x.device.type
        self.check = check = guards.guard(*(one for one in tensors if one is not None))
        if cast is not None:
            self.check = lambda *tensors: get_autocast_dtype(self.device) is cast and check(*tensors)
        self.together: Together | None = None
        self._casts = tuple(
            cast is not None and as_autocast(one, self.device, cast) is not one for one in tensors
        )
        self._layer, self._arguments, self._options, self._stock = layer, arguments, options, stock
        self.backwards: tuple[_Backward, ...] = ()
        self.run: Callable[[Tensor, Any, Any], Tensor] = stock
        run = _forward(kind, bias is not None)
        #: of operands that are cast already
        self.uncast = shortening(self, "uncast", run)
        if kind.decision.is_ours:
            self.run = shortening(self, "run", run) if cast is None else self.forward
        self._wanted = tuple(one is not None and one.requires_grad for one in (x, w, bias))
        #: the backward pass of its nodes
        self.differentiate = _gradients_of(self)
        #: whether the weight is cast in front of the node: gradients of gradients find a parameter behind it
        self._casts_weight_apart = self._casts[1] and type(w) is not Parameter
        if _is_grad_enabled() and any(self._wanted):
            self.apply = node(_forward_of(self), self.differentiate)
            self.run = self.apply if cast is None else self._apply_cast

    def forward(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """The result, without a history, of operands that are cast."""
        return self.uncast(self.lowered(x), *self.lowered_parameters(*self._together(w, bias)))

    def _apply_cast(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """The result with a history, of weights that are cast together with those of other layers where they can be.

        x is cast in front of the node, which keeps the copy for gradients of gradients, too.
        """
        w, bias = self._together(w, bias)
        if self._casts_weight_apart:
            w = w.to(self.cast)
        found: Tensor = self.apply(self.lowered(x), w, bias)
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

    def lowered(self, x: Tensor) -> Tensor:
        """x as autocast gives it: which operands it casts is the same in all calls of the kind."""
        return x.to(self.cast) if self._casts[0] else x

    def lowered_parameters(self, w: Tensor, bias: Any) -> tuple[Tensor, Any]:
        """The weight and the bias as autocast gives them."""
        cast = self.cast
        _, casts_w, casts_bias = self._casts
        return w.to(cast) if casts_w else w, bias.to(cast) if casts_bias else bias

    def weight_of(self, ctx: Any, w: Tensor) -> Tensor:
        """The weight that a node has kept, with its history where the node has cast a parameter to it."""
        if not self._casts[1] or self._casts_weight_apart:
            return w
        behind, _ = ctx.next_functions[1]
        parameter = getattr(behind, "variable", None)
        return w if parameter is None or parameter.dtype is w.dtype else _Lowered.apply(parameter, w)

    def gradients(self, dy: Tensor, x: Tensor, w: Tensor, needs: tuple[bool, ...]) -> Sequence[Tensor | None]:
        """The gradients of x, w and the bias that are needed, by the way that decides who runs."""
        mask = list(needs)
        grads = self._layer.backward(dy, x, w, *self._arguments, mask, self._options)
        if (
            not (_is_grad_enabled() or watching())
            and kinds.epoch == self.state[EPOCH]
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
                known = _Backward(self, found, both, needs, threads, guards.guard(dy, x, w), dy.is_cpu)
                self.backwards = (*self.backwards, known)
                if needs == self._wanted:
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
        if hooks_of_saved(False) is None:
            return self._stock(x, w, bias)
        found: Tensor = self.apply(x, w, bias) if self.cast is None else self._apply_cast(x, w, bias)
        return found


class _Backward:
    """The gradients of calls that were asked for before: `run(dy, x, w)` gives what a node of autograd hands back, by
    one list of launches where all are ours. `by_torch`: torch's one call for those that are torch's, if any."""

    __slots__ = ("check", "needs", "run", "threads")

    def __init__(
        self,
        entry: Entry,
        found: list[Kind | None],
        by_torch: Callable[[Tensor, Tensor, Tensor], Sequence[Tensor | None]] | None,
        needs: tuple[bool, ...],
        threads: int,
        check: Callable[..., bool],
        is_on_cpu: bool,
    ) -> None:
        self.needs, self.threads, self.check = needs, threads, check

        def then(run: Callable[..., Any]) -> None:
            same = threads if is_on_cpu else None
            differentiated(
                entry.apply, native_gradients.gradients(entry.differentiate, run, check, 2, same, needs)
            )

        self.run: Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]]
        self.run = shortening(self, "run", _together(found) or _one_by_one(found, by_torch), then)


def _one_by_one(
    found: list[Kind | None],
    by_torch: Callable[[Tensor, Tensor, Tensor], Sequence[Tensor | None]] | None,
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]]:
    """The gradients of dy, x and w by a call each, or those that are torch's by one."""
    if by_torch is None:
        runs = [None if one is None else one.run for one in found]
        return lambda dy, x, w: tuple([None if run is None else run(dy, x, w) for run in runs])
    ours = [(place, one.run) for place, one in enumerate(found) if one is not None and one.decision.is_ours]

    def run(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor | None, ...]:
        grads = [*by_torch(dy, x, w)]
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
    handle, noted = _listed(list(wanted.values()), 3) if is_list else (None, None)
    if is_list and noted is None:
        return None
    replay = None if handle is None or noted is None else handle.replayer(noted)
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
    lines.append(f"    return {results}")
    exec(compile("\n".join(lines), "<jitdnn gradients>", "exec"), space)
    run: Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]] = space["run"]
    if noted is None:
        return offering(run, partial(_on_gpu, launched, 3, run), [one.launch for one in wanted.values()])
    made = [wanted[place].made if place in wanted else None for place in range(len(found))]
    places = [Place(number) for number in (0, 1, 2, *(3 + place for place in wanted))]
    return offering(run, partial(on_cpu, noted, 3, made, places, run))


def _on_gpu(
    launched: Sequence[Launched | None], inputs: int, slow: Callable[..., Any], is_one: bool = False
) -> Callable[..., Any] | None:
    """The results of launches of so many operands by one call of generated code, None for None."""
    kernels, index = [], 0
    for number, one in enumerate(launched, inputs):
        if one is not None:
            places = [Place(number if role == RESULT else role) for role in one.roles]
            kernel = None if one.launch is None else one.launch.on_gpu(places)
            if kernel is None:
                return None
            kernels.append(kernel)
            index = one.launch.index
    makers = [None if one is None else one.made for one in launched]
    return on_gpu(kernels, index, inputs, makers, slow, is_one)


def _addresses(names: Sequence[str]) -> str:
    return ", ".join(f"{name}.data_ptr()" for name in names)


def _forward(kind: Kind, has_bias: bool) -> Callable[[Tensor, Any, Any], Tensor]:
    """The result of x, w and the bias; `kind.run` in a shorter way where ours is a launch alone."""
    slow, launched = kind.run, kind.launched
    if launched is None:
        return slow
    if launched.handle is None:
        return _forward_on_gpu(launched, has_bias)
    handle, noted = _listed([launched], 2 + has_bias)
    if handle is None or noted is None:
        return slow
    replay, made, add = handle.replayer(noted), launched.made, launched.add

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

    found = run_with_bias if has_bias else run
    if add is not None:
        return found
    places = [Place(number) for number in ((0, 1, 2, 3) if has_bias else (0, 1, 3))]
    return offering(found, partial(on_cpu, noted, 3, [made], places, found, True))


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

    found = run_with_bias if has_bias else run
    if add is not None:
        return found
    return offering(found, partial(_on_gpu, [launched], 3, found, True), [launched.launch])


def _listed(launched: Sequence[Launched], operands: int) -> tuple[Handle | None, LaunchList | None]:
    """What runs launches, and they as one list, which takes the addresses of so many operands and then those of the
    results; None where they cannot be recorded."""
    handle = launched[0].handle

    def run(addresses: Sequence[int]) -> None:
        for number, one in enumerate(launched, operands):
            one.run([addresses[number if role == RESULT else role] for role in one.roles])

    return handle, None if handle is None else listed(run, operands + len(launched))


def _forward_of(entry: Entry) -> Callable[..., Tensor]:
    """The forward pass of the nodes of calls like this one."""

    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        if entry.cast is not None:
            w, bias = entry.lowered_parameters(w, bias)  # autograd casts gradients to what they are of
        ctx.save_for_backward(x, w)
        return entry.uncast(x, w, bias)

    return forward


def _gradients_of(entry: Entry) -> Callable[..., Sequence[Tensor | None]]:
    """What they hand back to autograd; `kept` is what was saved, if somebody has looked."""

    def gradients(ctx: Any, dy: Tensor, kept: Any = None) -> Sequence[Tensor | None]:
        x, w = ctx.saved_tensors if kept is None else kept
        needs = ctx.needs_input_grad
        if not (_is_grad_enabled() or ((observers or threads_apart) and watching())):
            threads = _get_num_threads()
            for known in entry.backwards:
                if known.needs == needs and known.threads == threads and known.check(dy, x, w):
                    found: tuple[Tensor | None, ...] = known.run(dy, x, w)
                    return found
        return entry.gradients(dy, x, entry.weight_of(ctx, w) if _is_grad_enabled() else w, needs)

    return gradients


class _Lowered(torch.autograd.Function):
    """What a parameter was cast to before, of which it is given the gradients."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, lowered: Tensor) -> Tensor:
        ctx.dtype = parameter.dtype
        return lowered.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.to(ctx.dtype), None
