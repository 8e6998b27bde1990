"""The Python function that runs a prepared graph: one line for each call, tensors freed after their last reader.

What can be known before a call is: addresses in an arena, views of it. They are bound once for each arena.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from jitdnn import log
from jitdnn.devices.launch_list import LaunchList
from jitdnn.frameworks.torch.joined import NOTHING, Replay, Step, Stretch, stretches
from jitdnn.graph.arena import Need, place
from jitdnn.locks import lock
from jitdnn.recorders import recorders

_MOST_IDLE = 2  # arenas that wait for a call
LEAST_OVER = (
    2 << 20
)  # bytes of a result that lies over an operand: a cache holds smaller ones, wherever they lie


@dataclass(frozen=True)
class Item:
    """One step. It writes memory of its own (`allocate`), or it is a call that returns what it makes.

    `reads`: the operands in order, nodes or constant tensors; None stands for the step's own result. `run` takes their
    addresses where `is_addressed`, else the tensors themselves. `bases`: the nodes in whose memory the result lies.
    `is_view`: the result lies in memory of what it reads, and nothing is computed. `strides`: of the result, where it
    is one tensor. `filter`: the one of `reads` whose values it does not read, but what is prepared of them. `over`:
    those of `reads` in whose memory the result may lie. `is_ours`: all that it does is to launch kernels of ours.
    """

    node: Node
    reads: tuple[Node | Tensor | None, ...]
    run: Callable[..., Any]
    bases: frozenset[Node]
    allocate: Callable[[Callable[[Sequence[int], Sequence[int]], Tensor]], Tensor] | None = None
    is_addressed: bool = False
    is_view: bool = False
    strides: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    filter: Node | Tensor | None = None
    over: tuple[Node, ...] = ()
    is_ours: bool = False

    @property
    def nodes(self) -> list[Node]:
        """The nodes that it reads."""
        return [read for read in self.reads if isinstance(read, Node)]


def bytes_of(item: Item) -> int:
    """Bytes of the memory that a step writes."""
    sizes: list[int] = []

    def empty(shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        span = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
        sizes.append(span * torch.empty((), dtype=item.dtype).element_size())
        return torch.empty_strided(shape, strides, dtype=item.dtype, device="meta")

    assert item.allocate is not None
    item.allocate(empty)
    return sizes[0]


def _taken_over(
    item: Item, step: int, bases: Mapping[Node, frozenset[Node]], last: Mapping[Node, int]
) -> Node | None:
    """The node whose memory the result of a step may take: nobody reads it later, and the step only in that order."""
    for read in item.over:
        nodes = list(item.nodes)
        nodes.remove(read)  # once: what is also read in another order is among the rest
        others = {base for other in nodes for base in bases.get(other, ())}
        found = bases.get(read, frozenset())
        if len(found) == 1 and not found & others:
            (base,) = found
            if last[base] == step:
                return base
    return None


_ARENA = -1  # in place of the number of a step: the arena's address


class Written:
    """The function of some steps. It may be called by several threads at a time; each takes an arena of its own.

    `replayer` makes a function of a list of launches, by which steps that follow each other are joined (joined.py).
    """

    def __init__(
        self,
        items: Sequence[Item],
        inputs: Sequence[Node],
        constants: Mapping[Node, Any],
        results: Sequence[Any],
        wanted: Sequence[Any],
        strides: Mapping[Node, tuple[int, ...]],
        input_bases: Mapping[Node, frozenset[Node]],
        replayer: Callable[[LaunchList], Replay] | None = None,
    ) -> None:
        self._constants = constants
        self._lock = lock()
        self._idle: list[tuple[list[Any], dict[int, Any]]] = []
        bases = {**input_bases, **{item.node: item.bases for item in items}}
        self._copied = {
            number: (tuple(want.shape), tuple(want.stride()))
            for number, (result, want) in enumerate(zip(results, wanted, strict=True))
            if isinstance(result, Node) and isinstance(want, Tensor) and result not in constants
            and _differs(strides.get(result), want)
        }  # fmt: skip
        leaving = {
            base
            for number, result in enumerate(results)
            if isinstance(result, Node) and number not in self._copied
            for base in bases.get(result, ())
        }
        own = {item.node for item in items if item.allocate is not None and item.node not in leaving}
        self._static = [
            item
            for item in items
            if item.node in own or (item.is_view and all(base in own for base in item.bases) and item.bases)
        ]
        static = {item.node for item in self._static}
        last: dict[Node, int] = {}
        for step, item in enumerate(items):
            for read in item.nodes:
                for base in bases.get(read, ()):
                    last[base] = step
        for number in self._copied:
            for base in bases[results[number]]:
                last[base] = len(items)
        ours = [(step, item) for step, item in enumerate(items) if item.node in own]
        needs: dict[Node, Need] = {}
        homes: dict[Node, Node] = {}  # in whose place a result lies
        for step, item in ours:
            need = Need(bytes_of(item), step, max(step, last.get(item.node, step)))
            taken = _taken_over(item, step, bases, last)
            home = homes.get(taken, taken) if taken in own else None
            if home is not None and needs[home].bytes == need.bytes >= LEAST_OVER:
                need = Need(need.bytes, needs[home].first, need.last)
            else:
                home = item.node
            needs[home], homes[item.node] = need, home
        offsets, self.nbytes = place(list(needs.values()))
        self.result_bytes = _outside(items, own, leaving, last)
        copies = (wanted[number] for number in self._copied)
        self.result_bytes += sum(one.numel() * one.element_size() for one in copies)
        offset_of = dict(zip(needs, offsets, strict=True))
        self._offsets = {node: offset_of[home] for node, home in homes.items()}
        self.text = ""
        self._addressed: dict[int, list[Any]] = {}
        self._write_joined = partial(self._write, items, inputs, static, results, strides)
        self._function = self._apart = self._write_joined(())
        self._join: Callable[..., None] | None = None
        if replayer is not None:
            self._join = partial(self._join_steps, items, static, replayer)
        self._is_to_join = False

    def join(self) -> None:
        """Have the next call join steps, anew where they are joined: launches keep the prepared filters that they
        read."""
        with self._lock:
            self._function = self._apart
            self._is_to_join = self._join is not None

    def __call__(self, inputs: Sequence[Tensor]) -> list[Any]:
        try:
            bound = self._idle.pop()
        except IndexError:
            bound = self._bind()
        if self._is_to_join and not recorders:
            with self._lock:
                if self._is_to_join and self._join is not None:
                    self._join(*bound)
                    self._is_to_join = False
        # who records launches wants to see each of them
        function = self._apart if recorders else self._function
        results: list[Any] = function(*bound, *inputs)
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(bound)
        return results

    def _bind(self) -> tuple[list[Any], dict[int, Any]]:
        """An arena: its tensors and views by number, and the addresses that kernels get by step."""
        memory = torch.empty(self.nbytes + 64, dtype=torch.uint8)
        start = -memory.data_ptr() % 64
        held: dict[Node, Any] = {}
        tensors: list[Any] = []
        for item in self._static:
            if item.allocate is not None:
                offset = start + self._offsets[item.node]
                held[item.node] = item.allocate(_piece(memory, offset, item.dtype))
            else:
                held[item.node] = item.run(
                    *(self._constants.get(r, held.get(r)) if isinstance(r, Node) else r for r in item.reads)
                )
            tensors.append(held[item.node])
        addresses = {}
        for step, reads in self._addressed.items():
            addresses[step] = tuple(
                read if isinstance(read, int) else held[read].data_ptr() for read in reads
            )
        addresses[_ARENA] = (memory.data_ptr() + start,)
        tensors.append(memory)
        return tensors, addresses

    def _join_steps(
        self,
        items: Sequence[Item],
        static: set[Node],
        replayer: Callable[[LaunchList], Replay],
        tensors: Sequence[Any],
        addresses: Mapping[int, Any],
    ) -> None:
        """Write the function anew with steps joined that an arena's tensors and addresses are known of beforehand."""
        if log.is_enabled(logging.DEBUG):
            return  # each kernel that runs is logged
        held = {item.node: tensor for item, tensor in zip(self._static, tensors, strict=False)}
        runs: list[list[Step]] = [[]]
        for number, item in enumerate(items):
            if item.node in static and item.allocate is None:
                continue
            is_known = item.node in static and all(
                not isinstance(read, Node) or read in static or read in self._constants for read in item.reads
            )
            if not is_known or not (item.is_addressed or item.is_ours):
                runs.append([])
                continue
            given = [
                NOTHING if read is item.filter and read is not None
                else held[item.node] if read is None
                else read if isinstance(read, Tensor)
                else self._constants[read] if read in self._constants
                else held[read]
                for read in item.reads
            ]  # fmt: skip
            constants = [
                one
                for one, read in zip(given, item.reads, strict=True)
                if isinstance(read, Tensor) or read in self._constants
            ]
            places = [one.data_ptr() for one in given]
            call = partial(item.run, places) if item.is_addressed else partial(item.run, *given)
            runs[-1].append(Step(number, call, constants))
        (start,) = addresses[_ARENA]
        memory = tensors[-1]
        arena = memory[start - memory.data_ptr() :]
        found = stretches(runs, arena, replayer)
        if found:
            self._function = self._write_joined(found)

    def _write(
        self,
        items: Sequence[Item],
        inputs: Sequence[Node],
        static: set[Node],
        results: Sequence[Any],
        strides: Mapping[Node, tuple[int, ...]],
        joined: Sequence[Stretch],
    ) -> Callable[..., list[Any]]:
        number_of = {item.node: number for number, item in enumerate(self._static)}
        space: dict[str, Any] = {"fix": _with_strides}
        names: dict[Node, str] = {node: f"i{number}" for number, node in enumerate(inputs)}
        last: dict[Node, int] = {}
        for step, item in enumerate(items):
            for read in item.nodes:
                last[read] = step
        for result in results:
            if isinstance(result, Node):
                last[result] = len(items)

        def name(read: Node | Tensor) -> str:
            if isinstance(read, Tensor) or read in self._constants:
                tensor = read if isinstance(read, Tensor) else self._constants[read]
                key = f"c{id(tensor)}"
                space[key] = tensor
                return key
            return f"T[{number_of[read]}]" if read in static else names[read]

        def known(read: Node | Tensor | None, item: Item) -> Any:
            """The address, the static node that has it, or None for one that only the call has."""
            if read is None:
                return item.node if item.node in static else None
            if isinstance(read, Tensor) or read in self._constants:
                tensor = read if isinstance(read, Tensor) else self._constants[read]
                name(read)  # keeps it alive
                return tensor.data_ptr()
            return read if read in static else None

        lines = [f"def run({', '.join(['T', 'A', *names.values()])}):"]
        addressed: dict[int, list[Any]] = {}
        begins = {stretch.first: stretch for stretch in joined}
        until = -1
        checked: set[Node] = set(inputs)
        for step, item in enumerate(items):
            node = item.node
            if step in begins:
                until = begins[step].last
                space[f"l{step}"] = begins[step].run
                lines.append(f" l{step}(A[{_ARENA}])")
            if step <= until or (node in static and item.allocate is None):
                continue
            if node not in static:
                names[node] = f"v{step}"
            space[f"f{step}"] = item.run
            if item.allocate is not None and node not in static:
                space[f"a{step}"] = _maker(item)
                lines.append(f" v{step} = a{step}()")
            if item.is_addressed:
                for read in item.nodes:
                    if read in names and read not in checked and read in strides:
                        checked.add(read)
                        space[f"s{step}_{names[read]}"] = strides[read]
                        lines.append(
                            f" if {names[read]}.stride() != s{step}_{names[read]}: "
                            f"{names[read]} = fix({names[read]}, s{step}_{names[read]})"
                        )
                places = [known(read, item) for read in item.reads]
                if all(one is not None for one in places):
                    addressed[step] = places
                    lines.append(f" f{step}(A[{step}])")
                else:
                    fixed = [one for one in places if one is not None]
                    addressed[step] = fixed
                    words, at = [], 0
                    for read, one in zip(item.reads, places, strict=True):
                        if one is None:
                            words.append(f"{names[node] if read is None else name(read)}.data_ptr()")
                        else:
                            words.append(f"p[{at}]")
                            at += 1
                    lines.append(f" p = A[{step}]; f{step}(({', '.join(words)},))")
            else:
                words = [name(node if read is None else read) for read in item.reads]
                kept = "" if item.allocate is not None else f"v{step} = "
                lines.append(f" {kept}f{step}({', '.join(words)})")
            dead = [r for r in dict.fromkeys([*item.nodes, node]) if r in names and last.get(r, step) == step]
            for read in dead:
                lines.append(f" {names[read]} = None")
        words = []
        for number, result in enumerate(results):
            if not isinstance(result, Node):
                space[f"r{number}"] = result
                words.append(f"r{number}")
            elif number in self._copied:
                space[f"r{number}"] = self._copied[number][1]
                words.append(f"fix({name(result)}, r{number})")
            else:
                words.append(name(result))
        lines.append(f" return [{', '.join(words)}]")
        if not joined:
            self._addressed = addressed
        self.text = "\n".join(lines)
        exec(compile(self.text, "<jitdnn program>", "exec"), space)
        return space["run"]  # type: ignore[no-any-return]


