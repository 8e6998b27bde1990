"""A model, or a block of code, on our operators: `convert` and `revert`, `use`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from torch import nn
from torch.overrides import TorchFunctionMode

from jitdnn import log
from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, InvalidType
from jitdnn.frameworks.torch import arena, memory_option, step_graphs, steps, timm_modules, together
from jitdnn.frameworks.torch.batch_norm_modules import CONVERTED, REVERTED, Sequential, is_block
from jitdnn.frameworks.torch.functional import routed
from jitdnn.frameworks.torch.memory import unlimit_memory
from jitdnn.frameworks.torch.modules import OPTIONS, OWN, PLACE
from jitdnn.frameworks.torch.options import Options, is_disabled, parse

Model = TypeVar("Model", bound=nn.Module)
Choice = Collection[Any] | Callable[[str, nn.Module], bool] | None


_UNCHANGED: Any = object()


def convert(
    model: Model,
    include: Choice = None,
    exclude: Choice = None,
    *,
    memory_limit: int | str | None = _UNCHANGED,
    example: Sequence[Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    chain: str = "",
    graphs: bool = False,
    **options: Any,
) -> Model:
    """Let the layers of a model run by ours wherever that is faster; returns the same model, converted in place.

        model = jitdnn.torch.convert(model)

    Only the classes of its modules change: parameters, buffers, `state_dict`, hooks and the optimizer's references stay
    what they are, and `revert` undoes it. Converted are the classes of `modules.CONVERTED`: convolutions, linear
    layers, normalizations, pools and activations; a module of a subclass of these is left alone, since it may compute
    something else, but for timm's `BatchNormAct2d`, `LayerNorm` and `LayerNorm2d`.

    `include`, `exclude`: names of modules as `named_modules` gives them, classes of modules, both with all modules
    inside of them (but "", the model, which is alone), or a function of (name, module), which is asked for each by
    itself; without `include` all are.
    `options`: `measure`, and settings of this library (`workspace_limit`, `total_workspace`, `math`, `accuracy`,
    `deterministic`, `threads`, ...): see `jitdnn.frameworks.torch.options`. Converted again, a model has the new
    options. With the environment's JITDNN_DISABLE=1 nothing is converted.

    `memory_limit`: a bound on the memory of a training step, by `limit_memory`, of a chain of modules: `model` itself
    or its part `chain`. It is planned for the inputs `example`, or for those of the first step (a forward pass in
    training mode with gradients; again when larger ones come), which takes as long as several steps. With `loss`, a
    function of the model's output, its memory counts. None takes a limit away.

    `graphs`: training steps on a GPU are captured, forward and backward, as CUDA graphs once no layer is new in them,
    and replayed (step_graphs.py): for models whose host is slower than the GPU. Layers are chosen by the GPU's time
    then. The model's `forward` must do the same in each step, without effects elsewhere; attributes of its modules are
    looked at, what else it reads is not. Steps with ever other shapes, with hooks inside or in evaluation run layer by
    layer. The memory of activations stays the graphs'.

    Raises InvalidType for what is no module, InvalidArgument for unknown options or names, for graphs with a limit on
    memory or of a model whose forward is an attribute of the instance, and for a limit that is too small or a model
    that is no chain; the latter two at the first step where there is no example.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"the model is {shown(model)}: it must be a torch.nn.Module")
    if graphs and memory_limit is not _UNCHANGED and memory_limit is not None:
        raise InvalidArgument(
            f"graphs is {shown(graphs)} and memory_limit {shown(memory_limit)}: steps that recompute are not captured; "
            "give one of the two"
        )
    if graphs:
        if memory_limit is _UNCHANGED:
            step_graphs.check(model)
        if options.get("measure", "first") == "first":
            options["measure"] = "kernels"
    text = str(Options.of(**options))
    timm_modules.register()
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    is_included = _predicate("include", include, names, True)
    is_excluded = _predicate("exclude", exclude, names, False)
    if is_disabled():
        return model
    if memory_limit is _UNCHANGED and (example is not None or loss is not None or chain):
        raise InvalidArgument("example, loss and chain are for memory_limit, which is not given")
    steps.forget(model)
    step_graphs.forget(model)
    together.forget(model)
    converted = []
    for name, module in model.named_modules():
        ours = CONVERTED.get(type(module), type(module) if type(module) in REVERTED else None)
        if is_block(module):
            ours = Sequential
        if ours is None:
            near = next((stock for stock in CONVERTED if isinstance(module, stock)), None)
            if near is not None and not is_excluded(name, module) and is_included(name, module):
                kind = type(module).__qualname__
                log.fallback_once(
                    ("torch module", kind),
                    f"modules of {kind} stay as they are: only those of exactly torch.nn.{near.__name__} are "
                    "converted, since a subclass may compute something else",
                )
        elif is_included(name, module) and not is_excluded(name, module):
            module.__class__ = ours
            module.__dict__[OPTIONS] = text
            if REVERTED[ours].__module__.startswith("torch."):
                module.__dict__[PLACE] = nn.__name__
            converted.append(module)
    if converted:
        arena.enter(model)
    if graphs:
        step_graphs.watch(model)
    if len(converted) > 1 and memory_limit is _UNCHANGED:
        if parse(text).measure == "first":
            steps.watch(model)
        together.watch(model, converted, has_hooks=not graphs)
    if memory_limit is not _UNCHANGED:
        memory_option.limited(model, memory_limit, example, loss, chain)
    return model


