"""Ours inside of Inductor: a pass over its graphs, and `torch.compile(model, backend="jitdnn_inductor")`.

The pass runs where Inductor's own on the graphs after the partition begin (`post_grad_custom_pre_pass` of its settings:
behind the packing of frozen weights, before activations join them). What wins becomes a call of `torch.ops.jitdnn.*`;
everything else stays Inductor's, CUDA graphs and autotuning included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from jitdnn import __version__
from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, InvalidType, NotSupported
from jitdnn.frameworks.torch.explain import Explanation, row
from jitdnn.frameworks.torch.inductor_memory import SETTING as PARTITIONER
from jitdnn.frameworks.torch.inductor_memory import partitioner
from jitdnn.frameworks.torch.options import SETTINGS, Options, is_disabled

try:
    from torch._inductor.custom_graph_pass import CustomGraphPass
except ImportError:  # said when it is asked for
    CustomGraphPass = object

HOOK = "post_grad_custom_pre_pass"
_VERSION = 16  # of what the pass does to a graph: graphs that Inductor has kept of another one are not used


class InductorPass(CustomGraphPass):
    """A pass of Inductor's that puts ours in the place of convolutions and their gradients, and on GPUs of the sums of
    normalizations, where they are faster.

        torch.compile(model, options={"post_grad_custom_pre_pass": jitdnn.torch.InductorPass()})

    (PyTorch 2.6 drops that option without a word: `backend="jitdnn_inductor"` works there too.) Each convolution of a
    graph is measured beside torch's kernel when the graph is compiled, unless a stored time decides. `options` are
    those of `jitdnn.torch.convert`; `measure="never"` takes ours wherever it does not refuse.

    `explanation` tells what became of the convolutions of the graphs that it saw last: graphs that Inductor took from
    its cache are not seen. `before`: another pass at the same place, which runs first.

    Raises NotSupported where this PyTorch has no such hook, InvalidArgument for unknown options, InvalidType if
    `before` cannot be called.
    """

    def __init__(self, *, before: Callable[[Graph], None] | None = None, **options: Any) -> None:
        _require()
        if before is not None and not callable(before):
            raise InvalidType(f"before is {shown(before)}: it must be a pass, which is called with a graph")
        self._text = str(Options.of(**options))
        self._before = before
        self._rows: list[Any] = []

    def __call__(self, graph: Graph) -> None:
        """Rewrite a graph in place."""
        if self._before is not None:
            self._before(graph)
        if is_disabled():
            return
        from torch._inductor import config

        from jitdnn.frameworks.torch import inductor_lowering
        from jitdnn.frameworks.torch.inductor_concatenation import concatenate_in_place
        from jitdnn.frameworks.torch.inductor_convolution_sums import sum_results
        from jitdnn.frameworks.torch.inductor_graph import Rewriter
        from jitdnn.frameworks.torch.inductor_groups import put_together
        from jitdnn.frameworks.torch.inductor_matmul import take_products
        from jitdnn.frameworks.torch.inductor_pooling import save_offsets_as_read, select_gradients
        from jitdnn.frameworks.torch.inductor_small import store_together
        from jitdnn.frameworks.torch.inductor_sums import sum_channels
        from jitdnn.frameworks.torch.inductor_transposed import become_products
        from jitdnn.frameworks.torch.inductor_values import compute_values

        _make_known()
        select_gradients(graph, inductor_lowering.can_concatenate)
        become_products(graph, self._text)
        is_captured = bool(config.triton.cudagraphs)
        rewriter = Rewriter(graph, self._text, is_captured)
        rewriter.run()
        save_offsets_as_read(graph)
        kinds = [*rewriter.kinds, *take_products(graph, self._text)]
        sum_channels(graph, self._text, is_captured)
        compute_values(graph, self._text, is_captured)
        sum_results(graph, self._text)
        if inductor_lowering.can_concatenate:
            concatenate_in_place(graph)
        if inductor_lowering.can_group:
            put_together(graph, rewriter.wants_last)
            store_together(graph)
        graph.lint()
        self._rows = [*self._rows[-10_000:], *(row(_layer(node), kind) for node, kind in kinds)]

    def uuid(self) -> Any:
        """What tells this pass from others in Inductor's cache of graphs; None, for no caching, with an unknown one."""
        _make_known()  # graphs that are kept call it, too
        first: Any = None
        if self._before is not None:
            first = getattr(self._before, "uuid", lambda: None)()
            if first is None:
                return None
        text = f"jitdnn {__version__} {_VERSION} {self._text} {is_disabled()} {first!r}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __deepcopy__(self, memo: Any) -> InductorPass:
        """Itself: settings of Inductor are copied, and what a pass has seen is told by the one that was given."""
        return self

    @property
    def explanation(self) -> Explanation:
        """The convolutions of the graphs seen, each direction with who runs it, the times and the reason."""
        return Explanation(tuple(self._rows))


