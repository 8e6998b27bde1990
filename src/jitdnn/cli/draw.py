"""`jitdnn draw`: a net as a picture."""

from __future__ import annotations

from pathlib import Path

from jitdnn.caffe import SolverParameter, upgrade
from jitdnn.caffe.drawing import svg_text
from jitdnn.caffe.pycaffe import draw
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import NetState
from jitdnn.cli.upgrade import write_text
from jitdnn.errors import InvalidArgument


def run_draw(source: str, out: Path, phase: str, level: int, stages: list[str], rankdir: str | None) -> None:
    """Draw the layers of a state: .svg by this library, .dot and .gv as text for Graphviz, others by its program."""
    net = upgrade(source)
    if isinstance(net, SolverParameter):
        raise InvalidArgument(f"{source} is a solver, not a net: give the file that it names as its net")
    net = filter_net(net, NetState(phase=phase, level=level, stage=stages))
    if out.suffix == ".svg" and rankdir is None:
        write_text(svg_text(net), out)
        return
    draw.draw_net_to_file(net, out, rankdir or "TB")
    print(f"wrote {out}")
