"""What a training run has told so far, and its curves as a PNG."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from jitdnn.caffe.events import Displayed, Event, Finished, Iterated, Tested
from jitdnn.caffe.loss_value import LossValue
from jitdnn.errors import InvalidArgument

Points = list[tuple[int, float]]


MOST_UNREAD = 100  # losses that are waited for together


@dataclass
class History:
    """A listener that keeps the numbers: losses of batches and smoothed ones, learning rates and tests."""

    losses: Points = field(default_factory=list)
    smoothed: Points = field(default_factory=list)
    rates: Points = field(default_factory=list)
    tests: dict[str, Points] = field(default_factory=dict)

    _unread: list[tuple[int, float | LossValue]] = field(default_factory=list)

    def settle(self) -> None:
        """Wait for the losses that a GPU may still be computing."""
        self.losses.extend((iteration, float(loss)) for iteration, loss in self._unread)
        self._unread.clear()

    def __call__(self, event: Event) -> None:
        """Note the numbers of an event."""
        if isinstance(event, Iterated):
            self._unread.append((event.iteration, event.loss))
            if isinstance(event.loss, float) or len(self._unread) >= MOST_UNREAD:
                self.settle()
            self.rates.append((event.iteration, event.rate))
        elif isinstance(event, Displayed):
            self.smoothed.append((event.iteration, event.loss))
        elif isinstance(event, Finished):
            self.settle()
        elif isinstance(event, Tested):
            for output in event.outputs:
                name = output.name if event.net == 0 else f"{output.name} (net {event.net})"
                self.tests.setdefault(name, []).append((event.iteration, output.value))


def require_matplotlib() -> None:
    """Raise InvalidArgument, naming the extra, if plots cannot be drawn: before the training, not after."""
    if find_spec("matplotlib") is None:
        raise InvalidArgument("plots need matplotlib, which is not installed: pip install 'jitdnn[plot]'")


def save_png(history: History, path: Path, title: str) -> None:
    """Draw the loss, and each tested output in a panel of its own, to a PNG. Raises InvalidArgument if that
    cannot be: matplotlib is missing, nothing was told yet, or the file cannot be written."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = ["loss", *(name for name in history.tests if name != "loss")]
    if not (history.losses or history.tests):
        raise InvalidArgument(f"{path}: there is nothing to draw yet")
    figure = Figure(figsize=(5.0 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if name == "loss" and history.losses:
            axes.plot(*zip(*history.losses, strict=True), color="0.8", linewidth=0.8, label="batch")
        if name == "loss" and history.smoothed:
            axes.plot(*zip(*history.smoothed, strict=True), color="tab:blue", label="training")
        if name in history.tests:
            axes.plot(*zip(*history.tests[name], strict=True), "o-", color="tab:orange", label="test")
            last = history.tests[name][-1]
            axes.annotate(f"{last[1]:.4g}", last, textcoords="offset points", xytext=(-4, 7), ha="right")
        axes.set_xlabel("iteration")
        axes.set_title(name)
        axes.grid(alpha=0.3)
        axes.margins(y=0.12)
        if name == "loss" and min(loss for _, loss in history.losses or [(0, 0.0)]) > 0:
            axes.set_yscale("log")
        if axes.has_data():
            axes.legend(frameon=False)
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None
