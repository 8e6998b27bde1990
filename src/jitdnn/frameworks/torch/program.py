"""A captured graph as a list of calls over memory that is planned once: what runs for one kind of inputs.

Everything is prepared by running the graph once, node by node: which kernels run a group, ours or torch's, what lies
where, which results share memory. Results that do not leave the graph lie in one block of memory, an arena, in places
that are used again when their last reader has run. What runs later is one Python function that was written for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx import Graph, GraphModule, Node

from jitdnn.errors import DeviceError, JitdnnError
from jitdnn.frameworks.torch.choice import Decision, decide
from jitdnn.frameworks.torch.folded import Folded
from jitdnn.frameworks.torch.fused_memory import Budget, Footprint, Listing
from jitdnn.frameworks.torch.fusion import Group, fold_batch_norms, groups_of
from jitdnn.frameworks.torch.graph import is_random, value
from jitdnn.frameworks.torch.joined import replayed
from jitdnn.frameworks.torch.kernels import Kernel, Preparer, described, is_dense
from jitdnn.frameworks.torch.options import handle_of, parse
from jitdnn.frameworks.torch.pointwise import VIEWS
from jitdnn.frameworks.torch.progress import part, parts
from jitdnn.frameworks.torch.replaced import replacement, simplify
from jitdnn.frameworks.torch.writer import Item, Written
from jitdnn.handle import Handle

aten = torch.ops.aten
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Program:
    """A graph ready to run for inputs of the kind that it was made with.

    `traced`: the graph; its placeholders are the constants, then the inputs. `is_last`: convolutions write channels
    last. `shared` holds what programs of the same constants prepare of them. `decisions` says of each group and
    replaced operator who runs it; `needed` has the `id` of every tensor whose values it reads. With a `budget` kernels
    keep no more than that, and filters stay the model's own; with a Listing it is made to know what kernels could, and
    cannot run. Raises what the operators raise.
    """

    def __init__(
        self,
        traced: GraphModule,
        constants: Sequence[Tensor],
        inputs: Sequence[Tensor],
        options: str = "",
        is_last: bool = True,
        shared: dict[Any, Any] | None = None,
        handle: Handle | None = None,
        budget: Budget | Listing | None = None,
    ) -> None:
        self._handle = handle or handle_of(options)
        self._budget = budget
        self._filter_bytes = 0
        self._shared = {} if shared is None else shared
        self.decisions: list[tuple[str, Decision]] = []
        self.needed: frozenset[int] = frozenset()
        with torch.no_grad():
            self._written = self._prepare(
                copy.deepcopy(traced.graph), traced, constants, inputs, options, is_last
            )

    def __call__(self, *inputs: Tensor) -> list[Any]:
        """The outputs of the graph, in memory of their own."""
        return self._written(inputs)

    def join(self) -> None:
        """Have the next call join steps that follow each other, by filters as they are prepared then."""
        self._written.join()

    @property
    def nbytes(self) -> int:
        """Bytes of one arena."""
        return self._written.nbytes

    @property
    def footprint(self) -> Footprint:
        """What it takes; the workspace is that of all that runs by its handle, as far as it has run."""
        return Footprint(
            self._filter_bytes, self.nbytes, self._handle.usage.scratch, self._written.result_bytes
        )

    @property
    def text(self) -> str:
        """The function that runs the program."""
        return self._written.text

    def _prepare(
        self, graph: Graph, traced: GraphModule, tensors: Sequence[Tensor], inputs: Sequence[Tensor], options: str,
        is_last: bool,
    ) -> Written:  # fmt: skip
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        constants: dict[Node, Any] = dict(zip(placeholders, tensors, strict=False))
        given = placeholders[len(constants) :]
        for node in graph.nodes:
            if node.op == "get_attr":
                constants[node] = getattr(traced, node.target)
        _evaluate(graph, constants)
        simplify(graph)
        fold_batch_norms(graph, constants, self._shared, self._budget is None)
        env: dict[Node, Any] = dict(zip(given, inputs, strict=True))
        (output,) = (node for node in graph.nodes if node.op == "output")
        results = list(output.args[0]) if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
        group_at = {group.last: group for group in groups_of(graph, constants)}
        inner = {node for group in group_at.values() for node in group.nodes if node is not group.last}
        steps = _Steps(env, constants, self._handle, options, is_last, self._shared, self._budget)
        steps.leaving = {r for r in results if isinstance(r, Node)}
        readers = {node: len(node.users) for node in graph.nodes}
        ran = [
            node
            for node in graph.nodes
            if node.op not in ("placeholder", "output") and node not in constants and node not in inner
        ]
        with parts(len(ran)):
            for node in ran:
                group = group_at.get(node)
                with part():
                    if group is None:
                        steps.alone(node)
                    else:
                        steps.group(group)
                for read in (
                    r for one in ([node] if group is None else group.nodes) for r in one.all_input_nodes
                ):
                    readers[read] -= 1
                    if readers[read] == 0 and read not in given:
                        env.pop(read, None)  # what the whole graph holds at once may be more than memory
        self.decisions = steps.decisions
        read = [r for item in steps.items for r in item.reads if r is not None and r is not item.filter]
        self.needed = frozenset(
            id(constants.get(r)) if isinstance(r, Node) else id(r) for r in (*read, *results)
        )
        folded = [one.weight for one in self._shared.values() if isinstance(one, Folded)]
        copies = [*steps.weights.values(), *{id(w): w for w in folded if id(w) in self.needed}.values()]
        self._filter_bytes = sum(steps.kept.values()) + sum(one.nbytes for one in copies)
        wanted = [value(r) if isinstance(r, Node) else None for r in results]
        return Written(
            steps.items, given, constants, results, wanted, steps.strides, {n: frozenset([n]) for n in given},
            None if isinstance(self._budget, Listing) else self._handle.replayer,
        )  # fmt: skip


class _Steps:
    """The steps of a program as they are found, node by node, with what they compute of the first inputs."""

    def __init__(
        self,
        env: dict[Node, Any],
        constants: dict[Node, Any],
        handle: Handle,
        options: str,
        is_last: bool,
        shared: dict[Any, Any],
        budget: Budget | Listing | None,
    ) -> None:
        self.kept: dict[tuple[int, str], int] = {}  # bytes of filters that kernels of ours keep
        self.items: list[Item] = []
        self.decisions: list[tuple[str, Decision]] = []
        self.leaving: set[Node] = set()
        self.strides: dict[Node, tuple[int, ...]] = {n: tuple(t.stride()) for n, t in env.items()}
        self._env, self._constants = env, constants
        self._handle, self._options, self._is_last = handle, options, is_last
        self._bases: dict[Node, frozenset[Node]] = {node: frozenset([node]) for node in env}
        self._budget = budget
        self._preparer = Preparer(env, constants, handle, shared, budget)
        self.weights: dict[Node, Tensor] = {}  # of torch's kernels, channels last

    def group(self, group: Group) -> None:
        """Add what runs a group: our kernel, or torch's operators one by one."""
        kernel = self._kernel(group)
        if kernel is None:
            short = _before_views(group)
            if len(short.nodes) < len(group.nodes) and self._kernel(short) is not None:
                self.group(short)
                for node in group.nodes[len(short.nodes) :]:
                    self.alone(node)
                return
            for node in group.nodes:
                self.alone(node)
            return
        dtype = value(group.root).dtype
        out = kernel.allocate(_empty(dtype))
        if isinstance(self._budget, Listing):
            out.zero_()
        elif not self._is_ours(group, kernel, out):
            for node in group.nodes:
                self.alone(node)
            return
        if kernel.kept is not None:
            self.kept.update([kernel.kept])
        self._add(
            Item(
                group.last, kernel.operands, kernel.run, frozenset([group.last]), kernel.allocate, True,
                strides=tuple(out.stride()), dtype=dtype, filter=kernel.filter, over=kernel.over,
            ),
            out,
        )  # fmt: skip

    def _is_ours(self, group: Group, kernel: Kernel, out: Tensor) -> bool:
        """Whether our kernel is chosen, which has run then."""
        tensors = [out if o is None else self._tensor(o) for o in kernel.operands]
        addresses = [tensor.data_ptr() for tensor in tensors]
        decision = self._decide(
            f"torch fused {kernel.name} {'last' if self._is_last else 'first'} {group_text(group)}",
            lambda: kernel.run(addresses),
            lambda: self._stock(group),
        )
        if decision.is_ours:
            kernel.run(addresses)
        return decision.is_ours

    def _kernel(self, group: Group) -> Kernel | None:
        """Our kernel for a group, None where ours refuses it or a view would have to copy."""
        last = value(group.last)
        strides = tuple(last.stride()) if group.last in self.leaving and is_dense(last) else None
        try:
            return self._preparer.kernel(group, strides, self._is_last)
        except DeviceError:
            raise
        except (JitdnnError, RuntimeError):
            return None

    def _decide(self, name: str, ours: Callable[[], Any], stock: Callable[[], Any]) -> Decision:
        measured = parse(self._options).measure
        decision = decide(f"{name} {self._options}", self._handle, torch.device("cpu"), measured, ours, stock)
        self.decisions.append((name, decision))
        return decision

    def _tensor(self, operand: Node | Tensor) -> Any:
        if isinstance(operand, Tensor):
            return operand
        return self._constants[operand] if operand in self._constants else self._env[operand]

    def _stock(self, group: Group) -> None:
        """Run a group by torch's operators and forget what it gives."""
        made: dict[Node, Any] = {}
        for node in group.nodes:
            reads = _reads(node)
            tensors = [made[r] if r in made else self._tensor(r) for r in self._stock_reads(node, reads)]
            made[node] = caller(node, reads)(*tensors)
            for earlier in list(made)[:-1]:
                if earlier is not node and all(user in made for user in earlier.users):
                    made.pop(earlier)

    def _stock_reads(self, node: Node, reads: Sequence[Node]) -> list[Node | Tensor]:
        """The operands of a call of torch's: weights lie as its kernels read them fastest."""
        found: list[Node | Tensor] = list(reads)
        weight = node.args[1] if node.target is aten.convolution.default else None
        may_copy = self._is_last and self._budget is None
        if may_copy and isinstance(weight, Node) and weight in self._constants:
            tensor = self._constants[weight]
            form = _LAST.get(tensor.dim())
            if form is not None:
                if weight not in self.weights:
                    self.weights[weight] = tensor.contiguous(memory_format=form)
                found[reads.index(weight)] = self.weights[weight]
        return found

    def alone(self, node: Node) -> None:
        """Add a node that is no part of a group that ours runs."""
        reads = _reads(node)
        operands = self._stock_reads(node, reads)
        tensors = [self._tensor(read) for read in operands]
        call = caller(node, reads)
        held = value(node)
        if isinstance(held, Tensor) and held.numel() and all(isinstance(t, Tensor) for t in tensors):
            found = None
            if node.target is not aten.convolution.default:
                found = replacement(node, tensors, self._handle)
            if found is not None and self._replaced(node, found, call, tensors):
                return
        result = call(*tensors)
        made = {_memory(tensor) for tensor in _tensors_in(result)}
        shared = {
            r: made & {_memory(t) for t in _tensors_in(read)}
            for r, read in zip(operands, tensors, strict=True)
        }
        bases: frozenset[Node] = frozenset(
            base
            for r, same in shared.items()
            if same and isinstance(r, Node)
            for base in self._bases.get(r, ())
        )
        is_view = bool(made) and made == set().union(*shared.values())
        if not is_view:
            bases |= {node}
        strides = tuple(result.stride()) if isinstance(result, Tensor) else None
        self._add(Item(node, tuple(operands), call, bases, is_view=is_view, strides=strides), result)

    def _replaced(self, node: Node, found: Any, call: Callable[..., Any], tensors: Sequence[Any]) -> bool:
        held = value(node)

        def allocate(empty: Callable[[Sequence[int], Sequence[int]], Tensor]) -> Tensor:
            return empty(tuple(held.shape), found.strides)

        out = allocate(_empty(held.dtype))
        own = [self._tensor(read) for read in found.reads]
        kinds = ", ".join(str(described(t)) for t in own)
        decision = self._decide(
            f"torch {node.target} {kinds} {_plain_arguments(node)} joined",
            replayed(lambda: found.run(*own, out), own, out, self._handle.replayer),
            lambda: call(*tensors),
        )
        if not decision.is_ours:
            return False
        found.run(*own, out)
        item = Item(
            node,
            (*found.reads, None),
            found.run,
            frozenset([node]),
            allocate,
            strides=found.strides,
            dtype=held.dtype,
            is_ours=True,
        )
        self._add(item, out)
        return True

    def _add(self, item: Item, result: Any) -> None:
        self.items.append(item)
        self._env[item.node] = result
        self._bases[item.node] = item.bases
        if item.strides is not None:
            self.strides[item.node] = item.strides


