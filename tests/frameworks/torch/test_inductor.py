"""Graphs that Inductor compiles with our pass: training, frozen inference, packages of AOTInductor.

Compiling C++ takes seconds: graphs here leave Inductor as little of it as can be; test_inductor_pass.py has the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch.backend import has_compiler, register  # noqa: E402
from torch_kernels import random, watched  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
NEVER = {"measure": "never"}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No graphs of before, Inductor's files in a folder of their own."""
    if not has_compiler():
        pytest.skip("no C++ compiler for Inductor's own kernels")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    from torch._inductor import config

    # which vectors the compiler can make is found out by compiling, several times: here it can what the processor can
    with config.patch({"cpp.vec_isa_ok": True}):
        torch._dynamo.reset()
        yield
    torch._dynamo.reset()


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


def test_training_with_any_batch() -> None:
    register()
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 6, 3, groups=2, bias=False))
    twin = copy.deepcopy(model)
    fast = torch.compile(model, backend="jitdnn_inductor", options=NEVER, fullgraph=True, dynamic=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for batch in (2, 3):
        results = []
        x = random(batch, 3, 9, 7)
        with watched() as seen:
            for run, own in ((fast, model), (twin, twin)):
                given = x.clone().requires_grad_()
                y = run(given)
                results.append([y, *torch.autograd.grad(y, [given, *own.parameters()], torch.ones_like(y))])
        close(*results)
        assert results[0][0].stride() == results[1][0].stride()
        assert [kind.name for kind in seen] == ["forward", "forward", "data", "filter", "data", "filter"]
        assert all(kind.decision.is_ours for kind in seen)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


@pytest.mark.parametrize("is_last", [False, True])
def test_frozen(is_last: bool) -> None:
    """Constant filters, one of them behind a fold of normalization, with what follows."""
    from torch._inductor import config

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()
    )
    with torch.no_grad():
        model[1].running_mean.normal_()
        model[1].running_var.uniform_(0.5, 2.0)
    x = random(2, 3, 9, 7)
    if is_last:
        x = x.contiguous(memory_format=torch.channels_last)
    own = jt.InductorPass(measure="never")
    with torch.no_grad(), config.patch(freezing=True, post_grad_custom_pre_pass=own):
        expected = model.eval()(x)
        fast = torch.compile(model, fullgraph=True)
        for _ in range(2):
            with watched() as seen:
                y = fast(x)
            close(y, expected)
            assert y.stride() == expected.stride()
    assert [kind.decision.is_ours for kind in seen] == [True, True]
    assert len(own.explanation.rows) == 2


def test_a_package_of_aotinductor(tmp_path: Path) -> None:
    """A converted layer and one that the pass takes, with any batch, in one package."""
    if not hasattr(torch._inductor, "aoti_compile_and_package"):
        pytest.skip("this PyTorch packs no programs of AOTInductor")
    model = nn.Sequential(jt.convert(nn.Conv2d(3, 4, 3), measure="never"), nn.Conv2d(4, 2, 3)).eval()
    own = jt.InductorPass(measure="never")
    x = random(2, 3, 6, 7)
    with torch.no_grad():
        shapes = {"input": {0: torch.export.Dim("batch", min=1, max=64)}}
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
        path = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "model.pt2"),
            inductor_configs={
                "post_grad_custom_pre_pass": own,
                "aot_inductor.compile_wrapper_opt_level": "O0",
            },
        )
        loaded = torch._inductor.aoti_load_package(path)
        for batch in (2, 5):
            x = random(batch, 3, 6, 7)
            with watched() as seen:
                y = loaded(x)
            close(y, model(x))
            assert [kind.decision.is_ours for kind in seen] == [True, True]
    assert [row.runs for row in own.explanation.rows] == ["jitdnn"]
