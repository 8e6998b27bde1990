"""Drawings of nets, as pycaffe's draw makes them: text for Graphviz, and pictures where its program `dot` is."""

from __future__ import annotations

import shutil
import subprocess
from os import PathLike
from pathlib import Path

from jitdnn.caffe.pycaffe import mode
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetState
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.files import write_whole

_COLOURS = {"Convolution": "#FF5050", "Pooling": "#FF9900", "InnerProduct": "#CC33FF"}
_GREY = '"#E0E0E0"'
_DIRECTIONS = ("LR", "RL", "TB", "BT")
_SECONDS = 120


def dot_text(caffe_net: NetParameter, rankdir: str = "LR", phase: int | None = None) -> str:
    """The net in Graphviz's language: a box for each layer, an eight-sided shape for each blob; layers in place stand
    beside the blob that they change. `phase`: TRAIN or TEST, None for the layers of both.
    """
    if rankdir not in _DIRECTIONS:
        raise InvalidArgument(f"rankdir is {rankdir!r}: there are {', '.join(_DIRECTIONS)}")
    net = upgrade_net(caffe_net)
    if phase is not None:
        net = filter_net(net, NetState(phase=mode.PHASES[phase]))
    lines = [f"digraph {_quoted(net.name or 'net')} {{", f"  rankdir={rankdir};", "  node [fontsize=10];"]
    blobs: set[str] = set()
    for number, layer in enumerate(net.layer):
        node = f"layer{number}"
        colour = _COLOURS.get(layer.type, "#6495ED")
        lines.append(
            f"  {node} [label={_quoted(_label(layer))} shape=box style=filled fillcolor={_quoted(colour)}];"
        )
        for name in (*layer.bottom, *layer.top):
            if name not in blobs:
                blobs.add(name)
                lines.append(
                    f"  {_blob(name)} [label={_quoted(name)} shape=octagon style=filled fillcolor={_GREY}];"
                )
        outputs = _edge(layer)
        lines += [f"  {_blob(name)} -> {node};" for name in layer.bottom]
        lines += [f"  {node} -> {_blob(name)}{outputs};" for name in layer.top]
    return "\n".join([*lines, "}", ""])


def draw_net_to_file(
    caffe_net: NetParameter, filename: str | PathLike[str], rankdir: str = "LR", phase: int | None = None
) -> None:
    """Write a drawing of the net: its text for .dot and .gv, else a picture of the kind that the name ends in (svg,
    png, pdf), which Graphviz's program `dot` makes. Raises NotSupported without that program.
    """
    path, text = Path(filename), dot_text(caffe_net, rankdir, phase).encode()
    if path.suffix not in (".dot", ".gv"):
        kind = path.suffix.removeprefix(".")
        if not kind.isalnum():
            raise InvalidArgument(f"{path}: the name must end in .dot, .gv, .svg, .png or .pdf")
        program = shutil.which("dot")
        if program is None:
            raise NotSupported(
                f"{path} is drawn by Graphviz's program dot, which is not installed: install Graphviz, or name a .dot "
                "file"
            )
        made = subprocess.run(
            [program, f"-T{kind}"], input=text, capture_output=True, timeout=_SECONDS, check=False
        )
        if made.returncode:
            raise InvalidArgument(f"dot cannot draw {path}: {made.stderr.decode(errors='replace').strip()}")
        text = made.stdout
    try:
        write_whole(path, lambda file: file.write(text))
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error}") from error


def _label(layer: LayerParameter) -> str:
    lines = [layer.name, f"({layer.type})"]
    if layer.type in ("Convolution", "Deconvolution", "DepthwiseConvolution"):
        of = layer.convolution_param
        lines += [
            f"{title}: {' x '.join(map(str, values))}"
            for title, values in (
                ("kernel", list(of.kernel_size) or [of.kernel_h, of.kernel_w]),
                ("stride", list(of.stride) or [of.stride_h or 1, of.stride_w or 1]),
                ("pad", list(of.pad) or [of.pad_h, of.pad_w]),
            )
        ]
    elif layer.type == "Pooling":
        pool = layer.pooling_param
        lines += [pool.pool, f"kernel: {pool.kernel_size or f'{pool.kernel_h} x {pool.kernel_w}'}"]
        lines += [f"stride: {pool.stride_h or pool.stride}", f"pad: {pool.pad_h or pool.pad}"]
    return "\n".join(lines)


def _edge(layer: LayerParameter) -> str:
    """What stands at an arrow out of a layer: how many channels it makes."""
    if layer.type in ("Convolution", "Deconvolution", "DepthwiseConvolution"):
        outputs = layer.convolution_param.num_output
    elif layer.type == "InnerProduct":
        outputs = layer.inner_product_param.num_output
    else:
        return ""
    return f" [label={_quoted(str(outputs))}]"


def _blob(name: str) -> str:
    return _quoted(f"blob {name}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
