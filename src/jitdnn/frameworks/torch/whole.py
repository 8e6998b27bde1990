"""Calls as a whole, as a model pays for them: torch's own function, or our operator and all that is around it.

Kernels are chosen one by one (kinds.py), but a layer pays for the way to them, too: a look-up, the casts of autocast,
copies, running statistics, a node of autograd that is written in Python. On a GPU that may be more than the kernels
save, and so it may for small tensors on a processor, where convolutions and products alone remember their calls
(calls.py); and functions of eager.py have no operators whose kernels could be chosen. So the first call of each kind
measures both ways from outside, forward and, where gradients are wanted, backward; where ours does not win, torch's
function is called from then on as if nothing had been converted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_leaves, tree_map

from jitdnn import log
from jitdnn.errors import DeviceError, JitdnnError
from jitdnn.frameworks.torch import batch_norm_activation, batch_norm_sum, choice, variety
from jitdnn.frameworks.torch.choice import Decision
from jitdnn.frameworks.torch.kinds import Kind, Observer, apart, known, tell, words
from jitdnn.frameworks.torch.options import canonical, handle_of, is_disabled, parse
from jitdnn.frameworks.torch.progress import part
from jitdnn.frameworks.torch.registry import OWN, hooks_of_saved, is_eager
from jitdnn.frameworks.torch.stock_calls import STOCK_CALLS, StockCalls, remember
from jitdnn.locks import lock
from jitdnn.planner.plan import noting_stand_ins

Run: TypeAlias = Callable[[], Any]
#: functions of torch whose calls are chosen as a whole on every device; a dict, since Dynamo of 2.6 looks into no set
ALONE: dict[Any, None] = {}
#: and those that are on processors, too, besides
ON_PROCESSORS: dict[Any, None] = {}
#: functions whose calls have a way on GPUs for which no kernels are chosen one by one (batch_norm_calls.py,
#: layer_norm_autocast.py)
_AS_ONE = (F.batch_norm, F.layer_norm, batch_norm_activation.stock)
Short: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any], str], Run | None]
#: of functions whose calls modules remember: (arguments, named ones, options) -> such a call, or None (calls.py,
#: operator_calls.py)
SHORT: dict[Any, Short] = {}
#: how many of a function's arguments tell kinds of calls apart; the others are numbers that cost nothing, whatever they
#: are, such as the momentum of running statistics, which may be another one in each call
_TELLING = {F.batch_norm: 6, batch_norm_activation.stock: 8, batch_norm_sum.stock: 8}
#: kinds of calls that ours are tried for of a function without weights, which all layers call
_MOST_OF_FUNCTION = 256
_has_seen_hooks = False
_lock = lock()


def is_chosen(function: Any, x: Any) -> bool:
    """Whether calls of a function with this first argument, an ordinary tensor, are chosen as a whole."""
    return type(x) in OWN and (x.is_cuda or (function in ON_PROCESSORS and x.is_cpu))


def is_ours(function: Any, args: tuple[Any, ...], options: str, named: dict[str, Any] | None = None) -> bool:
    """Whether a call as a whole is settled to be ours, or its kernels are chosen alone."""
    if parse(options).measure == "never" or not is_chosen(function, args[0]):
        return True
    found = known.recall(_key(function, args, named or {}, options))
    return found is not None and (found[0] is None or found[0].decision.is_ours)


def run(
    function: Any,
    route: Callable[..., Any],
    args: tuple[Any, ...],
    named: dict[str, Any],
    options: str,
    module: nn.Module | None = None,
) -> Any:
    """The result of a function of torch by itself or by our `route`, whichever is faster for calls of this kind.

    The route returns NotImplemented for arguments that it does not take. `module`: the converted one that calls.
    """
    kind = None
    if parse(options).measure != "never":
        key = _key(function, args, named, options)
        found = known.get(key)
        is_settled = found is not None
        if found is None:
            found = known.older(key) or _first(key, function, route, args, named, options, module)
        kind = found[0]
        if kind is not None and not kind.decision.is_ours:
            if is_settled and module is not None:
                remember(module, args[0])
            tell(kind, args)
            return function(*args, **named)
    is_alone = function in ALONE
    try:
        result = route(*args, **named, options=options)
    except JitdnnError as error:
        if not is_alone or isinstance(error, DeviceError):
            raise
        log.fallback_once(
            ("torch", function, str(error)), f"{function.__name__} runs by PyTorch's own kernel: {error}"
        )
        return function(*args, **named)
    if result is NotImplemented:
        return function(*args, **named)
    if is_alone:
        tell(kind or Kind("whole", Decision(True, "not measured, as asked"), function), args)
    return result


def _key(function: Any, args: tuple[Any, ...], named: dict[str, Any], options: str) -> tuple[Any, ...]:
    """What tells kinds of calls apart."""
    device = args[0].device
    telling = _telling(function, args)
    return (
        function,
        options,
        device,
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type),
        # written out, for this is what every call costs that torch's function runs
        *[
            (one.shape, one.stride(), one.dtype, one.requires_grad)
            if type(one) in OWN
            else (_told(one) if type(one) in (list, tuple) else one)
            for one in (telling if not named else _flat(telling, named))
        ],
    )


def _telling(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that tell kinds of calls apart."""
    return args[: _TELLING.get(function)]


