"""Networks with large filters, and over sequences and volumes, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn


def _conv(
    c: int,
    k: int,
    taps: int | tuple[int, ...] = 1,
    stride: Any = 1,
    groups: int = 1,
    act: bool = True,
    axes: int = 2,
) -> nn.Sequential:
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1]
    pad = taps // 2 if isinstance(taps, int) else tuple(size // 2 for size in taps)
    layers: list[nn.Module] = [convolution(c, k, taps, stride, pad, groups=groups, bias=False), norm(k)]
    if act:
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class Added(nn.Module):
    """x + body(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class LargeKernel(nn.Module):
    """A large depthwise convolution and, beside it, one of 5 x 5, between products of channels."""

    def __init__(self, c: int, taps: int) -> None:
        super().__init__()
        self.before, self.after = _conv(c, c), _conv(c, c, act=False)
        self.large = _conv(c, c, taps, groups=c, act=False)
        self.small = _conv(c, c, 5, groups=c, act=False)

    def forward(self, x: Any) -> Any:
        y = self.before(x)
        return self.after(torch.relu(self.large(y) + self.small(y)))


def replknet(
    width: int = 128,
    depths: Sequence[int] = (2, 2, 18, 2),
    taps: Sequence[int] = (31, 29, 27, 13),
    classes: int = 1000,
) -> nn.Module:
    """Ding et al. 2022, RepLKNet-31B."""
    c = width
    layers: list[nn.Module] = [
        _conv(3, c, 3, 2), _conv(c, c, 3, groups=c), _conv(c, c), _conv(c, c, 3, 2, groups=c)
    ]  # fmt: skip
    for stage, (depth, size) in enumerate(zip(depths, taps, strict=True)):
        if stage:
            layers += [_conv(c, 2 * c), _conv(2 * c, 2 * c, 3, 2, groups=2 * c)]
            c *= 2
        for _ in range(depth):
            layers.append(Added(LargeKernel(c, size)))
            layers.append(
                Added(
                    nn.Sequential(
                        nn.BatchNorm2d(c), _conv(c, 4 * c, act=False), nn.GELU(), _conv(4 * c, c, act=False)
                    )
                )
            )
    layers += [nn.BatchNorm2d(c), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes)]
    return nn.Sequential(*layers)


