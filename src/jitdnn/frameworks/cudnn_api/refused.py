"""The functions of cuDNN that are not there, each with the reason."""

from __future__ import annotations

from jitdnn.frameworks.cudnn_api.registry import refuse

_GRAPH = "the graph interface of the backend is not there: it has no descriptors to build graphs of"
_FUSED = (
    "fused operations by packs of parameters are not there: jd.conv takes a prologue, an epilogue and sums"
)

refuse(
    _GRAPH,
    "cudnnBackendInitialize",
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendFinalize",
    "cudnnBackendSetAttribute",
    "cudnnBackendGetAttribute",
    "cudnnBackendExecute",
    "cudnnBackendPopulateCudaGraph",
    "cudnnBackendUpdateCudaGraph",
    "cudnnGetExecutionPlanWorkspaceSize",
)
refuse(
    _FUSED,
    "cudnnCreateFusedOpsConstParamPack",
    "cudnnDestroyFusedOpsConstParamPack",
    "cudnnSetFusedOpsConstParamPackAttribute",
    "cudnnGetFusedOpsConstParamPackAttribute",
    "cudnnCreateFusedOpsVariantParamPack",
    "cudnnDestroyFusedOpsVariantParamPack",
    "cudnnSetFusedOpsVariantParamPackAttribute",
    "cudnnGetFusedOpsVariantParamPackAttribute",
    "cudnnCreateFusedOpsPlan",
    "cudnnDestroyFusedOpsPlan",
    "cudnnMakeFusedOpsPlan",
    "cudnnFusedOpsExecute",
)
refuse(
    "int8x32 filters in vectors of channels are not there, so there is nothing to reorder",
    "cudnnReorderFilterAndBias",
)
refuse(
    "strided gradients are not folded into the channels here: cudnnConvolutionBackwardData takes them as they are",
    "cudnnGetFoldedConvBackwardDataDescriptors",
)
