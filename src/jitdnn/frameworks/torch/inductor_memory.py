"""`memory_limit` for graphs that are compiled with gradients: what the forward pass keeps, and what runs again.

AOTAutograd divides the joint graph of a training step into a forward and a backward graph. PyTorch's own partitioner
takes a budget, the part of what it would keep that it may keep (`activation_memory_budget`), and solves a knapsack for
it; what that does to the peak of a step it does not say. So budgets are tried from the largest down, each division's
peak is followed node by node, and the first within the limit is taken.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from jitdnn import log
from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.settings import format_bytes, parse_bytes

try:
    from torch._inductor.custom_graph_pass import CustomPartitionerFn as _Base
except ImportError:  # before PyTorch 2.9
    _Base = object

SETTING = "custom_partitioner_fn"
BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
#: the node that makes it, and its number among the node's results
Storage: TypeAlias = tuple[fx.Node, int]
_Division: TypeAlias = tuple[int, fx.GraphModule, fx.GraphModule]
_REPEATS = 2


@dataclass(frozen=True)
class MemoryPlan:
    """How a training step of a compiled graph was divided.

    `peak`: bytes of tensors above the parameters, buffers and inputs, at the most; `unlimited` those without a limit.
    `budget`: the part of what PyTorch would keep that it was allowed. `rerun`: how many operators run twice;
    `seconds_lost`: what they took when each was run once by itself, None where one of them could not be.
    """

    limit: int | None
    peak: int
    unlimited: int
    budget: float
    rerun: int
    seconds_lost: float | None

    def __str__(self) -> str:
        lost = "" if self.seconds_lost is None else f", {self.seconds_lost:.3g} s more"
        within = "the least" if self.limit is None else f"within {format_bytes(self.limit)}"
        return (
            f"a step of {format_bytes(self.peak)}, {within} ({format_bytes(self.unlimited)} without a limit): "
            f"{self.rerun} operators run twice{lost}"
        )


class MemoryPartitioner(_Base):
    """A partitioner for Inductor that keeps a training step within `memory_limit`: bytes, text such as "512 MiB", or
    "least" for as few as possible.

    `plans` has what it decided, a plan for each graph; of graphs that Inductor finds in its cache, where they are kept
    with the limit, there is none. The bound is on the bytes of tensors of the graph's operators,
    each storage once, with gradients and results, above parameters, buffers and inputs; what Inductor fuses takes less,
    copies into other layouts that it adds, and workspace inside of operators, are not counted.
    """

    def __init__(self, memory_limit: int | str) -> None:
        self.limit = None if memory_limit == "least" else parse_bytes(memory_limit)
        if self.limit is None and memory_limit != "least":
            raise InvalidArgument(
                f"memory_limit is {shown(memory_limit)}: it must be bytes, text such as '512 MiB', or 'least'"
            )
        self.plans: list[MemoryPlan] = []

    def uuid(self) -> str:
        """What tells it from others in Inductor's cache of graphs."""
        return f"jitdnn memory_limit {self.limit} {BUDGETS}"

    def __deepcopy__(self, memo: Any) -> MemoryPartitioner:
        """Itself: settings of Inductor are copied, and who gave it asks it for its plans."""
        return self

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph. Raises InvalidArgument where no division is within the limit, with the
        least that one needs."""
        unlimited, best = 0, (1 << 62, 0.0)
        for budget in BUDGETS:
            found = self._within(gm, joint_inputs, budget, kwargs)
            unlimited = unlimited or found[0]
            best = min(best, (found[0], budget), key=lambda one: one[0])
            if self.limit is not None and found[0] <= self.limit:
                return self._taken(budget, unlimited, found)
        if self.limit is None:
            return self._taken(best[1], unlimited, self._within(gm, joint_inputs, best[1], kwargs))
        least = best[0]
        raise InvalidArgument(
            f"a limit of {format_bytes(self.limit)} ({self.limit} bytes) is too small: this graph needs at least "
            f"{least} bytes ({format_bytes(least)}) to be trained by PyTorch's partitioner. Raise the limit, make the "
            "batch smaller, or limit the model before it is compiled (jitdnn.torch.limit_memory)"
        )

    @staticmethod
    def _within(
        gm: fx.GraphModule, joint_inputs: Sequence[object], budget: float, kwargs: dict[str, Any]
    ) -> _Division:
        forward, backward = _divided(copy.deepcopy(gm), joint_inputs, budget, kwargs)
        return peak(forward, backward, kwargs["num_fwd_outputs"]), forward, backward

    def _taken(
        self, budget: float, unlimited: int, division: _Division
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        found, forward, backward = division
        rerun = again(forward, backward)
        plan = MemoryPlan(self.limit, found, unlimited, budget, len(rerun), seconds(rerun))
        self.plans.append(plan)
        log.chose("a training graph", plan)
        return forward, backward


def partitioner(memory_limit: Any, is_for_inductor: bool = True) -> MemoryPartitioner:
    """That of an option: a limit, or a partitioner itself. Raises InvalidArgument, and NotSupported where Inductor
    takes none."""
    if is_for_inductor:
        _require()
    return memory_limit if isinstance(memory_limit, MemoryPartitioner) else MemoryPartitioner(memory_limit)


def _require() -> None:
    """Raise NotSupported where Inductor takes no partitioner."""
    from torch._inductor import config

    if _Base is object or SETTING not in config.get_config_copy():
        raise NotSupported(
            f"PyTorch {torch.__version__} has no torch._inductor.config.{SETTING}, by which memory_limit comes into "
            "its graphs: use jitdnn.torch.convert(model, memory_limit=..., example=(images,)) before torch.compile"
        )


def _divided(
    graph: fx.GraphModule, inputs: Sequence[object], budget: float, kwargs: dict[str, Any]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with config.patch(activation_memory_budget=budget):
        forward, backward = min_cut_rematerialization_partition(graph, inputs, **kwargs)
    return forward, backward


def peak(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> int:
    """The most bytes of tensors in a step above what the forward graph is given.

    `results` of the forward graph's outputs are the caller's; the others are kept for the backward graph alone.
    """
    outputs = _outputs(forward)
    owner = _owners(forward)
    first = _followed(forward, {}, outputs)
    held = {key for node in outputs[:results] if node is not None for key in owner.get(node, ())}
    always = sum(_bytes(key) for key in held if key[0].op != "placeholder")
    # in the backward graph what was kept has the same name; gradients of results come behind
    names = {node.name: node for node in outputs if node is not None}
    given: dict[Storage, int] = {}
    seen: set[Storage] = set()
    for node in backward.graph.nodes:
        if node.op != "placeholder":
            continue
        source = names.get(node.name)
        if source is None:
            given[node, 0] = _bytes((node, 0))
            continue
        new = {key for key in owner.get(source, ()) if key[0].op != "placeholder"} - held - seen
        seen |= new
        given[node, 0] = sum(_bytes(key) for key in new)
    return max(first, always + _followed(backward, given, _outputs(backward)))


def _followed(graph: fx.GraphModule, given: dict[Storage, int], outputs: Sequence[fx.Node | None]) -> int:
    """The peak of a graph that is run node by node, with `given` bytes of its inputs, each gone after its last use."""
    owner = _owners(graph)
    nodes = list(graph.graph.nodes)
    last: dict[Storage, int] = {}
    for place, node in enumerate(nodes):
        for used in (node, *node.all_input_nodes):
            last.update((key, place) for key in owner.get(used, ()))
    for node in outputs:
        last.update((key, len(nodes)) for key in owner.get(node, ()) if node is not None)
    size = {key: given.get(key, 0) if key[0].op == "placeholder" else _bytes(key) for key in last}
    ends: dict[int, int] = {}
    for key, place in last.items():
        ends[place] = ends.get(place, 0) + size[key]
    now = most = sum(bytes for key, bytes in size.items() if key[0].op == "placeholder")
    for place, node in enumerate(nodes):
        if node.op != "placeholder":
            now += sum(size[key] for key in owner.get(node, ()) if key[0] is node)
        most = max(most, now)
        now -= ends.get(place, 0)
    return most


def _owners(graph: fx.GraphModule) -> dict[fx.Node | None, tuple[Storage, ...]]:
    """Of each node the storages behind its value: its own, or those of which it is a view."""
    found: dict[fx.Node | None, tuple[Storage, ...]] = {None: ()}
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            found[node] = ((node, 0),)
        elif node.op != "call_function":
            continue
        elif _is_item(node):
            parts = found.get(node.args[0], ())
            found[node] = tuple(part for part in parts if part[1] == node.args[1])
        elif isinstance(value, (tuple, list)):
            found[node] = tuple((node, number) for number in range(len(value)))
        else:
            base = _viewed(node)
            found[node] = ((node, 0),) if base is None else found.get(base, ())
    return found


def _is_item(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _viewed(node: fx.Node) -> fx.Node | None:
    """The argument that a node's result is a view of, or the same as; None for results of their own."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return None
    if not any(one.alias_info is not None for one in schema.returns):
        return None
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is not None and isinstance(value, fx.Node):
            return value
    return None


