"""The update of all weights, as Caffe's solvers do it.

For the gradients g of all weights w, summed over iter_size batches:

    clip       if clip_gradients >= 0 and ‖g‖ > clip_gradients:  g ← g · clip_gradients / ‖g‖   (all weights together)
    normalize  g ← g / iter_size
    decay      g ← g + λ w  (L2)   or   g ← g + λ sign(w)  (L1),   λ = weight_decay · decay_mult
    update     the rule of the solver's type (update_rules.py), and w ← w − d

Clipping reads all gradients once. All else is one kernel, which reads w, g and the histories once, and writes w and the
histories: one for each weight on the processor, on a GPU one for all weights that are updated together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.device import SharedNumbers
from jitdnn.caffe.graph import Parameter
from jitdnn.caffe.layouts import flat
from jitdnn.caffe.schema import SolverParameter
from jitdnn.caffe.shards import Piece, Shards
from jitdnn.caffe.update_rules import rule_of
from jitdnn.errors import InvalidArgument
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.multi_tensor import MultiTensor, Row
from jitdnn.ops.reduction import reduction
from jitdnn.ops.tensor_ops import add

REGULARIZATIONS = ("L1", "L2")


class Updates:
    """The updates of the parameters.

    `history` has the first history of each by the parameter's name, and then a second one, where the type has two,
    by NAME/u (AdaDelta) or NAME/v (Adam): all first ones, then all second ones, which is the order of Caffe's files.
    """

    def __init__(
        self,
        solver: SolverParameter,
        parameters: Sequence[Parameter],
        keeps_updates: bool = False,
        shards: Shards | None = None,
    ) -> None:
        """Check the fields of the solver. With `keeps_updates` the gradients become what was taken from the weights
        (for snapshot_diff and debug_info); otherwise they are left alone. With `shards` this process has the histories
        of its pieces of the weights alone, and updates these.

        Raises InvalidArgument, and NotSupported for a type that does not exist.
        """
        if solver.regularization_type not in REGULARIZATIONS:
            raise InvalidArgument(
                f"regularization_type is {solver.regularization_type!r}{solver.where('regularization_type')}: "
                f"there are {', '.join(REGULARIZATIONS)}"
            ).at(solver.place("regularization_type"))
        self.solver = solver
        self.parameters = parameters
        self.keeps_updates = keeps_updates
        self.rule = rule_of(solver)
        self._shards = shards
        #: on a processor with clip_gradients: the norm of the last gradients, which was compared with it
        self.norm: float | None = None
        self._histories: dict[str, Blob] = {
            key: blob
            for index, name in enumerate(self.rule.histories)
            for key, blob in self._new_histories(name, index)
        }
        self._shared = SharedNumbers(parameters[0].blob.device if parameters else None)
        text = self.rule.text(solver.regularization_type == "L2", keeps_updates)
        self._step = MultiTensor(text, ("share", "decay", "lr", *self.rule.constants))
        self._clip_share: Any = None
        self._squares = reduction("x: x * x", dtype="f64")
        dtype = parameters[0].blob.dtype if parameters else None
        self._clipped = elementwise(
            "total, limit, share: norm = sqrt(total); share * where(norm > limit, limit / norm, 1)", dtype
        )

    @property
    def history(self) -> dict[str, Array]:
        """The histories on the host, to be read and written. Where processes divide them they are gathered from all,
        whole copies: `take_history` takes up what is written into these.
        """
        if self._shards is None:
            return {name: blob.data for name, blob in self._histories.items()}
        found: dict[str, Array] = {}
        for index, name in enumerate(self.rule.histories):
            own = [self._histories[_piece_key(piece, name, index)].data for piece in self._shards.pieces]
            whole = self._shards.gather(own)
            found |= {_key(parameter, name, index): whole[parameter.name] for parameter in self.parameters}
        return found

    def take_history(self, history: Mapping[str, Array]) -> None:
        """Take up what was written into `history`."""
        if self._shards is None:
            return
        for index, name in enumerate(self.rule.histories):
            whole = {parameter.name: history[_key(parameter, name, index)] for parameter in self.parameters}
            for piece, array in zip(self._shards.pieces, self._shards.pieces_of(whole), strict=True):
                self._histories[_piece_key(piece, name, index)].data[...] = array

    def _new_histories(self, name: str, index: int) -> Iterator[tuple[str, Blob]]:
        if self._shards is None:
            for parameter in self.parameters:
                yield _key(parameter, name, index), parameter.blob.like("history")
            return
        for piece in self._shards.pieces:
            weight = piece.parameter.blob
            blob = Blob(f"{weight.name}/history", weight.dtype, weight.device)
            blob.reshape((piece.stop - piece.start,))
            yield _piece_key(piece, name, index), blob

    @property
    def blobs(self) -> list[Blob]:
        """The histories where the net computes."""
        return list(self._histories.values())

    @property
    def nbytes(self) -> int:
        """The bytes of all histories."""
        return sum(blob.nbytes for blob in self._histories.values())

    def update(self, rate: float, iteration: int) -> None:
        """Update the weights and the histories by the gradients."""
        self.prepare(rate, iteration)
        device = self.parameters[0].blob.device if self.parameters else None
        with nullcontext() if device is None else device.handle:
            self.apply()

    def prepare(self, rate: float, iteration: int) -> None:
        """Take the numbers of the next `apply`, which a graph of a GPU's calls reads from memory."""
        factor, *constants = self.rule.numbers(self.solver, iteration)
        multipliers = sorted({parameter.lr_mult for parameter in self.parameters})
        self._constants = constants
        self._places = {multiplier: place for place, multiplier in enumerate(multipliers)}
        self._shared.set([rate * multiplier * factor for multiplier in multipliers])

    def apply(self) -> None:
        """Update by the numbers that `prepare` took."""
        share = self._clip()
        self._step(self._rows(self.parameters, share))
        if self._shards is not None:
            self._shards.gather_weights()

    def apply_to(self, parameters: Sequence[Parameter]) -> None:
        """Update these alone, by the numbers that `prepare` took; without clipping, whose norm is that of all
        gradients, and without shards.
        """
        self._step(self._rows(parameters, 1 / self.solver.iter_size))

    def settle(self, groups: Sequence[Sequence[Parameter]] | None = None) -> None:
        """Make what `apply`, or `apply_to` with each of these groups, needs before its calls are captured."""
        if groups is None:
            clips = self.solver.clip_gradients >= 0 and self.parameters
            self._step.settle(
                self._rows(self.parameters, self._share() if clips else 1 / self.solver.iter_size)
            )
            return
        for parameters in groups:
            self._step.settle(self._rows(parameters, 1 / self.solver.iter_size))

    def _rows(self, parameters: Sequence[Parameter], share: Any) -> list[Row]:
        solver = self.solver
        rows: list[Row] = []
        for parameter, w, g, histories in self._steps(parameters):
            decay = solver.weight_decay * parameter.decay_mult
            rate = self._shared[self._places[parameter.lr_mult]]
            out = (w, *histories, g) if self.keeps_updates else (w, *histories)
            rows.append(((w, g, *histories, share, decay, rate, *self._constants), out))
        return rows

    @property
    def needs_all_gradients(self) -> bool:
        """Whether an update needs the gradients of all weights at once, or leaves something in their place."""
        return self.solver.clip_gradients >= 0 or self.keeps_updates or self._shards is not None

    def _steps(self, parameters: Sequence[Parameter]) -> Iterator[tuple[Parameter, Any, Any, list[Any]]]:
        """What this process updates: of each parameter, or of its pieces, the weight, the gradient and the
        histories.
        """
        names = list(enumerate(self.rule.histories))
        if self._shards is None:
            for parameter in parameters:
                histories = [
                    flat(self._histories[_key(parameter, name, index)].values) for index, name in names
                ]
                yield parameter, flat(parameter.blob.values), flat(parameter.blob.gradient), histories
            return
        for piece in self._shards.pieces:
            blob, part = piece.parameter.blob, slice(piece.start, piece.stop)
            histories = [self._histories[_piece_key(piece, name, index)].values for index, name in names]
            yield piece.parameter, flat(blob.values)[part], flat(blob.gradient)[part], histories

    def _clip(self) -> Any:
        """What gradients are multiplied by: a share of iter_size, less where their norm asks for it."""
        limit, share = self.solver.clip_gradients, 1 / self.solver.iter_size
        if limit < 0 or not self.parameters:
            return share
        total: Any = None
        for _, _, gradient, _ in self._steps(self.parameters):
            square = self._squares(gradient)
            total = square if total is None else add(square, out=total, beta=1.0)
        if self._shards is not None:
            if total is None:  # this process has no piece
                total = np.zeros((), np.float64)
            self._shards.sum(total)
        if isinstance(total, np.ndarray):
            self.norm = math.sqrt(total.item())
            return self._clipped(total, limit, share)
        return self._clipped(total, limit, share, out=self._share().reshape(total.shape))

    def _share(self) -> Any:
        """On a GPU the number by which clipping multiplies gradients, which stays where it is."""
        device = self.parameters[0].blob.device
        if self._clip_share is None and device is not None:
            self._clip_share = device.empty((1,), self.parameters[0].blob.dtype)
        return self._clip_share


def _piece_key(piece: Piece, history: str, index: int) -> str:
    return f"{_key(piece.parameter, history, index)}, {piece.start} .. {piece.stop}"


def _key(parameter: Parameter, history: str, index: int) -> str:
    return f"{parameter.name}/{history}" if index else parameter.name
