"""What holds for the tests of `jitdnn.torch`: one thread, no kinds of calls left from another test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from jitdnn.frameworks.torch import install, kinds

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kinds.forget()
    yield
    install.uninstall()
    kinds.forget()
    torch.set_num_threads(threads)


@pytest.fixture
def no_graphs() -> Iterator[None]:
    """Nothing compiled by Dynamo before, nor left."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