def revert(model: Model) -> Model:
    """Give the modules of a converted model torch's classes back, and take the limit on memory away that
    `convert` was given; returns the same model. Memory that was kept for results, and has none in it, goes back to the
    system (arena.py)."""
    if not isinstance(model, nn.Module):
        raise InvalidType(f"the model is {shown(model)}: it must be a torch.nn.Module")
    if memory_option.forget(model):
        unlimit_memory(model)
    steps.forget(model)
    step_graphs.forget(model)
    together.forget(model)
    for module in model.modules():
        stock = REVERTED.get(type(module))
        if stock is not None:
            module.__class__ = stock
            for name in OWN:
                module.__dict__.pop(name, None)
    arena.leave(model)
    return model


def is_converted(module: nn.Module) -> bool:
    """Whether a module itself, not one inside of it, is of a converted class."""
    return type(module) in REVERTED


def _predicate(
    argument: str, choice: Choice, names: Mapping[nn.Module, Sequence[str]], default: bool
) -> Callable[[str, nn.Module], bool]:
    """Whether a module is chosen; `names`: all modules, with all names that they have."""
    if choice is None:
        return lambda name, module: default
    if callable(choice) and not isinstance(choice, type):
        return choice
    if isinstance(choice, (str, type)) or not isinstance(choice, Collection):
        choice = [choice]
    wanted_names = {one for one in choice if isinstance(one, str)}
    classes = tuple(one for one in choice if isinstance(one, type))
    unknown = wanted_names.difference(*names.values())
    if unknown or len(wanted_names) + len(classes) < len(set(choice)):
        raise InvalidArgument(
            f"{argument} has {shown(sorted(unknown) or choice)}: it must be names of modules of the model, classes, or "
            "a function of (name, module)"
        )
    kinds = classes + tuple(CONVERTED[one] for one in classes if one in CONVERTED)
    chosen = {
        inside
        for module, own in names.items()
        if isinstance(module, kinds) or not wanted_names.isdisjoint(own)
        for inside in ([module] if own == [""] and not isinstance(module, kinds) else module.modules())
    }
    return lambda name, module: module in chosen


class use(TorchFunctionMode):  # noqa: N801  a context manager that reads as a verb
    """Run the convolutions of a `with` block by ours wherever that is faster; models stay as they are.

        with jitdnn.torch.use():
            loss = criterion(model(images), labels)
        loss.backward()        # the gradients of what ran in the block are ours too

    `options` are those of `convert`. It holds in the thread that entered it, compiled functions included, and may be
    entered again.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._text = str(Options.of(**options))
        self._is_disabled = is_disabled()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._is_disabled:
            return function(*args, **(kwargs or {}))
        return routed(function, args, kwargs or {}, self._text)
