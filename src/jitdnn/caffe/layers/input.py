"""Input: blobs that the caller fills."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import BottomlessLayer


class InputLayer(BottomlessLayer):
    """Tops of the shapes in input_param: one shape for all, or one for each."""

    type = "Input"
    fills_tops = False
    tops = (1, None)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = self.parameter.input_param.shape
        if len(shapes) not in (1, len(top)):
            raise self.invalid(
                f"{len(top)} tops need 1 or {len(top)} shapes in input_param; there are {len(shapes)}"
            )
        for shape in shapes:
            if any(extent < 0 for extent in shape.dim):
                raise self.invalid(f"shape {tuple(shape.dim)} has a negative extent", "input_param")
        for index, blob in enumerate(top):
            extents = tuple(shapes[index if len(shapes) > 1 else 0].dim)
            blob.reshape(self.context.shape_of_part(extents, f"input {blob.name!r}"))

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass  # the caller may have given the tops other shapes since setup

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass
