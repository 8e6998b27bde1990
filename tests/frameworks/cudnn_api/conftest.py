"""A program that runs in host memory."""

from __future__ import annotations

import pytest

import jitdnn.cudnn as c
from cudnn_programs import Program


@pytest.fixture
def p() -> Program:
    return Program(c, lambda x: x, c.cudnnCreate("cpu"))