def group_text(group: Group) -> str:
    """The operators of a group, in words that tell it from others that compute the same."""
    return " ".join(str(node.target) for node in group.nodes)


def _plain_arguments(node: Node) -> str:
    plain = [a for a in node.args if not isinstance(a, Node)]
    return f"{plain} { ({k: v for k, v in node.kwargs.items() if not isinstance(v, Node)}) }"


def _before_views(group: Group) -> Group:
    """The part of a group before its first view."""
    for number, node in enumerate(group.nodes):
        if node.target in VIEWS:
            return Group(group.nodes[:number])
    return group


def _empty(dtype: torch.dtype) -> Callable[[Sequence[int], Sequence[int]], Tensor]:
    return lambda shape, strides: torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


def _tensors_in(held: Any) -> list[Tensor]:
    """The tensors of a value of a graph, which is one or a list of such."""
    parts = held if isinstance(held, (list, tuple)) else [held]
    return [part for part in parts if isinstance(part, Tensor)]


def _evaluate(graph: Graph, constants: dict[Node, Any]) -> None:
    """Compute what depends on constants alone."""
    for node in graph.nodes:
        if node.op != "call_function" or is_random(node) or node in constants:
            continue
        reads = _reads(node)
        if all(read in constants for read in reads):
            constants[node] = caller(node, reads)(*(constants[read] for read in reads))


