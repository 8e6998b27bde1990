"""How much of a solver's time its net stands still for data."""

from __future__ import annotations

from time import perf_counter

from jitdnn.caffe.events import WaitedForData
from jitdnn.caffe.layers.data import SourceLayer
from jitdnn.caffe.net import Net


class WaitMeter:
    """Adds up what the data layers of a net have waited, from one look to the next."""

    def __init__(self, net: Net) -> None:
        self._layers = [layer for layer in net.layers if isinstance(layer, SourceLayer)]
        self._since: tuple[float, float, int] | None = None

    def look(self, iteration: int) -> WaitedForData | None:
        """What was waited since the last look, None at the first one, or if nothing is made ahead."""
        waited = sum(layer.waited.seconds for layer in self._layers)
        batches = sum(layer.waited.batches for layer in self._layers)
        before, self._since = self._since, (perf_counter(), waited, batches)
        if before is None or batches == before[2]:
            return None
        return WaitedForData(iteration, waited - before[1], self._since[0] - before[0])
