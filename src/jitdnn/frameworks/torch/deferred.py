"""What follows a batch normalization in a model's own `forward`: a sum with a residual, and an activation.

A module cannot know what its result is used for. So one call of the model in training is watched by a mode of PyTorch's
that sees all functions: which results of batch normalizations go into an activation, or into a sum that goes into a
rectifier, and nowhere else. In later calls these modules return a `Deferred` in the place of their result: a tensor
without elements that knows how to compute them. A sum with another tensor is noted, and the activation computes all as
one operation. Whatever else is asked of a `Deferred` computes its elements as if nothing had been put off, so that what
was learnt concerns speed alone.

Nothing is put off where somebody might see it: outside of a call of the converted model, where one of its modules has
hooks, under checkpoints, compilers, transforms, modes and autocast, without gradients, and on GPUs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from jitdnn.errors import NotSupported
from jitdnn.frameworks.torch import batch_norm_sum
from jitdnn.frameworks.torch.registry import OWN, hooks_of_saved, is_autocast_on, is_eager
from jitdnn.frameworks.torch.sync_batch_norm import is_watched

JOIN = "_jitdnn_join"
"""The attribute of a normalization that says what follows it: an activation, or `SUM`."""
SUM = "sum and relu"
LEAST = 1 << 15
"""Elements from which on a result is put off, which takes the host some ten microseconds."""

_FORMS = tuple(
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "is_cpu", "is_cuda")
)  # fmt: skip
#: functions that ask for no element
_IDLE = (*_FORMS, Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.is_floating_point)
_SUMS = (Tensor.__add__, Tensor.__radd__, Tensor.add, torch.add)
_SUMS_IN_PLACE = (Tensor.__iadd__, Tensor.add_)
#: activations -> the name that ours have for one, and whether it works in place whatever it is told
_ACTIVATIONS: dict[Any, tuple[str, bool]] = {
    F.relu: ("relu", False), torch.relu: ("relu", False), Tensor.relu: ("relu", False),
    torch.relu_: ("relu", True), Tensor.relu_: ("relu", True),
    F.relu6: ("clipped_relu", False), F.hardtanh: ("clipped_relu", False),
    F.silu: ("swish", False),
}  # fmt: skip


class _Here(threading.local):
    """What the thread's running model does with normalizations, if there is anything to do."""

    call: _Watching | _PuttingOff | None = None


_here = _Here()


class Deferred(Tensor):
    """The result of a batch normalization, perhaps with another tensor added, that nobody has read yet."""

    @staticmethod
    def __new__(cls, of: _Normalized, z: Tensor | None = None) -> Deferred:
        x = of.x
        made: Deferred = Tensor._make_wrapper_subclass(
            cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device, requires_grad=True
        )
        with torch._C.DisableTorchFunctionSubclass():
            made.register_hook(_unreachable)
        made.__dict__.update(_of=of, _z=z, _z_version=z._version if z is not None else 0, _value=None)
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _IDLE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        first = args[0] if args else None
        if type(first) is Deferred and first.__dict__["_value"] is None:
            if not kwargs and len(args) == 2 and (function in _SUMS or function in _SUMS_IN_PLACE):
                added = _added(first, args[1], function in _SUMS_IN_PLACE)
                if added is not None:
                    return added
            else:
                found = _activation(function, args, kwargs)
                result = None if found is None else _activated(first, *found)
                if result is not None:
                    return result
        elif not kwargs and len(args) == 2 and function in _SUMS and type(args[1]) is Deferred:
            added = _added(args[1], first, False)
            if added is not None:
                return added
        args, kwargs = tree_map(value, (args, kwargs))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _unreachable(function)


def _unreachable(what: Any) -> Any:
    raise NotSupported(
        "the result of a converted batch normalization was given to a function that PyTorch does not see, as "
        "torch.autograd.Function.apply and extensions in C++: exclude that normalization from jitdnn.torch.convert"
    )


