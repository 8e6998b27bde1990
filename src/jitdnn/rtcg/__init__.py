"""Run-time code generation: Python functions traced to LLVM IR, compiled and cached."""

from __future__ import annotations

from jitdnn.rtcg.activations import Activation, activation
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.rtcg.functions import where

__all__ = ["Activation", "Expression", "activation", "trace", "where"]