def _outside(items: Sequence[Item], own: set[Node], leaving: set[Node], last: Mapping[Node, int]) -> int:
    """The most bytes of results outside of the arena that are there at once; those that leave stay to the end."""
    needs = [
        Need(_held_bytes(item.node), step, len(items) if item.node in leaving else last.get(item.node, step))
        for step, item in enumerate(items)
        if item.node not in own and not item.is_view
    ]
    return place(needs)[1]


def _held_bytes(node: Node) -> int:
    held = node.meta.get("val")
    parts = held if isinstance(held, (list, tuple)) else [held]
    return sum(part.numel() * part.element_size() for part in parts if isinstance(part, Tensor))


def _differs(strides: tuple[int, ...] | None, want: Tensor) -> bool:
    """Whether strides are others than wanted; those of axes of one element do not matter."""
    if strides is None:
        return False
    return any(a != b for a, b, n in zip(strides, want.stride(), want.shape, strict=True) if n > 1)


def _piece(
    memory: Tensor, offset: int, dtype: torch.dtype | None
) -> Callable[[Sequence[int], Sequence[int]], Tensor]:
    def empty(shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        whole = torch.empty((), dtype=dtype)
        return whole.set_(
            memory.untyped_storage(), offset // whole.element_size(), tuple(shape), tuple(strides)
        )

    return empty


def _maker(item: Item) -> Callable[[], Tensor]:
    """What allocates the result of a step anew for each call."""
    allocate, dtype = item.allocate, item.dtype
    assert allocate is not None
    return lambda: allocate(
        lambda shape, strides: torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
    )


def _with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """A copy that lies in memory by these strides."""
    return torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype).copy_(tensor)