class _Normalized:
    """A call of a normalization that was put off."""

    __slots__ = ("has_run", "module", "result", "result_version", "version", "x")

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self.module, self.x, self.version = module, x, x._version
        self.has_run = False  # and has updated the running statistics
        self.result: Tensor | None = None
        self.result_version = 0

    def check(self) -> None:
        """Raise what the gradients would raise if x was changed meanwhile, which is kept for them."""
        if self.x._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: the "
                f"input of a batch normalization, of shape {list(self.x.shape)}"
            )

    def alone(self) -> Tensor:
        """The normalized values, and nothing else."""
        if self.result is None or self.result._version != self.result_version:  # or it was changed in place
            self.check()
            module: Any = self.module
            with torch.enable_grad():  # as it was when it was put off
                if self.has_run:
                    self.result = F.batch_norm(
                        self.x, None, None, module.weight, module.bias, True, 0.0, module.eps
                    )
                else:
                    self.result = module.undeferred(self.x)
                    self.ran()
                    module.__dict__.pop(JOIN, None)  # something else follows than was learnt
            self.result_version = self.result._version
        return self.result

    def ran(self) -> None:
        """It has run, in whatever way."""
        self.has_run = True
        call = _here.call
        if isinstance(call, _PuttingOff):
            call.waiting.pop(id(self), None)


def value(one: Any) -> Any:
    """A tensor with elements in the place of one that was put off; anything else as it is."""
    if type(one) is not Deferred:
        return one
    own = one.__dict__
    if own["_value"] is None:
        y, z = own["_of"].alone(), own["_z"]
        if z is not None:
            _check_sum(own)
            with torch.enable_grad():
                y = y + z
        own["_value"], own["_z"] = y, None
    return own["_value"]


def _check_sum(own: dict[str, Any]) -> None:
    if own["_z"]._version != own["_z_version"]:
        raise RuntimeError(
            "what was added to the result of a converted batch normalization was changed in place before the sum was "
            "computed, which it was not when the model was watched: exclude that module from jitdnn.torch.convert"
        )


def _added(one: Deferred, z: Any, is_in_place: bool) -> Deferred | None:
    """The sum, put off as well; None where it cannot be."""
    own = one.__dict__
    of: _Normalized = own["_of"]
    z = value(z)
    if (
        own["_value"] is not None
        or own["_z"] is not None
        or of.has_run
        or of.module.__dict__.get(JOIN) != SUM
    ):
        return None
    if not isinstance(z, Tensor) or not batch_norm_sum.is_one(of.x, z, of.module.weight, of.module.bias):
        return None
    if not is_in_place:
        return Deferred(of, z)
    own["_z"], own["_z_version"] = z, z._version
    return one


def _activation(function: Any, args: Any, kwargs: dict[str, Any]) -> tuple[str, bool] | None:
    """The name of ours, and whether it is done in place, of a call of an activation that ours have."""
    known = _ACTIVATIONS.get(function)
    if known is None:
        return None
    name, is_in_place = known
    named = dict(kwargs)
    inplace = named.pop("inplace", False)
    rest = args[1:]
    if function is F.hardtanh:
        rest = (
            () if (*rest, named.pop("min_val", None), named.pop("max_val", None))[:2] == (0.0, 6.0) else None
        )
    elif len(rest) == 1 and type(rest[0]) is bool:
        inplace, rest = rest[0], ()
    return None if named or rest else (name, is_in_place or bool(inplace))


def _activated(one: Deferred, name: str, is_in_place: bool) -> Tensor | None:
    """The activation of what was put off, as one operation with it; None where that cannot be."""
    own = one.__dict__
    of: _Normalized = own["_of"]
    z = own["_z"]
    is_known = of.module.__dict__.get(JOIN) == (name if z is None else SUM)
    if of.has_run or not is_known or not torch.is_grad_enabled():
        return None
    of.check()
    module: Any = of.module
    if z is None:
        result: Tensor = module.activated_by(of.x, name, is_in_place)
    elif name != "relu":
        return None
    else:
        _check_sum(own)
        result = module.summed(of.x, z)
    of.ran()
    if is_in_place:
        own["_value"], own["_z"] = result, None
    return result


