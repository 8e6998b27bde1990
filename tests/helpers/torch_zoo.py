"""Networks of the literature in plain PyTorch, as compact as they can be said; widths and depths can be reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


def _conv(
    c: int, k: int, taps: int = 1, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(c, k, taps, stride, taps // 2, groups=groups, bias=False),
        nn.BatchNorm2d(k),
    ]
    if act is not None:
        layers.append(act(inplace=True))
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """A block of a ResNet: two 3x3, or a bottleneck of `inner` channels in `groups` groups."""

    def __init__(self, c: int, k: int, stride: int, groups: int = 1, inner: int = 0) -> None:
        super().__init__()
        if inner:
            self.body = nn.Sequential(
                _conv(c, inner), _conv(inner, inner, 3, stride, groups), _conv(inner, k, act=None)
            )
        else:
            self.body = nn.Sequential(_conv(c, k, 3, stride), _conv(k, k, 3, act=None))
        self.shortcut = nn.Identity() if c == k and stride == 1 else _conv(c, k, 1, stride, act=None)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        y += self.shortcut(x)
        return self.act(y)


def _resnet(
    depths: Sequence[int], widths: Sequence[int], classes: int, stem: int, groups: int = 1, divide: int = 0
) -> nn.Module:
    """Blocks of two convolutions, or bottlenecks whose middle has a `divide`-th of the channels, in groups."""
    layers: list[nn.Module] = [_conv(3, stem, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = stem
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Residual(c, width, stride, groups, width // divide if divide else 0))
            c = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes)]
    return nn.Sequential(*layers)


def resnet18(width: int = 64, depths: Sequence[int] = (2, 2, 2, 2), classes: int = 1000) -> nn.Module:
    """He et al. 2015."""
    return _resnet(depths, [width << stage for stage in range(len(depths))], classes, width)


def resnet50(width: int = 64, depths: Sequence[int] = (3, 4, 6, 3), classes: int = 1000) -> nn.Module:
    """He et al. 2015, the stride at the 3x3 as everybody has it."""
    return _resnet(depths, [4 * width << stage for stage in range(len(depths))], classes, width, 1, 4)


def resnext50(
    width: int = 64, depths: Sequence[int] = (3, 4, 6, 3), groups: int = 32, classes: int = 1000
) -> nn.Module:
    """Xie et al. 2016, 32 groups of 4 channels."""
    return _resnet(depths, [4 * width << stage for stage in range(len(depths))], classes, width, groups, 2)


class Inverted(nn.Module):
    """An inverted residual, with squeeze and excitation where `squeezed` channels are given."""

    def __init__(
        self, c: int, k: int, taps: int, stride: int, expand: int, act: Any, squeezed: int = 0
    ) -> None:
        super().__init__()
        inner = c * expand
        layers: list[nn.Module] = [] if expand == 1 else [_conv(c, inner, act=act)]
        layers.append(_conv(inner, inner, taps, stride, inner, act))
        if squeezed:
            layers.append(Squeeze(inner, squeezed))
        layers.append(_conv(inner, k, act=None))
        self.body = nn.Sequential(*layers)
        self.is_residual = stride == 1 and c == k

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.is_residual else self.body(x)


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, c: int, inner: int) -> None:
        super().__init__()
        self.pool, self.one, self.two = (
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(c, inner, 1),
            nn.Conv2d(inner, c, 1),
        )

    def forward(self, x: Any) -> Any:
        s = torch.nn.functional.silu(self.one(self.pool(x)), inplace=True)
        return x * torch.sigmoid(self.two(s))


_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_B0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip


def _mobile(rows: Sequence[Any], divide: int, classes: int, act: Any, squeeze: bool, p: float) -> nn.Module:
    c = 32 // divide
    layers: list[nn.Module] = [_conv(3, c, 3, 2, act=act)]
    for expand, k, depth, stride, *taps in rows:
        for block in range(depth):
            layers.append(
                Inverted(c, k // divide, taps[0] if taps else 3, 1 if block else stride, expand, act,
                         max(1, c // 4) if squeeze else 0)
            )  # fmt: skip
            c = k // divide
    last = 1280 // divide
    layers += [
        _conv(c, last, act=act),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(p),
        nn.Linear(last, classes),
    ]
    return nn.Sequential(*layers)


def mobilenet_v2(divide: int = 1, rows: Sequence[Any] = _V2, classes: int = 1000) -> nn.Module:
    """Sandler et al. 2018."""
    return _mobile(rows, divide, classes, nn.ReLU6, False, 0.2)


def efficientnet_b0(divide: int = 1, rows: Sequence[Any] = _B0, classes: int = 1000) -> nn.Module:
    """Tan and Le 2019."""
    return _mobile(rows, divide, classes, nn.SiLU, True, 0.2)


class LastNorm(nn.LayerNorm):
    """Layer normalization of the channels of (N, C, H, W)."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Next(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c, eps=1e-6)
        self.wide, self.act, self.narrow = nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.full((c, 1, 1), 1e-1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(self.act(self.wide(y))).permute(0, 3, 1, 2)
        return self.scale * y + x


def convnext_tiny(width: int = 96, depths: Sequence[int] = (3, 3, 9, 3), classes: int = 1000) -> nn.Module:
    """Liu et al. 2022."""
    c = width
    layers: list[nn.Module] = [nn.Conv2d(3, c, 4, 4), LastNorm(c, eps=1e-6)]
    for stage, depth in enumerate(depths):
        if stage:
            layers += [LastNorm(c, eps=1e-6), nn.Conv2d(c, 2 * c, 2, 2)]
            c *= 2
        layers += [Next(c) for _ in range(depth)]
    layers += [nn.AdaptiveAvgPool2d(1), LastNorm(c, eps=1e-6), nn.Flatten(), nn.Linear(c, classes)]
    return nn.Sequential(*layers)


def vgg16(width: int = 64, classes: int = 1000, dense: int = 4096, side: int = 7) -> nn.Module:
    """Simonyan and Zisserman 2014."""
    layers: list[nn.Module] = []
    c = 3
    for stage, depth in enumerate((2, 2, 3, 3, 3)):
        k = width * min(8, 1 << stage)
        for _ in range(depth):
            layers += [nn.Conv2d(c, k, 3, padding=1), nn.ReLU(inplace=True)]
            c = k
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten()]
    for inputs, outputs in ((c * side * side, dense), (dense, dense)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True), nn.Dropout()]
    layers.append(nn.Linear(dense, classes))
    return nn.Sequential(*layers)


MODELS: dict[str, Callable[..., nn.Module]] = {
    function.__name__: function
    for function in (resnet18, resnet50, vgg16, mobilenet_v2, convnext_tiny, efficientnet_b0, resnext50)
}
SMALL: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet18(8, (1, 2), 10),
    "mobilenet_v2": lambda: mobilenet_v2(8, _V2[:3], 10),
    "efficientnet_b0": lambda: efficientnet_b0(8, _B0[:2], 10),
    "convnext_tiny": lambda: convnext_tiny(8, (1, 1), 10),
    "vgg16": lambda: vgg16(4, 10, 16, 1),
    "resnet50": lambda: resnet50(4, (1, 1), 10),
    "resnext50": lambda: resnext50(4, (1, 1), 2, 10),
}


def settled(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in evaluation mode with statistics that are not those of nothing, and activations that stay of size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0.0, 0.1, generator=generator)  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2.0, generator=generator)  # type: ignore[union-attr]
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(0.0, 0.1, generator=generator)
            elif isinstance(module, (nn.Conv2d, nn.Linear)):
                fan = module.weight[0].numel()
                module.weight.normal_(0.0, fan**-0.5, generator=generator)
    return model.eval()
