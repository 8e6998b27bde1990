"""Everything that is wrong with a net in one error, and what to say of a layer type that the library does not have."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from jitdnn.caffe.schema import V1_TYPES, LayerParameter, NetParameter
from jitdnn.errors import InvalidArgument, JitdnnError, NotSupported

# layers of Caffe 1.0 that its V1 syntax did not have
_LATER_TYPES = (
    "BatchNorm", "BatchReindex", "Bias", "Clip", "Crop", "ELU", "Embed", "Filter", "Input", "LSTM", "LSTMUnit", "Log",
    "PReLU", "Parameter", "Python", "RNN", "Reduction", "Reshape", "SPP", "Scale", "Swish", "Tile",
)  # fmt: skip
CAFFE_TYPES = frozenset({name for _, name in V1_TYPES.values() if name} | set(_LATER_TYPES))

# layers of well-known forks, by the fork
FORKS = {
    "SSD": (
        "AnnotatedData", "DetectionEvaluate", "DetectionOutput", "MultiBoxLoss", "Normalize", "Permute", "PriorBox",
        "SmoothL1Loss", "VideoData",
    ),
    "Faster R-CNN": ("ROIPooling", "Proposal", "PSROIPooling"),
    "SegNet": ("Upsample", "DenseImageData"),
    "DeepLab": ("Interp", "ImageSegData", "MatWrite", "DomainTransform"),
    "NVIDIA's Caffe": ("DetectNetTransformation", "L1Loss"),
    "a fork of Caffe": (
        "Axpy", "CPMData", "CReLU", "CenterLoss", "CorrMap", "DepthwiseConvolution", "ConvolutionDepthwise", "FlowWarp",
        "ImResize", "MarginInnerProduct", "Mish", "Nms", "ReLU6", "Region", "Reorg", "ShuffleChannel", "TripletLoss",
    ),
}  # fmt: skip


def refuse_type(parameter: LayerParameter, known: Collection[str]) -> NotSupported:
    """Say why there is no layer of this type: a slip of the pen, a layer of Caffe that is not built, one of a fork."""
    return NotSupported(_reason(parameter, known)).at(parameter.place())


def _reason(parameter: LayerParameter, known: Collection[str]) -> str:
    start = f"layer {parameter.name!r}{parameter.where()}"
    if not parameter.type:
        return f"{start} has no type; the library has {', '.join(sorted(known))}"
    kind = parameter.type
    if kind in CAFFE_TYPES:
        return f"{start} has type {kind!r}: Caffe has this layer, and this library does not have it yet"
    for fork, types in FORKS.items():
        if kind in types:
            return f"{start} has type {kind!r}: a layer of {fork}, which this library does not have"
    lower = {name.lower(): name for name in sorted(CAFFE_TYPES | set(known))}
    near = difflib.get_close_matches(kind[:40].lower(), list(lower), n=1, cutoff=0.7)
    if near:
        return f"{start} has type {kind!r}, which does not exist: did you mean {lower[near[0]]!r}?"
    return (
        f"{start} has type {kind!r}, which neither Caffe nor a fork that is known here has; the library has "
        f"{', '.join(sorted(known))}"
    )


def unknown_types(net: NetParameter, known: Collection[str]) -> list[JitdnnError]:
    """The refusals of all layers whose type the library does not have."""
    return [refuse_type(layer, known) for layer in net.layer if layer.type not in known]


def together(problems: Sequence[JitdnnError]) -> JitdnnError:
    """One error for all that is wrong: the only one itself, or one with a line for each."""
    if len(problems) == 1:
        return problems[0]
    is_missing = all(isinstance(problem, NotSupported) for problem in problems)
    message = "\n".join(
        [f"{len(problems)} things keep this net from being built:", *(f"  {problem}" for problem in problems)]
    )
    return (NotSupported if is_missing else InvalidArgument)(message).of(problems)