def _reads(node: Node) -> list[Node]:
    return list(node.all_input_nodes)


def _group_norm(x: Tensor, *others: Any) -> Any:
    """PyTorch's operator, whose kernel refuses an x that is dense in no order of its own.

    The copy that `torch.nn.functional.group_norm` makes of such an x is missing from a graph where capturing gave x
    other strides than calls do: a batch of one behind attention.
    """
    return aten.native_group_norm.default(x.contiguous(memory_format=suggest_memory_format(x)), *others)


def _attention(query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Any:
    """PyTorch's operator, whose kernel takes the last axis for contiguous, as it was when the graph was captured.

    `torch.nn.functional.scaled_dot_product_attention` goes another way where it is not.
    """
    rows = [x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value)]
    return aten._scaled_dot_product_flash_attention_for_cpu.default(*rows, *others, **named)


_BY_STRIDES = (aten.as_strided.default, aten.view_as_complex.default, aten.view.dtype)


def _as_captured(target: Any, held: Tensor) -> Callable[..., Any]:
    """An operator whose meaning is that of its operand's strides, which are those of `held` then."""
    shape, strides = tuple(held.shape), tuple(held.stride())

    def call(x: Tensor, *others: Any, **named: Any) -> Any:
        if x.stride() != strides:
            x = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device).copy_(x)
        return target(x, *others, **named)

    return call


