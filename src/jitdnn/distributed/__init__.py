"""Several processes that work together on torch.distributed, started by torchrun.

    group = jitdnn.distributed.start()
    solver = jitdnn.caffe.load_solver("solver.prototxt", group=group)
    solver.solve()

docs/distributed.md has the whole of it. Importing it needs PyTorch: `pip install "jitdnn[distributed]"`.
"""

from __future__ import annotations

from jitdnn.distributed.group import TorchGroup, start
from jitdnn.distributed.launch import launch, place

__all__ = ["TorchGroup", "launch", "place", "start"]