def _told(one: Any) -> Any:
    """What tells kinds of a list of numbers or tensors apart."""
    return tuple(
        (part.shape, part.stride(), part.dtype, part.requires_grad) if isinstance(part, Tensor) else part
        for part in one
    )


def _flat(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    return (*args, *(part for item in named.items() for part in item))


def _first(
    key: Any, function: Any, route: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], options: str,
    module: nn.Module | None,
) -> list[Kind | None]:  # fmt: skip
    """Choose for a kind that is called for the first time; what cannot be chosen now is not kept."""
    if (
        is_disabled()
        or not is_eager()
        or any(isinstance(one, Tensor) and type(one) not in OWN for one in tree_leaves((args, named)))
    ):
        return [None]
    stock = Kind("whole", Decision(False, "not measured: at a time when nothing can be"), function)
    if args[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return [stock]
    # within a backward pass another thread that measures may wait for this one
    if not _lock.acquire(blocking=torch._C._current_graph_task_id() == -1):
        return [stock]
    try:
        with part():
            decision = _decided(function, route, args, named, options, module)
    except torch.OutOfMemoryError:
        decision = Decision(False, "not measured: there is no memory for both")
    finally:
        _lock.release()
    chosen: list[Kind | None] = [Kind("whole", decision, function)]
    return chosen if decision.waits_for else known.put(key, chosen)


def _decided(
    function: Any, route: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], options: str,
    module: nn.Module | None,
) -> Decision:  # fmt: skip
    device = args[0].device
    handle = handle_of(options, device.type)
    given = tuple(tree_leaves((args, named)))
    has_gradients = torch.is_grad_enabled()
    wanted = "".join(str(int(one.requires_grad)) for one in given if isinstance(one, Tensor))
    cast = (
        f" cast to {torch.get_autocast_dtype(device.type)}" if torch.is_autocast_enabled(device.type) else ""
    )
    gradients = f" gradients {wanted}" if has_gradients and "1" in wanted else ""
    told_by = tuple(tree_leaves((_telling(function, args), named)))
    text, how = canonical(options), parse(options).measure
    what = f"torch whole {function.__name__} {words(told_by)}{gradients}{cast}{' ' if text else ''}{text}"
    stored = choice.stored(what, handle, device, how)
    if stored is not None:
        return stored
    if not variety.may_try(*_layer(function, args, text, module)):
        return Decision(False, variety.REASON)
    seen: list[Kind] = []
    is_one = function in ALONE or (function in _AS_ONE and device.type != "cpu")
    with _apart(seen) as told:
        if is_one:
            told.clear()

        def ours_of(*args: Any, **named: Any) -> Any:
            return route(*args, **named, options=options)

        ours = _way(ours_of, args, named)
        stock = _way(function, args, named)
        try:
            with noting_stand_ins() as waited:
                is_refused = ours() is NotImplemented
        except JitdnnError as error:
            if function not in ALONE or isinstance(error, DeviceError):
                raise
            return Decision(False, f"refused: {error}")
        if is_refused:
            return Decision(False, "refused: the arguments are none that ours take")
        waits_for = (*waited, *(one for kind in seen for one in kind.decision.waits_for))
        if waits_for:
            return Decision(False, "ours is being compiled", waits_for=waits_for)
        if not is_one and not any(kind.decision.is_ours for kind in seen):
            return choice.none_is_ours(what, handle, device)
        told.clear()
        stock()
        if module is not None and function in SHORT:  # other calls are not remembered
            ours = _way(ours_of, args, named, SHORT[function], options)
            ours()  # remembers how its gradients are taken
        return choice.measured(what, handle, device, ours, stock, how)