def _is_plain(module: Any, x: Any) -> bool:
    """Whether a call of a normalization may be put off."""
    return (
        type(x) in OWN
        and x.is_cpu
        and module.training
        and module.weight is not None
        and module.bias is not None
        and x.numel() >= LEAST
        and torch.is_grad_enabled()
        and (x.requires_grad or module.weight.requires_grad or module.bias.requires_grad)
        and not is_autocast_on("cpu")
        and hooks_of_saved(False) is None
        and forward_ad._current_level < 0
        and is_eager()
    )


def deferring(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a converted batch normalization: `plain`, or put off."""

    def forward(self: Any, input: Tensor) -> Any:
        if torch.compiler.is_compiling():
            return plain(self, input)
        _end_interrupted()
        call = _here.call
        return plain(self, input) if call is None else call.normalized(self, input, plain)

    return forward


def activating(
    function: Callable[..., Tensor], plain: Callable[[Tensor], Tensor], input: Tensor, is_in_place: bool
) -> Tensor:
    """The forward of a converted activation by its `plain` one; of what was put off by torch's `function`."""
    if not torch.compiler.is_compiling():
        if type(input) is Deferred:
            return function(input, inplace=is_in_place)
        if isinstance(_here.call, _Watching) and type(input) in OWN:  # classes of somebody's own see the call
            return _here.call.activated(function, plain, input, is_in_place)
    return plain(input)


def is_running(frame: int | None, begun: int | None = None) -> bool:
    """Whether the frame of this id is among those of this thread; None is taken for one that is.

    `begun`: the id of the frame that now begins a call, which each does once: another one had it before.
    """
    if frame is not None and frame == begun:
        return False
    here: FrameType | None = sys._getframe(1)
    while frame is not None and here is not None and id(here) != frame:
        here = here.f_back
    return here is not None


class _PuttingOff:
    """A call of a model whose normalizations return what was put off."""

    def __init__(self, frame: int | None) -> None:
        self.frame = frame
        self.waiting: dict[int, _Normalized] = {}

    def normalized(self, module: Any, x: Tensor, plain: Callable[..., Any]) -> Any:
        join = module.__dict__.get(JOIN)
        if (
            join is None
            or not _is_plain(module, x)
            or torch._C._len_torch_function_stack()
            or not module.joins(x, join)
        ):
            return plain(module, x)
        module._check_input_dim(x)
        of = _Normalized(module, x)
        self.waiting[id(of)] = of
        return Deferred(of)

    def end(self, result: Any) -> Any:
        """The result of the model, with elements; running statistics are updated of what nobody read."""
        if _here.call is not self:  # it was ended when another call began
            return result
        _here.call = self.frame = None
        for of in [*self.waiting.values()]:
            join = of.module.__dict__.get(JOIN)
            try:
                of.alone()
            except Exception:
                if result is not None:
                    raise
            # where the model raised an error, that is told, and what follows is as it was learnt
            if result is None:
                of.module.__dict__[JOIN] = join
        return result if type(result) in OWN else tree_map_only(Deferred, value, result)


class _Watching(TorchFunctionMode):
    """A call of a model that is watched for what follows normalizations."""

    def __init__(self, frame: int | None) -> None:
        super().__init__()
        self.frame = frame
        #: by the address of a result: itself, the module, its input and the version of that, and what was added
        self._seen: dict[int, tuple[ReferenceType[Tensor], Any, Tensor, int, Tensor | None, int]] = {}
        self._joins: dict[Any, str] = {}
        self._called: set[Any] = set()
        self._spoilt: set[Any] = set()
        self.has_found = False

    def normalized(self, module: Any, x: Tensor, plain: Callable[..., Any]) -> Any:
        y = plain(module, x)
        if module in self._called:
            self._spoilt.add(module)
        self._called.add(module)
        if type(y) in OWN and _is_plain(module, x):
            self._seen[id(y)] = ref(y), module, x, x._version, None, 0
        return y

    def activated(self, function: Any, plain: Any, x: Tensor, is_in_place: bool) -> Tensor:
        """A call of a converted activation, as one of torch's function: ours is not seen."""
        with torch._C.DisableTorchFunction():
            result: Tensor = plain(x)
        self._note(function, (x,), {"inplace": is_in_place}, result)
        return result

    def _known(self, one: Any) -> Any:
        found = self._seen.get(id(one)) if isinstance(one, Tensor) else None
        return found if found is not None and found[0]() is one else None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function not in _IDLE and self._seen:
            self._note(function, args, kwargs, result)
        return result

    def _note(self, function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """What a call that has returned means for what is known of its operands."""
        found = [known for one in tree_leaves((args, kwargs)) if (known := self._known(one)) is not None]
        if not found:
            return
        first, *others = [self._known(one) for one in args] or [None]
        if first is None and function in _SUMS and len(others) == 1:
            first, others = others[0], [first]
        joined = (
            first[1] if first is not None and self._follows(function, args, kwargs, first, result) else None
        )
        self._spoilt.update(known[1] for known in found if known[1] is not joined)

    def _follows(self, function: Any, args: Any, kwargs: Any, known: Any, result: Any) -> bool:
        """Whether a call is one that is put off, or ends what was; noted if it is."""
        own, module, x, version, z, z_version = known
        if function in _SUMS or function in _SUMS_IN_PLACE:
            other = args[1] if len(args) == 2 and args[0] is own() else args[0]
            if (
                kwargs or len(args) != 2 or z is not None or module in self._joins or type(other) not in OWN
                or other is own() or not batch_norm_sum.is_one(x, other, module.weight, module.bias)
            ):  # fmt: skip
                return False
            if result is not own():
                self._joins[module] = ""  # nothing else may follow
            self._seen[id(result)] = ref(result), module, x, version, other, other._version
            return True
        activation = _activation(function, args, kwargs)
        if activation is None or self._joins.get(module):
            return False
        if x._version != version or (z is not None and (z._version != z_version or activation[0] != "relu")):
            return False
        self._joins[module] = activation[0] if z is None else SUM
        if result is own():
            del self._seen[id(result)]  # what it is from now on is none of ours
        return True

    def end(self, result: Any) -> Any:
        if _here.call is not self:
            return result
        _here.call = self.frame = None
        self._seen.clear()
        if _get_current_function_mode() is self:  # behind an interrupt another may be inside
            self.__exit__(None, None, None)
        for module, join in self._joins.items() if result is not None else ():
            if join and module not in self._spoilt:
                module.__dict__[JOIN] = join
                self.has_found = True
        return result


Call = _Watching | _PuttingOff


def _end_interrupted(begun: int | None = None) -> None:
    """End a call of a model of which nobody told the end: PyTorch calls no hook where KeyboardInterrupt ends one."""
    call = _here.call
    if call is not None and not is_running(call.frame, begun):
        call.end(None)


def begin(model: nn.Module, has_joins: bool | None, frame: int | None = None) -> Call | None:
    """A call of a converted model begins; what is to be told when it ends, if anything is done.

    `has_joins`: what `found` said of the call that was watched; None if none was. `frame`: the id of that which
    calls the model's `forward`, which itself would keep its variables; None where the end is told whatever happens.
    """
    _end_interrupted(frame)
    if has_joins is False or not model.training or not torch.is_grad_enabled() or _here.call is not None:
        return None
    parameter = next(model.parameters(), None)
    if parameter is None or not parameter.is_cpu:
        return None
    if torch._C._len_torch_function_stack() or hooks_of_saved(False) is not None or not is_eager():
        return None
    if any(_is_seen(module) for module in model.modules() if module is not model):
        return None
    call: Call = _PuttingOff(frame)
    if has_joins is None:
        call = _Watching(frame)
        call.__enter__()
    _here.call = call
    return call


def _is_seen(module: nn.Module) -> bool:
    """Whether somebody may see what goes into a module or comes out of it."""
    return is_watched(module) or module._compiled_call_impl is not None


def found(call: Call) -> bool:
    """Whether there is something to put off, of a call that is over."""
    return isinstance(call, _PuttingOff) or call.has_found


def forget(model: nn.Module) -> None:
    """What was learnt."""
    for module in model.modules():
        module.__dict__.pop(JOIN, None)
