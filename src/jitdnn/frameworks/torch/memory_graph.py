"""A model whose blocks are no Sequential as a chain: its graph by torch.fx, cut wherever a single value passes.

    pieces = Pieces.of(model, inputs)
    modules = pieces.modules(model)        # to measure; the same parameters and buffers
    functions = pieces.functions()         # to run: of (model, value, ...), which read the model as it is then

A piece is what lies between two cuts, such as a residual block. Inputs of the model behind the first are given to every
piece. The graph is of the mode that the model is in when it is traced: what its forward decides by its own attributes
is decided then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Tracer(fx.Tracer):
    """Modules without modules inside are leaves, whoever wrote them; so are those whose hooks must run."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            super().is_leaf_module(m, module_qualified_name)
            or not any(True for _ in m.children())
            or any(getattr(m, hooks) for hooks in _HOOKS)
        )


@dataclass(frozen=True)
class Pieces:
    """The pieces of a model's graph, one after another, each with the value of the one before as its first argument.

    `names`: of the value that each gives. `arguments`: the names of the model's inputs, `fixed` those that are no
    tensors, with their values.
    """

    graphs: tuple[fx.Graph, ...]
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    fixed: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(model: nn.Module, inputs: Sequence[Any]) -> Pieces:
        """Those for such inputs. Raises InvalidArgument for a model whose graph torch.fx cannot trace, and for inputs
        that do not fit its forward."""
        return Pieces.traced(model, *_bound(model, inputs))

    @staticmethod
    def traced(model: nn.Module, arguments: Sequence[str], fixed: Mapping[str, Any]) -> Pieces:
        """Those of a model that is given so named tensors, and these values. Raises InvalidArgument as `of` does."""
        try:
            graph = _Tracer().trace(model, concrete_args=dict(fixed) or None)
        except Exception as error:  # whatever a forward raises of proxies
            raise InvalidArgument(
                f"the model is a {type(model).__qualname__}, whose graph torch.fx cannot trace "
                f"({type(error).__name__}: {str(error)[:200]}): chain=... names a torch.nn.Sequential or "
                f"torch.nn.ModuleList inside of the model{_inside(model)}"
            ) from None
        graphs, names = _cut(graph, arguments)
        return Pieces(tuple(graphs), tuple(names), tuple(arguments), tuple(fixed.items()))

    def modules(self, model: nn.Module) -> list[tuple[str, nn.Module]]:
        """Each piece as a module, with its name; they share the parameters, buffers and modules of the model."""
        return [
            (name, fx.GraphModule(model, graph)) for name, graph in zip(self.names, self.graphs, strict=True)
        ]

    def functions(self) -> list[Callable[..., Any]]:
        """Each piece as a function of the model, the value and what else the model is given."""
        return [_function(graph) for graph in self.graphs]

    def given(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors of a call of the model, in the order of `arguments`.

        Raises InvalidArgument where what is no tensor is another than that of the plan.
        """
        if not kwargs and not self.fixed and len(args) == len(self.arguments):
            return list(args)
        found = _signature(model).bind(*args, **kwargs)
        found.apply_defaults()
        for name, value in self.fixed:
            now = found.arguments[name]
            if isinstance(now, Tensor) or not (now is value or now == value):
                raise InvalidArgument(
                    f"{name} is {shown(now)}, and the limit on memory was planned for {shown(value)}: plan again, or "
                    "unlimit_memory"
                )
        return [found.arguments[name] for name in self.arguments]


def _inside(model: nn.Module) -> str:
    """The chains inside of a model, in words."""
    paths = [
        f"{name} ({len(module)} modules)"
        for name, module in model.named_modules()
        if name and type(module) in (nn.Sequential, nn.ModuleList) and len(module) > 1
    ]
    return f"; inside of it there are {', '.join(paths[:8])}" if paths else ""


def _signature(model: nn.Module) -> inspect.Signature:
    """That of the forward of the model's class, without its `self`."""
    signature = inspect.signature(type(model).forward)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _bound(model: nn.Module, inputs: Sequence[Any]) -> tuple[list[str], dict[str, Any]]:
    """The names of the arguments that are tensors, and the others with their values."""
    signature = _signature(model)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(one.kind in several for one in signature.parameters.values()):
        raise InvalidArgument(
            f"the forward of a {type(model).__qualname__} takes {signature}: its arguments must have names for the "
            "graph to be traced, or chain=... must name a part of the model"
        )
    try:
        found = signature.bind(*inputs)
    except TypeError as error:
        raise InvalidArgument(f"the inputs do not fit the model's forward{signature}: {error}") from None
    found.apply_defaults()
    arguments = [name for name, value in found.arguments.items() if isinstance(value, Tensor)]
    if not arguments:
        raise InvalidArgument("none of the inputs is a tensor: there is nothing to pass through the model")
    return arguments, {name: value for name, value in found.arguments.items() if name not in arguments}


def _cut(graph: fx.Graph, arguments: Sequence[str]) -> tuple[list[fx.Graph], list[str]]:
    """The graphs of the pieces, and the names of their results."""
    nodes = list(graph.nodes)
    place = {node: number for number, node in enumerate(nodes)}
    placeholders = {node.target: node for node in nodes if node.op == "placeholder"}
    first, others = placeholders[arguments[0]], [placeholders[name] for name in arguments[1:]]
    (result,) = nodes[-1].args
    pieces: list[list[fx.Node]] = [[]]
    values: list[fx.Node] = []
    alive: set[fx.Node] = {first}
    last_use = {node: max((place[user] for user in node.users), default=-1) for node in nodes}
    for node in nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        pieces[-1].append(node)
        alive.add(node)
        alive = {one for one in alive if last_use[one] > place[node]}
        is_last = all(one.op in ("output", "get_attr") for one in nodes[place[node] + 1 :])
        if alive == {node} and not is_last:
            values.append(node)
            pieces.append([])
    graphs, names = [], []
    before = first
    for number, members in enumerate(pieces):
        own = fx.Graph()
        known: dict[fx.Node, fx.Node] = {before: own.placeholder("value")}
        for name, node in zip(arguments[1:], others, strict=True):
            known[node] = own.placeholder(name)
        for node in members:
            for needed in node.all_input_nodes:
                if needed not in known and needed.op == "get_attr":
                    known[needed] = own.node_copy(needed, known.__getitem__)
            if any(one not in known for one in node.all_input_nodes):
                continue  # a check of an argument that is fixed
            known[node] = own.node_copy(node, known.__getitem__)
        if number < len(values):
            own.output(known[values[number]])
            before = values[number]
            names.append(values[number].name)
        else:
            own.output(fx.map_arg(result, known.__getitem__))
            names.append(members[-1].name if members else "result")
        own.lint()
        graphs.append(own)
    return graphs, names


def _function(graph: fx.Graph) -> Callable[..., Any]:
    code = graph.python_code("self")
    space: dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<a piece of a model's graph>", "exec"), space)
    found: Callable[..., Any] = space["forward"]
    return found
