"""Graphs as Inductor has them behind our pass, run by PyTorch operator by operator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

import jitdnn.torch as jt


def compiled(model: Any, **options: Any) -> tuple[Any, list[list[str]], jt.InductorPass]:
    """A model whose graphs our pass rewrites and torch runs, the operators of each graph, and the pass.

    `saves_least`: whether the graph is divided into forward and backward as Inductor divides it.
    """
    # seconds to import, not while tests are collected
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.compile_fx import view_to_reshape
    from torch._inductor.decomposition import select_decomp_table

    graphs: list[list[str]] = []
    dynamic, divided = options.pop("dynamic", None), {}
    if options.pop("saves_least", False):
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        divided["partition_fn"] = partial(min_cut_rematerialization_partition, compiler="inductor")
    own = jt.InductorPass(**{"measure": "never", **options})

    def compiler(module: Any, inputs: Any) -> Any:
        view_to_reshape(module)  # as Inductor does
        own(module.graph)
        module.recompile()
        graphs.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])
        return make_boxed_func(module.forward)

    backend = aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, decompositions=select_decomp_table(), **divided
    )
    return torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic), graphs, own


def as_on_gpus(rewriting: Any) -> Any:
    """A fixture: this module rewrites graphs of this processor as those of a GPU, none of which it has seen before."""

    @pytest.fixture(autouse=True)
    def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(rewriting, "is_on_gpu", lambda _: True)
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    return on_gpu


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


def count(graph: list[str], name: str) -> int:
    return sum(name in target for target in graph)


def trained(model: Any, run: Any, x: Any) -> list[Any]:
    x = x.clone().requires_grad_()
    y = run(x)
    return [y, *torch.autograd.grad(y.square().mean(), [x, *model.parameters()])]