def inductor(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's by Inductor with our pass: `torch.compile(model, backend="jitdnn_inductor")`.

    `mode` is one of `torch.compile`'s for Inductor ("reduce-overhead", "max-autotune", ...). `options` are those of
    `jitdnn.torch.convert`, settings of Inductor by their names, and "mode", since `torch.compile` takes either a mode
    or options. `memory_limit` bounds the memory of a training step (a `MemoryPartitioner`, or what one takes).
    Raises NotSupported where this PyTorch has no hook for the pass, InvalidArgument for an unknown mode or option.
    """
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, list(example_inputs), config_patches=patches(options, mode))  # type: ignore[no-any-return]


def patches(options: Mapping[str, Any] | None, mode: str | None) -> dict[str, Any]:
    """The settings of Inductor for a mode and options, with our pass. Raises as `inductor`."""
    _require()
    from torch._inductor import config, list_mode_options

    found: dict[str, Any] = {}
    options = dict(options or {})
    mode = options.pop("mode", mode)
    if mode not in (None, "default"):
        modes = list_mode_options()
        if mode not in modes:
            raise InvalidArgument(f"mode is {shown(mode)}: it must be one of {', '.join(sorted(modes))}")
        found.update(modes[mode])
    own: dict[str, Any] = {}
    known = config.get_config_copy()
    limit = options.pop("memory_limit", None)
    if limit is not None:
        divided = partitioner(limit)
        if not is_disabled():
            found[PARTITIONER] = divided
    for name, value in options.items():
        setting = str(name).replace("-", "_")
        if name in ("measure", *SETTINGS):
            own[name] = value
        elif setting in known:
            found[setting] = value
        else:
            raise InvalidArgument(
                f"there is no option {shown(name)}: there are measure, memory_limit, {', '.join(SETTINGS)}, and "
                "Inductor's settings"
            )
    before = found.get(HOOK, known[HOOK])
    if not is_disabled() or own:
        ours = InductorPass(before=_together(before), **own)
        if not is_disabled():
            found[HOOK] = ours
    return found


def _together(before: Any) -> Any:
    """Passes that Inductor is given already, of which newer versions take several, as one."""
    return _Several(tuple(before)) if isinstance(before, (list, tuple)) else before


class _Several:
    """Several passes one after another."""

    def __init__(self, passes: tuple[Any, ...]) -> None:
        self._passes = passes

    def __call__(self, graph: Graph) -> None:
        for one in self._passes:
            one(graph)

    def uuid(self) -> Any:
        names = [getattr(one, "uuid", lambda: None)() for one in self._passes]
        return None if None in names else repr(names)


def _require() -> None:
    """Raise NotSupported if Inductor has not what the pass needs."""
    missing = None
    if CustomGraphPass is object:
        missing = "torch._inductor.custom_graph_pass.CustomGraphPass"
    else:
        from torch._inductor import config

        if HOOK not in config.get_config_copy():
            missing = f"torch._inductor.config.{HOOK}"
    if missing is not None:
        raise NotSupported(
            f"PyTorch {torch.__version__} has no {missing}, by which ours come into Inductor's graphs (2.6 and later "
            'have it): use jitdnn.torch.convert before torch.compile, or torch.compile(backend="jitdnn")'
        )


def _make_known() -> None:
    """Tell Inductor what its code calls: seconds to import, unless Inductor compiles already."""
    from jitdnn.frameworks.torch.inductor_lowering import register

    register()


def _layer(node: Any) -> str:
    """The name of the module that a node of a graph comes from, as `named_modules` gives it; empty if unknown."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    for prefix in ("L['self'].", "L['fn'].", "L['self']"):
        path = path.removeprefix(prefix)
    return path.replace("_modules['", "").replace("']", "").removeprefix(".")
