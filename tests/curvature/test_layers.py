"""Squares layer by layer: those of single examples, and only where every layer is understood."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.curvature import diagonals, layers


class Tokens(nn.Module):
    """A linear layer at every position, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.each(x)).mean(1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.unused, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.unused(x)
        h = self.one(x)
        h = h + torch.relu_(self.two(h))
        return self.last(h)


def normed() -> nn.Module:
    norm = nn.BatchNorm1d(5)
    nn.init.normal_(norm.weight)
    norm.running_mean, norm.running_var = randn(5).float(), randn(5, seed=3).float().exp()
    return nn.Sequential(nn.Linear(4, 5), norm, nn.ReLU(inplace=True), nn.Linear(5, 3))


def convolutional() -> nn.Module:
    """Strides, holes, groups, paddings of both kinds, a norm, one position at the end."""
    norm = nn.BatchNorm2d(6)
    nn.init.normal_(norm.weight)
    norm.running_mean, norm.running_var = randn(6).float(), randn(6, seed=3).float().exp()
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=(1, 2), stride=(2, 1)), norm, nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, (1, 3), groups=2, dilation=(1, 2), padding="same", bias=False), nn.ReLU(),
        nn.Conv2d(4, 3, (3, 8)), nn.Flatten(),
    )  # fmt: skip


def of_lines_and_blocks() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Unflatten(2, (2, 2, 2)),
        nn.Conv3d(4, 3, (2, 1, 2), groups=1), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


PLAIN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (4,)),
    "without biases": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "tokens": (Tokens, (7, 4)),
    "residual, with an unused layer": (Residual, (4,)),
    "norm of rows": (normed, (4,)),
    "convolutions": (convolutional, (2, 5, 6)),
    "convolutions of lines and blocks": (of_lines_and_blocks, (2, 8)),
}


def objective_of(model: nn.Module, shape: tuple[int, ...]) -> sl.Objective:
    return sl.Objective(model.double(), (randn(9, *shape), labels(9)), F.cross_entropy)


@pytest.mark.parametrize("name", PLAIN)
def test_by_layers_it_is_the_diagonal(name: str) -> None:
    torch.manual_seed(0)
    make, shape = PLAIN[name]
    model = make()
    objective = objective_of(model, shape)
    assert diagonals._layers(objective) is not None
    found = sl.ggn_diagonal(objective)
    dense = sl.ggn(objective).dense().diagonal()
    torch.testing.assert_close(found.values, dense, rtol=1e-9, atol=1e-12)
    data = (randn(9, *shape), labels(9))
    some = sl.Objective(model, data, F.cross_entropy, params="*weight")
    torch.testing.assert_close(
        sl.ggn_diagonal(some).values, sl.ggn(some).dense().diagonal(), rtol=1e-9, atol=1e-12
    )


def test_statistics_that_moved_along_are_those_of_the_twin() -> None:
    torch.manual_seed(0)
    objective = objective_of(normed(), (4,))
    group = sl.symmetries(objective, statistics="free")
    twin = group.apply(objective, group.random(0))
    assert diagonals._layers(twin) is not None
    dense = sl.ggn(twin).dense().diagonal()
    torch.testing.assert_close(sl.ggn_diagonal(twin).values, dense, rtol=1e-8, atol=1e-10)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


def twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 3))


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].register_forward_hook(lambda module, given, made: made * given[0].sum(1, keepdim=True))
    return model


class Cubed(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight**3


def parametrized() -> nn.Module:
    layer = nn.Linear(4, 5)
    nn.utils.parametrize.register_parametrization(layer, "weight", Cubed())
    return nn.Sequential(layer, nn.Linear(5, 3))


class Borrowed(nn.Module):
    """The weights of a layer, used a second time by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.one(x)) @ self.one.weight)


OTHERS = {
    "tied": tied,
    "twice": twice,
    "hooked": hooked,
    "parametrized": parametrized,
    "borrowed": Borrowed,
    "another layer": lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
    "convolution around the edges": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"),
        nn.Flatten(), nn.Linear(4, 3)),
    "transposed convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.ConvTranspose1d(2, 2, 2), nn.Flatten(), nn.Linear(6, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_understood_is_made_example_by_example(name: str) -> None:
    torch.manual_seed(0)
    objective = objective_of(OTHERS[name](), (4,))
    assert diagonals._layers(objective) is None
    dense = sl.ggn(objective).dense().diagonal()
    torch.testing.assert_close(sl.ggn_diagonal(objective).values, dense, rtol=1e-9, atol=1e-12)


class Sometimes(nn.Module):
    """Borrows the weights of a layer, but only from some examples on."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.one(x))
        far = (x[:, :1] > 100).to(x)
        return self.last(h + far * (h @ self.one.weight))


def test_what_single_batches_do_is_seen_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six examples are compared beforehand; the others are looked at when their turn comes."""
    torch.manual_seed(0)
    x = randn(40, 4)
    x[-3:, 0] = 101.0
    objective = sl.Objective(Sometimes().double(), (x, labels(40)), F.cross_entropy, microbatch=10)
    near = objective.on([(x[:10], labels(40)[:10])])
    monkeypatch.setattr(diagonals, "telling", lambda objective, n: near)
    assert diagonals._layers(objective) is not None
    dense = sl.ggn(objective).dense().diagonal()
    torch.testing.assert_close(sl.ggn_diagonal(objective).values, dense, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1e-14, 1e14])
def test_large_and_small_inputs_keep_their_squares(size: float) -> None:
    """In float32, whose squares end at 1e38: of gradients of 1e28 here, and of 1e-28."""
    torch.manual_seed(0)
    layer, last = nn.Conv1d(2, 3, 2, bias=False), nn.Linear(9, 3, bias=False)
    model = nn.Sequential(layer, nn.Flatten(), last)
    with torch.no_grad():
        last.weight.mul_(size)
        layer.weight.mul_(1 / size**2)
    data = (size * randn(9, 2, 4).float(), randn(9, 3).float())
    objective = sl.Objective(model, data, F.mse_loss, params="0.*")
    assert diagonals._layers(objective) is not None
    found = sl.ggn_diagonal(objective).values
    exact = sl.ggn_diagonal(objective.to(torch.float64)).values
    assert bool((exact > 0).all())
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=0)


def test_no_hook_is_left() -> None:
    objective = objective_of(PLAIN["mlp"][0](), (4,))
    sl.ggn_diagonal(objective)
    assert not any(module._forward_hooks for module in objective.module.modules())
    known = layers.layers_of(objective)
    assert known is not None
    assert set(known) == {"0", "2"}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("mlp", 3 * (5 + 3) + 5),  # of all outputs, and the inputs of a layer
        ("tokens", 3 * (7 * 6 + 3) + 7 * 4 + 3 * 3 * 30),  # and gradients of the one with positions
    ],
)
def test_what_an_example_needs(name: str, numbers: int) -> None:
    make, shape = PLAIN[name]
    objective = objective_of(make(), shape)
    known = layers.layers_of(objective)
    assert known is not None
    assert layers.numbers(objective, known, objective.few(1), 3) == numbers
