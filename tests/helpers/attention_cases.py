"""Attention for the tests of every target: sizes, who sees what, and inputs that belong together."""

from __future__ import annotations

import numpy as np

from cases import AnyArray, random_values
from jitdnn.problems import Attention, Problem, parse
from jitdnn.tensor import numpy_dtype

DIRECTIONS = ("fwd", "bwd")

SIZES = [
    "n1 h1 t1 s1 d1",
    "n1 h2 t64 s96 d64",
    "n1 h1 t65 s97 d16 e33",
    "n2 h4 t17 s31 d4 kvh2",
    "n1 h6 t3 s200 d20 e5 kvh1",
    "n1 h1 t130 s1 d64",
    "n1 h1 t40 s401 d4",  # several ranges of keys in the backward pass
    "n0 h2 t4 s4 d4",
    "n2 h1 t0 s5 d4",
    "n1 h2 t5 s0 d4",
]
VIEWS = [
    "right0 past3",
    "left4 right2 past-2",  # the first queries see nothing
    "lengths64 right0",
    "lo32 hi64",
    "hi32 left9 addmask",
    "boolmask",
    "boolmask mask=ns",
    "addmask mask=ts right0",
    "addmask mask=s0,0,1,37",
    "boolmask mask=s0,0,3,80",
    "scale-2.0",
]
VIEWS_BACKWARD = [
    "right0 past3",
    "lengths64 right0 addmask mask=ts",
    "lo32 hi64",
    "boolmask left20",
    "scale-2.0",
]
CASES = [("fwd", words) for words in VIEWS] + [("bwd", words) for words in VIEWS_BACKWARD]


def attention(words: str, direction: str) -> Problem:
    return parse(f"attention_{direction} {words}" + (" save" if direction == "fwd" else ""))


def inputs_for(problem: Problem, seed: int = 0) -> list[AnyArray]:
    """Random sources; backward y and lse are what the forward pass makes of the others."""
    assert isinstance(problem, Attention)
    rng = np.random.default_rng(seed)
    values = {o.name: random_values(rng, o) for o in problem.sources}
    if problem.mask is not None and problem.mask.dtype == "bool" and problem.mask.strides[2]:
        values["mask"][:, :, :1] = 0  # a query that sees nothing
    if problem.direction == "bwd":
        fields = ("mask", "lengths", "lo", "hi", "left", "right", "past", "scale")
        forward = Attention.make(
            "fwd",
            problem.q,
            problem.k,
            problem.v,
            lse=True,
            **{name: getattr(problem, name) for name in fields},
        )
        found = forward.reference(*(values[o.name] for o in forward.sources))
        for name, result in zip(("y", "lse"), found, strict=True):
            values[name] = result.astype(numpy_dtype(getattr(problem, name).dtype))
    return list(values.values())
