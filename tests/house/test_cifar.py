"""The CIFAR networks of the examples: sizes that were published, and what the layers compute."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from cifar import Block, DenseNet, Layer, ResNet, Transition


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def resnet_size(n: int, w: int) -> int:
    """3 x 3 convolutions with two numbers per channel for each normalization, and the head."""
    stem = 27 * w + 2 * w
    widths = (w, w), (w, 2 * w), (2 * w, 4 * w)
    firsts = sum(9 * a * b + 9 * b * b + 4 * b for a, b in widths)
    others = (n - 1) * sum(18 * b * b + 4 * b for _, b in widths)
    return stem + firsts + others + 40 * w + 10


def densenet_size(k: int, blocks: Sequence[int]) -> int:
    """Layers on c channels have 2c + 4kc + 8k + 36k^2, transitions 2c + c^2 / 2."""
    c, total = 2 * k, 27 * 2 * k
    for number, layers in enumerate(blocks):
        if number:
            total, c = total + 2 * c + c * (c // 2), c // 2
        for _ in range(layers):
            total, c = total + 2 * c + 4 * k * c + 8 * k + 36 * k * k, c + k
    return total + 2 * c + 10 * c + 10


@pytest.mark.parametrize(("depth", "published"), [(20, 269_722), (56, 853_018), (110, 1_727_962)])
def test_resnets_have_the_published_sizes(depth: int, published: int) -> None:
    assert resnet_size((depth - 2) // 6, 16) == published
    assert count(ResNet(depth)) == count(ResNet(depth, skip=False)) == published


def test_a_resnet_of_another_width_has_the_size_of_the_formula() -> None:
    assert count(ResNet(14, width=6)) == resnet_size(2, 6)


def test_densenets_have_the_published_sizes() -> None:
    # torchvision's DenseNet-121 has 7,978,856; its head has 1000 classes, and its stem is a 7 x 7
    # convolution with a normalization instead of a 3 x 3 one
    on_cifar = 7_978_856 - 1025 * 1000 + 1025 * 10 - (49 * 3 * 64 + 2 * 64) + 9 * 3 * 64
    assert densenet_size(32, (6, 12, 24, 16)) == on_cifar == 6_956_298
    assert count(DenseNet()) == on_cifar
    # DenseNet-BC of 100 layers: 0.8 M in the paper
    assert count(DenseNet(12, (16, 16, 16))) == densenet_size(12, (16, 16, 16)) == 769_162


@pytest.mark.parametrize("net", [ResNet(8, 4), ResNet(8, 4, skip=False), DenseNet(4, (2, 2, 2))])
def test_they_classify(net: nn.Module) -> None:
    found = net(torch.randn(3, 3, 32, 32))
    assert found.shape == (3, 10)
    assert found.isfinite().all()


def test_depths_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"depth=18 is not 6n \+ 2"):
        ResNet(18)


def test_without_skips_the_weights_are_the_same_and_the_function_is_another() -> None:
    net, plain = ResNet(14, 4), ResNet(14, 4, skip=False)
    plain.load_state_dict(net.state_dict())
    x = torch.randn(4, 3, 32, 32)
    assert not torch.allclose(net.eval()(x), plain.eval()(x), atol=1e-2)


def silenced(net: nn.Module) -> None:
    """Blocks whose last normalization gives zero."""
    for block in net.modules():
        if isinstance(block, Block):
            nn.init.zeros_(block.bn2.weight)
            nn.init.zeros_(block.bn2.bias)


def test_a_silent_block_hands_on_its_input_if_there_is_a_skip() -> None:
    net, plain = ResNet(14, 4).eval(), ResNet(14, 4, skip=False).eval()
    silenced(net)
    silenced(plain)
    x = torch.randn(4, 3, 32, 32)
    stem = F.relu(net.bn1(net.conv1(x)))
    kept = torch.zeros(4, 16)  # every fourth pixel, between two and then four channels of zeros
    kept[:, 6:10] = stem[:, :, ::4, ::4].mean((2, 3))
    torch.testing.assert_close(net(x), net.linear(kept))
    torch.testing.assert_close(plain(x), plain.linear.bias.expand(4, 10))


def test_a_dense_layer_keeps_what_it_was_given() -> None:
    x = torch.randn(2, 6, 8, 8)
    layer, transition = Layer(6, 3), Transition(6)
    found: Tensor = layer(x)
    assert found.shape == (2, 9, 8, 8)
    assert torch.equal(found[:, :6], x)
    assert transition(x).shape == (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("net", "rescalings"),
    [
        # with skips: a block's inner channels, and the channels of the last stage, to which the
        # earlier ones are tied; without: every channel behind a normalization
        (ResNet(14, 3), 2 * (3 + 6 + 12) + 12),
        (ResNet(14, 3, skip=False), 3 + 4 * (3 + 6 + 12)),
        (DenseNet(2, (1, 1)), (4 + 8) + 6 + (3 + 8) + 5),
    ],
    ids=["skips", "no skips", "dense"],
)
def test_skips_tie_channels(net: nn.Module, rescalings: int) -> None:
    data = torch.randn(2, 3, 32, 32), torch.arange(2)
    group = sl.symmetries(sl.Objective(net.eval(), data, F.cross_entropy))
    assert group.dim == rescalings
