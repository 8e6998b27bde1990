"""DetectionOutput of SSD's fork: boxes and scores become detections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.layers.base import Layer, Reads


class DetectionOutputLayer(Layer):
    """Bottoms: locations (N, 4 P), or (N, 4 P classes) without `share_location`, scores (N, P classes) and the boxes of
    PriorBox (1, 2, 4 P). Top (1, 1, detections, 7): image, class, score, left, upper, right and lower edge as parts of
    the image. Without any detection there is a row for each image, its number and six -1.

    The locations, by `code_type`, move the boxes. For each class but `background_label_id` those with a score above
    `confidence_threshold`, at most `top_k` by score, are gone through from the best on: one is left out that overlaps
    one kept by more than `nms_threshold` of their union. Of all classes the `keep_top_k` best of an image are kept.

    The top takes its shape in the forward pass. There is no gradient, and no file is written (`save_output_param`).
    """

    type = "DetectionOutput"
    bottoms = (3, 3)
    may_resize = True
    reads = Reads(bottom=False, top=False)
    forced_bottoms = 0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.detection_output_param
        self.classes, self.background = parameter.num_classes, parameter.background_label_id
        if self.classes < 1:
            raise self.invalid("num_classes is missing or 0: it must be positive", "detection_output_param")
        nms = parameter.nms_param
        if not nms.nms_threshold >= 0 or not 0 < nms.eta <= 1:
            raise self.invalid(
                f"nms_threshold {nms.nms_threshold:g} must be 0 or more, and eta {nms.eta:g} in (0, 1]",
                "detection_output_param",
            )
        if parameter.save_output_param.output_directory:
            raise self.invalid(
                "save_output_param has an output_directory: detections are the layer's top, and no file is written; "
                "take the line out",
                "detection_output_param",
            )
        self.most = nms.top_k if nms.has("top_k") else -1

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        locations, scores, priors = (blob.shape for blob in bottom)
        shared = 1 if self.parameter.detection_output_param.share_location else self.classes
        boxes = priors[2] // 4 if len(priors) == 3 else 0
        images = locations[0] if locations else 0
        sizes = [bottom[0].size, bottom[1].size]
        if (
            boxes == 0
            or priors[:2] != (1, 2)
            or scores[:1] != (images,)
            or sizes != [images * boxes * 4 * shared, images * boxes * self.classes]
        ):
            raise self.invalid(
                f"bottoms have shapes {locations}, {scores} and {priors}: (N, {4 * shared} P), (N, {self.classes} P) "
                "and (1, 2, 4 P) are needed"
            )
        self.counts = images, boxes, shared
        top[0].reshape((1, 1, 1, 7))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        images, boxes, shared = self.counts
        locations = bottom[0].data.reshape(images, boxes, shared, 4)
        scores = bottom[1].data.reshape(images, boxes, self.classes)
        priors, variances = bottom[2].data.reshape(2, boxes, 1, 4)
        rows = []
        for image in range(images):
            decoded = self._decoded(locations[image], priors, variances)
            rows += self._detections(image, decoded, scores[image])
        found = np.concatenate(rows) if rows else np.zeros((0, 7))
        if not len(found):
            found = np.full((images, 7), -1.0)
            found[:, 0] = range(images)
        top[0].reshape((1, 1, len(found), 7))
        top[0].data[0, 0] = found

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if any(propagate):
            raise self.invalid("detections have no gradient: nothing before them can be trained through them")

    def _decoded(self, locations: Array, priors: Array, variances: Array) -> Array:
        """The boxes (P, classes or 1, 4) by their edges."""
        parameter = self.parameter.detection_output_param
        moves = locations if parameter.variance_encoded_in_target else locations * variances
        low, high = priors[..., :2], priors[..., 2:]
        if parameter.code_type == "CORNER":
            corners: Array = priors + moves
            return corners
        size = high - low
        if parameter.code_type == "CORNER_SIZE":
            scaled: Array = priors + moves * np.concatenate([size, size], -1)
            return scaled
        centre = (low + high) / 2 + moves[..., :2] * size
        half = np.exp(moves[..., 2:]) * size / 2
        return np.concatenate([centre - half, centre + half], -1)

    def _detections(self, image: int, boxes: Array, scores: Array) -> list[Array]:
        """The rows of an image, for each class from the best on."""
        parameter = self.parameter.detection_output_param
        kept: list[tuple[int, Array]] = []
        for label in range(self.classes):
            if label != self.background:
                own = boxes[:, label if boxes.shape[1] > 1 else 0]
                kept.append((label, self._chosen(own, scores[:, label])))
        total = sum(len(chosen) for _, chosen in kept)
        if -1 < parameter.keep_top_k < total:
            every = np.concatenate([scores[chosen, label] for label, chosen in kept])
            ranks = np.empty(total, np.int64)
            ranks[np.argsort(-every, kind="stable")] = np.arange(total)
            parts = np.split(
                ranks < parameter.keep_top_k, np.cumsum([len(chosen) for _, chosen in kept])[:-1]
            )
            kept = [(label, chosen[part]) for (label, chosen), part in zip(kept, parts, strict=True)]
        return [
            np.column_stack([
                np.full((len(chosen), 2), (image, label)),
                scores[chosen, label],
                boxes[chosen, label if boxes.shape[1] > 1 else 0],
            ])
            for label, chosen in kept
            if len(chosen)
        ]  # fmt: skip

    def _chosen(self, boxes: Array, scores: Array) -> Array:
        """The numbers of the boxes (P, 4) that are kept, by falling score."""
        parameter = self.parameter.detection_output_param
        is_good = np.ones(len(scores), np.bool_)
        if parameter.has("confidence_threshold"):
            is_good = scores > parameter.confidence_threshold
        candidates = np.flatnonzero(is_good)
        candidates = candidates[np.argsort(-scores[candidates], kind="stable")]
        if self.most > -1:
            candidates = candidates[: self.most]
        threshold, eta = parameter.nms_param.nms_threshold, parameter.nms_param.eta
        kept: list[int] = []
        # with eta 1 the threshold stays, and all that a kept box suppresses can go at once
        while len(candidates):
            best, candidates = int(candidates[0]), candidates[1:]
            if eta < 1 and kept and (_overlaps(boxes[best], boxes[kept]) > threshold).any():
                continue
            kept.append(best)
            if eta == 1:
                candidates = candidates[_overlaps(boxes[best], boxes[candidates]) <= threshold]
            elif threshold > 0.5:
                threshold *= eta
        return np.array(kept, np.int64)


def _overlaps(box: Array, others: Array) -> Array:
    """What a box has in common with each of others, as a part of what both cover."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.where((high > low).all(1), (high - low).prod(1), 0)
    both = _area(box[None]) + _area(others) - common
    parts: Array = np.where(common > 0, common / np.where(both > 0, both, 1), 0)
    return parts


def _area(boxes: Array) -> Array:
    sides = boxes[:, 2:] - boxes[:, :2]
    areas: Array = np.where((sides > 0).all(1), sides.prod(1), 0)
    return areas
