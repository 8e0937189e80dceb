"""Adaptive sharpness of filters and of normalized logits: definitions, small radii, invariance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import First, labels, randn, small_net
from spiritlevel.base.estimate import Status
from spiritlevel.measures.adaptive import filter_sizes, normalized_logits
from spiritlevel.measures.instruments import Instruments

NORMALIZED = (
    "adaptive_worst_normalized",
    "adaptive_box_normalized",
    "adaptive_average_normalized",
)


def measured(name: str, objective: sl.Objective, **options: Any) -> float:
    return sl.MEASURES[name](objective, **options).value


def dense(objective: sl.Objective) -> Tensor:
    return sl.hessian(objective).dense()


def test_a_filter_is_a_row_and_a_bias_itself() -> None:
    net = randomized(nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)))
    objective = sl.Objective(net, (randn(6, 2, 3, 3), labels(6)), F.cross_entropy)
    p = objective.params
    expected = [
        p["0.weight"].flatten(1).norm(dim=1)[:, None].expand(3, 8).reshape(-1),
        p["0.bias"].abs(),
        p["3.weight"].norm(dim=1)[:, None].expand(3, 12).reshape(-1),
        p["3.bias"].abs(),
    ]
    torch.testing.assert_close(filter_sizes(Instruments(objective)), torch.cat(expected))


def test_maps_in_one_tensor_have_filters_of_their_own() -> None:
    """In torch's attention a rescaling of queries against keys moves a third of one tensor."""
    layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, dropout=0.0)
    objective = sl.Objective(
        randomized(First(layer, 4)), (randn(8, 3, 4), labels(8)), F.cross_entropy
    )
    tools = Instruments(objective)
    weight, span = "body.self_attn.in_proj_weight", objective.spans
    rows = objective.params[weight].norm(dim=1)
    sizes = filter_sizes(tools)[span[weight]].reshape(12, 4)
    torch.testing.assert_close(sizes, rows[:, None].expand(12, 4))
    layers = tools.group.layerwise()
    twin = layers.apply(objective, layers.random(2, 1.0))
    here, there = (measured("frobenius_spectral", o) for o in (objective, twin))
    assert there == pytest.approx(here, rel=1e-6)


def test_small_radii_are_second_order() -> None:
    """rho^2/2 lambda_max(T H T) at rest, and sigma^2/2 tr(T H T) at any point."""
    objective = small_net()
    t = filter_sizes(Instruments(objective))
    scaled = t[:, None] * dense(objective) * t
    rho = 1e-3
    slope = float((t * objective.gradient()).norm())
    top = float(torch.linalg.eigvalsh(scaled)[-1])
    found = sl.MEASURES["filterwise_worst"](objective, radius=rho)
    assert found.status is Status.LOWER_BOUND
    assert found.value <= rho * slope + rho**2 / 2 * top * 1.01
    assert found.value >= max(rho * slope, rho**2 / 2 * top) * 0.99
    average = sl.MEASURES["filterwise_average"](objective, sigma=rho)
    assert average.stderr is not None
    expected = rho**2 / 2 * float(scaled.trace())
    assert abs(average.value - expected) <= 4 * average.stderr + 0.01 * expected


def test_normalized_logits_by_hand() -> None:
    objective = small_net()
    f = objective.predictions()
    y = torch.cat([batch[1] for batch in objective.batches])
    f = f - f.mean(1, keepdim=True)
    expected = float(F.cross_entropy(f / f.norm(dim=1, keepdim=True), y))
    there = normalized_logits(objective)
    assert there.value() == pytest.approx(expected, rel=1e-12)
    assert there.to(torch.float32).value() == pytest.approx(expected, rel=1e-5)
    step = 1e-6 * randn(objective.size)
    ahead, behind = (there.at(there.vector + s * step).value() for s in (1, -1))
    assert float(there.gradient() @ step) == pytest.approx((ahead - behind) / 2, rel=1e-5)
    assert objective.value() != there.value()  # the given one is as it was


@pytest.mark.parametrize("name", NORMALIZED)
def test_no_scale_of_the_outputs_is_seen(name: str) -> None:
    """All logits times 7, by the last layer: plain sharpness moves, that of directions does not."""
    objective = small_net()
    p = objective.params
    longer = objective.at({n: 7 * p[n] for n in ("4.weight", "4.bias")})
    here, there = measured(name, objective), measured(name, longer)
    assert there == pytest.approx(here, rel=1e-6)
    plain = name.removesuffix("_normalized")
    assert measured(plain, longer) != pytest.approx(measured(plain, objective), rel=0.1)


@pytest.mark.parametrize("name", [*NORMALIZED, "adaptive_box"])
def test_no_units_of_measurement_are_seen(name: str) -> None:
    objective = small_net()
    factors = torch.exp(randn(objective.size, seed=8))
    other = objective.reparametrize(sl.coordinates.Diagonal(factors))
    assert measured(name, other) == pytest.approx(measured(name, objective), rel=1e-6)


def test_logits_of_tokens_are_normalized_one_by_one() -> None:
    """(examples, classes, places): along the classes."""
    net = randomized(nn.Conv1d(2, 3, 1))
    x, y = randn(5, 2, 4), labels(5, 4)
    objective = sl.Objective(net, (x, y), F.cross_entropy)
    f = net(x).detach()
    f = f - f.mean(1, keepdim=True)
    expected = F.cross_entropy(f / f.norm(dim=1, keepdim=True), y)
    assert normalized_logits(objective).value() == pytest.approx(float(expected), rel=1e-12)


def test_a_loss_without_classes_is_refused() -> None:
    objective = sl.Objective(randomized(nn.Linear(2, 1)), (randn(5, 2), randn(5, 1)), F.mse_loss)
    with pytest.raises(sl.SpiritlevelError, match="a cross-entropy of several classes"):
        measured("adaptive_box_normalized", objective)