def _layer(
    function: Any, args: tuple[Any, ...], options: str, module: nn.Module | None
) -> tuple[Hashable, int]:
    """What tells layers apart (see variety.py), and for how many kinds of its calls ours are tried."""
    weights = tuple(one.shape for one in tree_leaves(args) if isinstance(one, nn.Parameter))
    if module is None and not weights:
        return (function, options), _MOST_OF_FUNCTION
    return (
        function,
        options,
        torch.is_grad_enabled(),
        module and StockCalls.of(module, STOCK_CALLS),
        weights,
    ), variety.MOST


def _way(
    function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any],
    short: Short | None = None, options: str = "",
) -> Run:  # fmt: skip
    """A call with copies of the arguments, and the gradients of those that want one; by its `short` way, if any."""
    own, own_named = tree_map(_copy, (args, named))
    call = (None if short is None else short(own, own_named, options)) or partial(function, *own, **own_named)
    wanted = [one for one in tree_leaves((own, own_named)) if isinstance(one, Tensor) and one.requires_grad]
    device = args[0].device.type
    grads: list[Tensor] = []

    def run() -> Any:
        y = call()
        if y is NotImplemented or not wanted:
            return y
        outputs = [one for one in tree_leaves(y) if one.requires_grad]
        if not grads:
            grads.extend(torch.ones_like(one.detach()) for one in outputs)
        is_cast = torch.is_autocast_enabled(device)
        torch.set_autocast_enabled(device, False)  # the backward pass of a model is outside of it
        try:
            return torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
        finally:
            torch.set_autocast_enabled(device, is_cast)

    return run


def _copy(one: Any) -> Any:
    """An argument that may be changed, without a history; images and weights are only read, and not copied."""
    if not isinstance(one, Tensor):
        return one
    is_wanted = torch.is_grad_enabled() and one.requires_grad
    is_state = not one.requires_grad and one.dim() <= 1  # running statistics are written
    own = one.detach().clone() if is_state else one.detach()
    return own.requires_grad_() if is_wanted else own


@contextmanager
def _apart(seen: list[Kind]) -> Iterator[list[Observer]]:
    """Calls that no observer, no hook of checkpointing and no cache of autocast sees; `seen` gets their kinds."""
    is_cached = torch.is_autocast_cache_enabled()
    global _has_seen_hooks
    has_hooks = hooks_of_saved(False) is not None
    _has_seen_hooks |= has_hooks
    torch.set_autocast_cache_enabled(False)
    try:
        with (
            saved_tensors_hooks(_same, _same) if has_hooks else nullcontext(),
            apart(lambda kind, operands: seen.append(kind)) as told,
        ):
            yield told
    finally:
        torch.set_autocast_cache_enabled(is_cached)


def has_seen_hooks() -> bool:
    """Whether a call was chosen while tensors for a backward pass were saved by hooks, as checkpoints do."""
    return _has_seen_hooks


def _same(tensor: Tensor) -> Tensor:
    return tensor
