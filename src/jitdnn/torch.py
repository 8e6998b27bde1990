"""PyTorch with this library's kernels wherever they are faster.

    import jitdnn.torch as jt

    model = jt.convert(model)          # in place, the same state_dict; jt.revert(model) undoes it
    with jt.use(): ...                 # for a block
    jt.install(); jt.uninstall()       # for the process
    print(jt.explain(model, images))   # what runs, and how fast beside torch's own

    fast = jt.fuse(model.eval())       # inference: the whole graph in few kernels, weights folded and prepared
    fast = torch.compile(model, backend="jitdnn")
    fast = torch.compile(model, backend="jitdnn_inductor", mode="reduce-overhead")  # ours inside of Inductor

At the first call of each kind ours is measured beside torch's own kernel, and the faster runs from then on.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jitdnn.frameworks.torch.convert import convert, is_converted, revert, use
from jitdnn.frameworks.torch.explain import Explanation, explain
from jitdnn.frameworks.torch.fused import FusedModule, fuse
from jitdnn.frameworks.torch.install import install, is_installed, uninstall
from jitdnn.frameworks.torch.memory import limit_memory, unlimit_memory

if TYPE_CHECKING:
    from jitdnn.frameworks.torch.inductor import InductorPass, inductor
    from jitdnn.frameworks.torch.inductor_memory import MemoryPartitioner

__all__ = [
    "Explanation",
    "FusedModule",
    "InductorPass",
    "MemoryPartitioner",
    "convert",
    "explain",
    "fuse",
    "inductor",
    "install",
    "is_converted",
    "is_installed",
    "limit_memory",
    "revert",
    "uninstall",
    "unlimit_memory",
    "use",
]


#: what loads all of Inductor, which takes a second, and the modules that have it
_HOMES = {"InductorPass": "inductor", "inductor": "inductor", "MemoryPartitioner": "inductor_memory"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jitdnn.torch' has no attribute {name!r}")
    home = importlib.import_module(f"jitdnn.frameworks.torch.{_HOMES[name]}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
