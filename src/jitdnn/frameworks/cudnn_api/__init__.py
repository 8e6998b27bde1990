"""cuDNN's legacy interface over this library's kernels; `jitdnn.cudnn` is the public name of it."""

from __future__ import annotations
