"""What a converted model runs: every layer and direction with its algorithm, time, workspace and error bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from jitdnn.frameworks.torch import step_graphs, steps
from jitdnn.frameworks.torch.choice import Decision
from jitdnn.frameworks.torch.convert import is_converted
from jitdnn.frameworks.torch.convolution import bias_epilogue
from jitdnn.frameworks.torch.kinds import Kind, observers
from jitdnn.frameworks.torch.options import is_disabled
from jitdnn.frameworks.torch.sync_batch_norm import UNSEEING
from jitdnn.planner.plan import Plan
from jitdnn.settings import format_bytes


@dataclass(frozen=True)
class Row:
    """One layer in one direction. Times are in seconds, the workspace is in bytes; None where nothing was measured, or
    where torch's own kernel runs.

    `direction`: "forward", "data", "filter" or "bias"; "whole" where a layer on a GPU runs by torch's own function in
    all of them; "step", of no layer, for whole steps of the model on a GPU, which run by torch's functions alone where
    these are faster, or what became of each kind of steps that graphs were asked for. `runs`: "jitdnn" or "torch", for
    the `reason`. `algorithm`, its `workspace` and its `error_bound` (relative) are those of ours, chosen or not.
    """

    layer: str
    direction: str
    runs: str
    reason: str
    problem: str
    algorithm: str | None = None
    seconds: float | None = None
    stock_seconds: float | None = None
    workspace: int | None = None
    error_bound: float | None = None


@dataclass(frozen=True)
class Explanation:
    """The rows of a model, which print as a table; `left_alone` are the layers that are not converted."""

    rows: tuple[Row, ...]
    left_alone: tuple[str, ...] = ()

    def __str__(self) -> str:
        cells = [
            (
                "layer",
                "direction",
                "runs",
                "ms",
                "torch ms",
                "algorithm",
                "workspace",
                "error bound",
                "reason",
            )
        ]
        for row in self.rows:
            workspace = "" if row.workspace is None else format_bytes(row.workspace)
            bound = "" if row.error_bound is None else f"{row.error_bound:.1e}"
            cells.append(
                (
                    row.layer, row.direction, row.runs, _milliseconds(row.seconds), _milliseconds(row.stock_seconds),
                    row.algorithm or "", workspace, bound, row.reason,
                )
            )  # fmt: skip
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells
        ]
        return "\n".join(line.rstrip() for line in lines)


def explain(model: nn.Module, *inputs: Any, gradients: bool | None = None, **named: Any) -> Explanation:
    """Run a model once and tell what its convolutions ran by, each beside torch's own kernel.

        print(jitdnn.torch.explain(model, images))

    `inputs` and `named` are what the model is called with. `gradients`: whether the backward pass is run and told too;
    by default in training mode. No parameter, `.grad` or buffer changes. Of a model that is not converted only the
    convolutions inside of `jitdnn.torch.use` or `install` are told.
    """
    rows: dict[tuple[str, str, str], Row] = {}
    names: dict[int, str] = {}
    read: dict[int, str] = {}
    running: list[str] = []
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for address in _addresses(tuple(module.parameters(recurse=False))):
            owners.setdefault(address, []).append(name)

    def observe(kind: Kind, operands: tuple[Any, ...]) -> None:
        # the backward pass runs by itself: its operands tell of which layer it is, parameters before inputs
        if running:
            layer = _owner(owners, operands, running[-1])
            names.update(dict.fromkeys(_addresses(operands[1:]), layer))
            read.update(dict.fromkeys(_addresses(operands[:1]), layer))
        else:
            known = [names[p] for p in _addresses(operands) if p in names]
            known += [read[p] for p in _addresses(operands[1:2]) if p in read]
            if kind.name == "bias":  # of the gradient of the result alone, behind the filter's
                known += [row.layer for row in rows.values()][-1:]
            layer = known[0] if known else ""
        found = row(layer, kind)
        rows.setdefault((found.layer, found.direction, found.problem), found)

    whole = steps.decision(model)
    with_gradients = model.training if gradients is None else gradients
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with _entered(model, running), torch.set_grad_enabled(with_gradients):
        observers.append(observe)
        try:
            result = model(*inputs, **named)
            if with_gradients:
                _backward(model, result)
        finally:
            observers.remove(observe)
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])
    left = tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.conv._ConvNd) and not is_converted(module)
    )
    told = [] if whole is None else [row("", Kind("step", whole, model))]
    captures = step_graphs.of(model)
    if captures is not None:
        told += [row("", Kind("step", Decision(True, why), model)) for why in captures.reasons]
    return Explanation((*told, *rows.values()), () if is_disabled() else left)


@contextmanager
def _entered(model: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are running, the innermost last."""
    hooks = []

    def leave(*_: Any) -> None:
        running.pop()

    UNSEEING.add(leave)
    for name, module in model.named_modules():

        def enter(*_: Any, name: str = name) -> None:
            running.append(name)

        UNSEEING.add(enter)
        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _owner(owners: dict[int, list[str]], operands: tuple[Any, ...], running: str) -> str:
    """The layer whose parameters an operation reads: of a sequence that is `running` some are one operation."""
    found = [name for address in _addresses(operands[1:]) for name in owners.get(address, ())]
    return running if not found or running in found else found[0]


def _addresses(operands: tuple[Any, ...]) -> list[int]:
    """Where the tensors lie that a layer keeps for its backward pass: filters and weights before images."""
    return [one.data_ptr() for one in operands if isinstance(one, Tensor)][::-1]


def _backward(model: nn.Module, result: Any) -> None:
    """Run the backward pass of everything that has a gradient in a result, and drop the gradients."""
    outputs = [one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, Tensor)]
    outputs = [one for one in outputs if one.requires_grad]
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if outputs and wanted:
        ones = [torch.ones_like(one) for one in outputs]
        torch.autograd.grad(outputs, wanted, ones, allow_unused=True)


def row(layer: str, kind: Kind) -> Row:
    """What a layer ran by, of a call of one kind."""
    decision = kind.decision
    runs = "jitdnn" if decision.is_ours else "torch"
    plan = _plan(kind)
    found = Row(
        layer, kind.name, runs, decision.reason, str(kind.problem or ""), seconds=decision.seconds,
        stock_seconds=decision.stock_seconds,
    )  # fmt: skip
    if plan is None:
        return found
    (chosen,) = (candidate for candidate in plan.candidates if candidate.chosen)
    return Row(
        layer, kind.name, runs, decision.reason, found.problem, plan.algorithm, found.seconds, found.stock_seconds,
        plan.workspace, chosen.error_bound,
    )  # fmt: skip


def _plan(kind: Kind) -> Plan | None:
    """The plan by which ours runs, or would."""
    if kind.problem is None or kind.handle is None or kind.decision.reason.startswith("refused"):
        return None
    return kind.handle.plan(kind.problem, None, bias_epilogue(kind.problem, kind.has_bias))


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3f}"
