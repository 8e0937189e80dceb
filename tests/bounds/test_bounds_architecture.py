"""The numbers of a network against its matrices, written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel import Objective, SpiritlevelError
from spiritlevel.bounds.architecture import Chain, chain, sizes
from spiritlevel.orbit import representative


def objective(*layers: nn.Module, shape: tuple[int, ...] = (4,), classes: int = 3) -> Objective:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(12, *shape, generator=draws, dtype=torch.float64)
    return Objective(
        nn.Sequential(*layers).double(), (x, torch.arange(12) % classes), F.cross_entropy
    )


def mlp(bias: bool = True) -> Objective:
    torch.manual_seed(0)
    return objective(nn.Linear(4, 6, bias=bias), nn.ReLU(), nn.Linear(6, 3, bias=bias))


def matrix_of(of: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """A linear map column by column."""
    size = math.prod(shape)
    return of(torch.eye(size, dtype=torch.float64).reshape(size, *shape)).reshape(size, -1).T


def check(found: Chain, matrices: list[Tensor], before: list[Tensor]) -> None:
    """Norms that are those of the matrices, or above them."""
    for one, a, m in zip(found.layers, matrices, before, strict=True):
        assert one.spectral >= torch.linalg.matrix_norm(a, 2) - 1e-12
        assert one.frobenius >= a.norm() - 1e-12
        assert one.moved >= (a - m).norm() - 1e-12
        assert one.moved_rows >= (a - m).norm(dim=1).sum() - 1e-12
        assert (one.outputs, one.inputs) == tuple(a.shape)


def folded(net: nn.Module) -> list[Tensor]:
    """[[W, b], [0, 1]], and [W, b] at the end."""
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
    whole = [torch.cat([m.weight, m.bias[:, None]], 1).detach() for m in layers]
    end = [torch.tensor([[0.0] * (a.shape[1] - 1) + [1.0]]).to(a) for a in whole]
    return [torch.cat(pair) for pair in zip(whole[:-1], end, strict=False)] + whole[-1:]


def test_linear_layers_with_biases_are_matrices_of_a_longer_input() -> None:
    o = mlp()
    found, a = chain(o), folded(o.module)
    passed = [torch.zeros_like(one) for one in a]
    passed[0][-1, -1] = 1.0
    check(found, a, passed)
    for one, own, m in zip(found.layers, a, passed, strict=True):  # and exactly so
        assert one.spectral == pytest.approx(float(torch.linalg.matrix_norm(own, 2)), rel=1e-12)
        assert one.frobenius == pytest.approx(float(own.norm()), rel=1e-12)
        assert one.moved_rows == pytest.approx(float((own - m).norm(dim=1).sum()), rel=1e-12)
    longer = torch.cat([o.batches[0][0], torch.ones(12, 1, dtype=torch.float64)], 1)
    torch.testing.assert_close(
        (longer @ a[0].T).relu() @ a[1].T, o.predictions(), rtol=1e-12, atol=1e-12
    )
    assert found.radius == pytest.approx(float(longer.norm(dim=1).max()), rel=1e-12)
    assert found.length == pytest.approx(float(longer.norm()), rel=1e-12)
    assert (found.width, found.depth, found.classes, found.parameters) == (7, 2, 3, 51)
    f, y = o.predictions(), o.batches[0][1]
    own = f.gather(1, y[:, None])[:, 0]
    other = f.scatter(1, y[:, None], -math.inf).max(1).values
    torch.testing.assert_close(found.margins, own - other)
    assert found.share_below(0.05) == float((own - other <= 0.05).double().mean())


def test_without_biases_nothing_is_added() -> None:
    o, start = mlp(bias=False), torch.randn(42, dtype=torch.float64)
    a = [m.weight.detach() for m in o.module.modules() if isinstance(m, nn.Linear)]
    found = chain(o, start)
    check(found, a, list(o.named(start).values()))
    assert found.layers[0].moved == pytest.approx(float((a[0] - start[:24].view(6, 4)).norm()))
    assert found.radius == pytest.approx(float(o.batches[0][0].norm(dim=1).max()))
    assert not found.biased


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "padded": {"kernel_size": 3, "padding": 1},
    "strided": {"kernel_size": 3, "padding": 1, "stride": 2},
    "dilated": {"kernel_size": (3, 2), "dilation": 2, "groups": 2},
    "same": {"kernel_size": 3, "padding": "same"},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_the_matrices_that_they_are_on_images(name: str) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 4, bias=False, **CONVOLUTIONS[name]).double()
    units = layer(torch.zeros(1, 2, 6, 7, dtype=torch.float64)).numel()
    head = nn.Linear(units, 3, bias=False)
    o = objective(layer, nn.ReLU(), nn.Flatten(), head, shape=(2, 6, 7))
    own = dict(o.module.named_modules())["0"]
    a = [matrix_of(own, (2, 6, 7)).detach(), o.params["3.weight"]]
    found = chain(o)
    check(found, a, [torch.zeros_like(one) for one in a])
    top = float(torch.linalg.matrix_norm(a[0], 2))
    assert found.layers[0].spectral <= 1.6 * top  # not loose either


def test_a_convolution_with_a_bias_is_bounded_by_its_blocks() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 2, 3, padding=1).double()
    o = objective(layer, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3), shape=(1, 4, 4))
    plain = nn.Conv2d(1, 2, 3, padding=1, bias=False).double()
    plain.weight.data = layer.weight.data
    bias = layer.get_parameter("bias")
    rows = torch.cat([matrix_of(plain, (1, 4, 4)), bias.repeat_interleave(16)[:, None]], 1)
    end = torch.tensor([[0.0] * 16 + [1.0]], dtype=torch.float64)
    first = torch.cat([rows, end]).detach()
    passed = torch.zeros_like(first)
    passed[-1, -1] = 1.0
    found = chain(o)
    check(Chain(found.layers[:1], *list(vars(found).values())[1:]), [first], [passed])
    assert found.layers[1].inputs == 8 + 1
    assert any("periodic" in said for said in found.assumptions)


def test_norms_move_along_the_orbit_and_margins_do_not() -> None:
    o = mlp(bias=False)
    here, there = chain(o), chain(representative(o).objective)
    torch.testing.assert_close(here.margins, there.margins)
    assert sum(a.frobenius**2 for a in there.layers) < sum(a.frobenius**2 for a in here.layers)


def test_sizes_are_those_of_the_decision_between_two_classes() -> None:
    two = objective(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2), classes=2)
    assert sizes(two) == sizes(two)
    assert (sizes(two).parameters, sizes(two).units) == ((30, 7), (6, 1))
    with pytest.raises(SpiritlevelError, match="two classes; this network has 3 outputs"):
        sizes(mlp())


class Beside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x + self.a(x).relu())


REFUSED = {
    "sigmoid is not known": (nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3)),
    "gelu is not known": (nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)),
    "leaky_relu is not known": (nn.Linear(4, 4), nn.LeakyReLU(2.0), nn.Linear(4, 3)),
    "layer_norm is not known": (nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "batch_norm is not known": (nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    "joins what ran beside": (Beside(),),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_no_theorem_is_about_is_refused(why: str) -> None:
    with pytest.raises(SpiritlevelError, match=why):
        chain(objective(*REFUSED[why]))


def test_pools_are_short_where_they_are_known_to_be() -> None:
    def pooled(pool: nn.Module, units: int) -> Objective:
        return objective(
            nn.Conv2d(1, 2, 3), pool, nn.Flatten(), nn.Linear(units, 3), shape=(1, 8, 8)
        )

    for pool, units in (
        (nn.AvgPool2d(2), 18),
        (nn.MaxPool2d(2), 18),
        (nn.AdaptiveAvgPool2d(3), 18),
    ):
        assert chain(pooled(pool, units)).depth == 2
    with pytest.raises(SpiritlevelError, match="max_pool2d is not known"):
        chain(pooled(nn.MaxPool2d(3, 1), 32))
    with pytest.raises(SpiritlevelError, match="avg_pool2d is not known"):
        chain(pooled(nn.AvgPool2d(2, padding=1), 32))
    with pytest.raises(SpiritlevelError, match="adaptive_avg_pool2d is not known"):
        chain(pooled(nn.AdaptiveAvgPool2d(4), 32))


def test_only_some_of_the_weights_are_not_enough() -> None:
    net, o = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double(), mlp()
    some = Objective(net, o.batches[0], F.cross_entropy, params="0.*")
    with pytest.raises(SpiritlevelError, match="every layer to be chosen parameters"):
        chain(some)