def _bytes(storage: Storage) -> int:
    """The bytes of a storage that a node makes; symbolic sizes count as they were traced."""
    node, number = storage
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        value = value[number]
    if not isinstance(value, Tensor):
        return 0
    extent = 1 if value.numel() else 0
    for size, stride in zip(value.shape, value.stride(), strict=True):
        extent += (_hint(size) - 1) * _hint(stride)
    found: int = max(0, extent) * value.element_size()
    return found


def _hint(number: Any) -> int:
    return int(number.node.hint if isinstance(number, torch.SymInt) else number)


def _outputs(graph: fx.GraphModule) -> list[fx.Node | None]:
    (found,) = [node.args[0] for node in graph.graph.nodes if node.op == "output"]
    return [
        one if isinstance(one, fx.Node) else None
        for one in tree_leaves(found, is_leaf=lambda one: one is None)
    ]


def again(forward: fx.GraphModule, backward: fx.GraphModule) -> list[fx.Node]:
    """The operators of the forward graph that the backward graph runs a second time."""
    names = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    return [
        node for node in backward.graph.nodes
        if node.op == "call_function" and node.name in names and not _is_item(node) and _viewed(node) is None
    ]  # fmt: skip


def seconds(nodes: Sequence[fx.Node]) -> float | None:
    """What these operators take, each run by itself on made-up numbers; None where one of them does not."""
    total = 0.0
    try:
        with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._guards.tracing(None):
            for node in nodes:
                total += _timed(node)
    except Exception as error:  # an operator that takes more than tensors and numbers
        log.fallback_once(("torch memory", str(error)), f"what runs twice in a graph is not timed: {error}")
        return None
    return total


def _timed(node: fx.Node) -> float:
    def made(one: Any) -> Any:
        value = one.meta.get("val") if isinstance(one, fx.Node) else one
        if isinstance(value, torch.SymInt):
            return _hint(value)
        if not isinstance(value, Tensor):
            return value
        shape, strides = [_hint(n) for n in value.shape], [_hint(n) for n in value.stride()]
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).zero_()

    target: Any = node.target
    args, kwargs = tree_map(made, node.args), tree_map(made, dict(node.kwargs))
    best = float("inf")
    for _ in range(_REPEATS):
        begin = perf_counter()
        target(*args, **kwargs)
        if any(isinstance(one, Tensor) and one.is_cuda for one in tree_leaves(args)):
            torch.cuda.synchronize()
        best = min(best, perf_counter() - begin)
    return best