def caller(node: Node, reads: Sequence[Node]) -> Callable[..., Any]:
    """A function of what the node reads, in order: a call of its operator with the other arguments fixed."""
    target: Any = node.target
    if target in (aten.view.default, aten._unsafe_view.default):
        target = aten.reshape.default  # of a tensor that lies otherwise than when captured it may be a copy
    elif target is aten.native_group_norm.default:
        target = _group_norm
    elif target is aten._scaled_dot_product_flash_attention_for_cpu.default:
        target = _attention
    elif target in _BY_STRIDES and isinstance(node.args[0], Node):
        target = _as_captured(target, value(node.args[0]))
    names = {read: f"a{number}" for number, read in enumerate(reads)}
    space: dict[str, Any] = {"target": target}

    def word(argument: Any) -> str:
        if isinstance(argument, Node):
            return names[argument]
        if isinstance(argument, (list, tuple)) and any(isinstance(a, Node) for a in argument):
            return f"[{', '.join(map(word, argument))}]"
        key = f"k{len(space)}"
        space[key] = list(argument) if isinstance(argument, list) else argument
        return key

    words = [word(a) for a in node.args] + [f"{name}={word(a)}" for name, a in node.kwargs.items()]
    text = f"lambda {', '.join(names.values())}: target({', '.join(words)})"
    made: Callable[..., Any] = eval(compile(text, "<jitdnn call>", "eval"), space)
    return made
