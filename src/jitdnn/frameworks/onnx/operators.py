"""The table of all operators: one family of them a file, and no name twice."""

from __future__ import annotations

from jitdnn.frameworks.onnx import (
    activation,
    attention,
    control,
    convolution,
    deformable,
    detection,
    einsum,
    elementwise,
    images,
    learning,
    loss,
    microsoft_attention,
    microsoft_fused,
    microsoft_quantized,
    movement,
    ngrams,
    normalization,
    picking,
    pooling,
    products,
    quantization,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    sampling,
    sequences,
    softmax,
    spectral,
    text,
    training,
    trees,
    views,
)
from jitdnn.frameworks.onnx.operator import Operator

_FAMILIES = {
    "": (
        activation.OPERATORS,
        attention.OPERATORS,
        control.OPERATORS,
        convolution.OPERATORS,
        deformable.OPERATORS,
        detection.OPERATORS,
        einsum.OPERATORS,
        elementwise.OPERATORS,
        images.OPERATORS,
        loss.OPERATORS,
        movement.OPERATORS,
        ngrams.OPERATORS,
        normalization.OPERATORS,
        picking.OPERATORS,
        pooling.OPERATORS,
        products.OPERATORS,
        quantization.OPERATORS,
        quantized.OPERATORS,
        random.OPERATORS,
        recurrent.OPERATORS,
        reduction.OPERATORS,
        resize.OPERATORS,
        sampling.OPERATORS,
        sequences.OPERATORS,
        softmax.OPERATORS,
        spectral.OPERATORS,
        text.OPERATORS,
        views.OPERATORS,
    ),
    "ai.onnx.ml": (learning.OPERATORS, trees.OPERATORS),
    "ai.onnx.preview.training": (training.OPERATORS,),
    "com.microsoft": (
        microsoft_attention.OPERATORS,
        microsoft_fused.OPERATORS,
        microsoft_quantized.OPERATORS,
    ),
}
#: operators by domain and name
OPERATORS: dict[tuple[str, str], Operator] = {
    (domain, name): operator
    for domain, families in _FAMILIES.items()
    for family in families
    for name, operator in family.items()
}
# onnxruntime puts it into ONNX's own domain, which has it not
OPERATORS["", "SimplifiedLayerNormalization"] = OPERATORS["com.microsoft", "SimplifiedLayerNormalization"]