class Gate(nn.Module):
    """Channels weighted by what they are on average."""

    def __init__(self, c: int, inner: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv3d(c, inner, 1), nn.Conv3d(inner, c, 1)

    def forward(self, x: Any) -> Any:
        mean = x.mean((2, 3, 4), keepdim=True)
        return x * torch.sigmoid(self.outer(torch.relu(self.inner(mean))))


def x3d(width: int = 24, depths: Sequence[int] = (3, 5, 11, 7), classes: int = 400) -> nn.Module:
    """Feichtenhofer 2020, X3D-S: bottlenecks whose 3 x 3 x 3 convolution is depthwise."""
    layers: list[nn.Module] = [
        nn.Conv3d(3, width, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
        _conv(width, width, (5, 1, 1), groups=width, axes=3),
    ]
    c = width
    for stage, depth in enumerate(depths):
        k = width << stage
        for block in range(depth):
            inner, stride = 9 * k // 4, 1 if block else (1, 2, 2)
            body = nn.Sequential(
                _conv(c, inner, axes=3),
                _conv(inner, inner, (3, 3, 3), stride, inner, act=False, axes=3),
                *([] if block % 2 else [Gate(inner, 8 * ((inner // 16 + 7) // 8))]),
                nn.SiLU(),
                _conv(inner, k, act=False, axes=3),
            )
            layers.append(Added(body) if block else body)
            layers.append(nn.ReLU())
            c = k
    last = 9 * c // 4
    layers += [_conv(c, last, axes=3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(last, classes)]
    return nn.Sequential(*layers)


class Level(nn.Module):
    """Two convolutions, what is below at half the resolution, and two convolutions of both together."""

    def __init__(self, c: int, width: int, levels: int) -> None:
        super().__init__()
        self.down = self._double(c, width)
        self.below = None
        if levels > 1:
            self.pool, self.below = nn.MaxPool3d(2), Level(width, 2 * width, levels - 1)
            self.up = nn.ConvTranspose3d(2 * width, width, 2, 2)
            self.join = self._double(2 * width, width)

    @staticmethod
    def _double(c: int, k: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inputs in (c, k):
            layers += [
                nn.Conv3d(inputs, k, 3, padding=1, bias=False),
                nn.InstanceNorm3d(k, affine=True),
                nn.LeakyReLU(0.01),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        y = self.down(x)
        if self.below is None:
            return y
        return self.join(torch.cat((self.up(self.below(self.pool(y))), y), 1))


def unet3d(width: int = 32, levels: int = 4, classes: int = 4) -> nn.Module:
    """Çiçek et al. 2016, with the normalization of nnU-Net; a class for each voxel."""
    return nn.Sequential(Level(1, width, levels), nn.Conv3d(width, classes, 1))


class Conformer(nn.Module):
    """The convolution module and the feed-forward module of a Conformer."""

    def __init__(self, c: int, taps: int) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(c), nn.Linear(c, 2 * c)
        self.depthwise, self.batch = nn.Conv1d(c, c, taps, padding=taps // 2, groups=c), nn.BatchNorm1d(c)
        self.narrow = nn.Linear(c, c)
        self.feed = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, c))

    def forward(self, x: Any) -> Any:
        y = nn.functional.glu(self.wide(self.norm(x)), -1).transpose(1, 2)
        y = nn.functional.silu(self.batch(self.depthwise(y))).transpose(1, 2)
        x = x + self.narrow(y)
        return x + 0.5 * self.feed(x)


class Sequence1d(nn.Module):
    """Features of sound by convolutions, blocks over them, and a class for the whole."""

    def __init__(self, features: nn.Module, blocks: nn.Module, c: int, classes: int) -> None:
        super().__init__()
        self.features, self.blocks, self.head = features, blocks, nn.Linear(c, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.features(x).transpose(1, 2)).mean(1))


def wav2vec_conformer(width: int = 512, depth: int = 8, classes: int = 1000) -> nn.Module:
    """The features of wav2vec 2.0 (Baevski et al. 2020) under the convolutions of a Conformer (Gulati et al. 2020)."""
    layers: list[nn.Module] = []
    c = 1
    for number, (taps, stride) in enumerate([(10, 5), *[(3, 2)] * 4, *[(2, 2)] * 2]):
        layers.append(nn.Conv1d(c, width, taps, stride, bias=False))
        layers += [nn.GroupNorm(width, width)] if not number else []
        layers.append(nn.GELU())
        c = width
    return Sequence1d(
        nn.Sequential(*layers), nn.Sequential(*(Conformer(width, 31) for _ in range(depth))), width, classes
    )


class Causal(nn.Module):
    """A block of Mamba without its scan: a causal depthwise convolution of four taps, projections, and a gate."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.Linear(2 * c, c)
        self.depthwise = nn.Conv1d(2 * c, 2 * c, 4, padding=3, groups=2 * c)

    def forward(self, x: Any) -> Any:
        y, gate = self.wide(self.norm(x)).chunk(2, -1)
        y = nn.functional.silu(self.depthwise(y.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        return x + self.narrow(y * nn.functional.silu(gate))


def causal_conv1d(width: int = 1024, depth: int = 12, classes: int = 1000) -> nn.Module:
    """The convolutions of Mamba (Gu and Dao 2023), its scan left out."""
    return Sequence1d(
        nn.Conv1d(64, width, 1), nn.Sequential(*(Causal(width) for _ in range(depth))), width, classes
    )


class Entry(NamedTuple):
    """A network, the shape of an example, how many are a batch, how small one is made, and an example of that."""

    build: Callable[..., nn.Module]
    shape: tuple[int, ...]
    batch: int
    small: Callable[[], nn.Module]
    small_shape: tuple[int, ...]


MODELS: dict[str, Entry] = {
    "replknet": Entry(replknet, (3, 224, 224), 64, lambda: replknet(8, (1, 1), (7, 5), 10), (3, 32, 32)),
    "x3d": Entry(x3d, (3, 13, 160, 160), 32, lambda: x3d(8, (1, 2), 10), (3, 4, 16, 16)),
    "unet3d": Entry(unet3d, (1, 96, 96, 96), 2, lambda: unet3d(4, 2, 3), (1, 8, 8, 8)),
    "wav2vec_conformer": Entry(
        wav2vec_conformer, (1, 160000), 8, lambda: wav2vec_conformer(16, 1, 10), (1, 2000)
    ),
    "causal_conv1d": Entry(causal_conv1d, (64, 2048), 16, lambda: causal_conv1d(16, 1, 10), (64, 33)),
}
