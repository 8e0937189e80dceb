"""Bounds over boxes of parameters, against an attack that climbs inside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import labels, randn
from enclosed import ENCLOSED, climbed
from spiritlevel import Objective
from spiritlevel.symmetry.tracing.operations import OPERATIONS as TABLE
from spiritlevel.witnesses.enclosure import largest_gradient, largest_loss
from spiritlevel.witnesses.intervals import Interval, NotEnclosed
from spiritlevel.witnesses.volume import worst_in_box


@pytest.mark.parametrize("name", ENCLOSED)
def test_no_point_of_the_box_is_above_the_bound(name: str) -> None:
    objective = ENCLOSED[name]()
    value = objective.value()
    assert largest_loss(objective, 0.0) == pytest.approx(value, rel=1e-12)
    for radius in (1e-4, 0.05):
        bound = largest_loss(objective, radius)
        assert bound is not None
        assert value < climbed(objective, radius) <= bound
        assert value < worst_in_box(objective, radius) <= bound
    # the bound is of first order: its excess is not above the moves times all weights by much
    slope = float(objective.gradient().abs().sum())
    assert 0.99 * slope * 1e-7 <= (largest_loss(objective, 1e-7) or 0) - value <= 1e-4


def random_intervals(*shapes: tuple[int, ...], seed: int = 0) -> list[Interval]:
    draws = torch.Generator().manual_seed(seed)
    found = []
    for shape in shapes:
        ends = torch.randn(2, *shape, generator=draws, dtype=torch.float64)
        found.append(Interval(ends.amin(0), ends.amax(0)))
    return found


OPERATIONS = {
    "add": lambda a, b: torch.add(a, b, alpha=0.5),
    "add, negative": lambda a, b: torch.add(a, b, alpha=-0.5),
    "sub": lambda a, b: torch.sub(a, b, alpha=2),
    "from a number": lambda a, b: 3 - a,
    "mul": lambda a, b: a * b,
    "of one": lambda a, b: a * a,
    "div": lambda a, b: a / (1.5 + b.tanh()),
    "pow": lambda a, b: a**2 + b**3,
    "abs": lambda a, b: a.abs() - b,
    "norm": lambda a, b: torch.linalg.vector_norm(a, dim=1) * b.norm(),
    "matmul": lambda a, b: a @ b.T,
    "batches of matrices": lambda a, b: a[None] @ b.T[None],
    "linear": lambda a, b: F.linear(a, b, a[:, 0]),
    "convolution": lambda a, b: F.conv1d(a[None, :2], b[None, :2, :2], a[:1, 0], padding=1),
    "transposed convolution": lambda a, b: F.conv_transpose1d(a[None, :2], b[:2, None, :2]),
    "softmax": lambda a, b: a.softmax(1) * b,
    "log_softmax": lambda a, b: a.log_softmax(0),
    "logsumexp": lambda a, b: a.logsumexp(1),
    "softplus": lambda a, b: F.softplus(a) - b.clamp(min=0.1),
    "where": lambda a, b: torch.where(torch.eye(3).bool(), a, -b),
    "maximum": lambda a, b: torch.maximum(a, b).cumsum(0),
    "normed by statistics": lambda a, b: F.batch_norm(
        a, torch.ones(3).double(), torch.full((3,), 2.0).double(), b[0], b[1]
    ),
    "squared distance": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none", delta=0.2),
    "in single precision": lambda a, b: a.float().double() + b,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_stays_between_its_bounds(name: str) -> None:
    """Values at the ends and inside, and one of them at least near a bound."""
    operation, draws = OPERATIONS[name], torch.Generator().manual_seed(1)
    for seed in range(5):
        a, b = random_intervals((3, 3), (3, 3), seed=seed)
        found = operation(a, b)
        assert isinstance(found, Interval)
        for trial in range(60):
            shares = torch.rand(2, 3, 3, generator=draws, dtype=torch.float64)
            shares = shares.round() if trial % 2 else shares
            x, y = (v.low + s * (v.high - v.low) for v, s in zip((a, b), shares, strict=True))
            value = operation(x, y)
            assert value.shape == found.shape
            assert bool((value >= found.low - 1e-12).all())
            assert bool((value <= found.high + 1e-12).all())


def test_logits_that_are_far_apart_lose_no_digits() -> None:
    """log(1 - p) of a confident net: the others sum to e^-80, and not to 0."""
    logits = torch.tensor([[0.0, -80.0, -81.0]]).double()
    found = Interval(logits, logits.clone()).log_softmax(1)
    assert isinstance(found, Interval)
    torch.testing.assert_close(found.low, logits.log_softmax(1), rtol=1e-15, atol=1e-30)
    wide = Interval(logits - torch.tensor([100.0, 0, 0]), logits.clone()).log_softmax(1)
    assert isinstance(wide, Interval)
    expected = -100 - torch.tensor([-100.0, -80.0, -81.0]).double().logsumexp(0)
    assert float(wide.low[0, 0]) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    "operation",
    [
        F.gelu,
        lambda a: a / a,
        lambda a: F.leaky_relu(a, -0.1),
        lambda a: a.round(),
        lambda a: a.long(),
        lambda a: (a > 0).double(),
        lambda a: torch.zeros(3, 3).double().add_(a),
        lambda a: a.t_(),
        lambda a: F.max_pool2d(a[None, None], 2, return_indices=True)[1] + 1,
        lambda a: F.layer_norm(a, (3,)),
        lambda a: F.batch_norm(a, None, None, training=True),
        lambda a: F.nll_loss(a, torch.arange(3), weight=torch.tensor([1.0, -1.0, 1.0]).double()),
        lambda a: F.binary_cross_entropy_with_logits(a, 2 + torch.zeros(3, 3).double()),
    ],
)
def test_what_has_no_rule_is_refused(operation: Callable[[Tensor], Tensor]) -> None:
    (a,) = random_intervals((3, 3))
    with pytest.raises(NotEnclosed), torch.no_grad():
        operation(a)


def test_every_rule_is_of_an_operation_that_exists() -> None:
    bounded = [name for name, operation in TABLE.items() if operation.interval is not None]
    assert len(bounded) > 90
    assert [name for name in bounded if not hasattr(torch.ops.aten, name)] == []


def deep(*layers: nn.Module) -> Objective:
    net = nn.Sequential(*layers).double()
    for i, p in enumerate(net.parameters()):
        p.data = randn(*p.shape, seed=i)
    return Objective(net, (randn(12, 4), labels(12)), F.cross_entropy)


def test_gradients_of_nets_that_are_no_plain_chains_have_no_bound() -> None:
    again = nn.Linear(4, 4)
    assert largest_gradient(deep(again, nn.ReLU(), again), 0.1) is None
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).double()
    tied[2].weight = tied[0].weight
    data = randn(12, 4), labels(12)
    assert largest_gradient(Objective(tied, data, F.cross_entropy), 0.1) is None
    assert largest_gradient(ENCLOSED["standardized inputs"](), 0.1) is None
    assert largest_gradient(ENCLOSED["a hook"](), 0.1) is None
    tokens = nn.Sequential(nn.Linear(4, 3)).double(), (randn(12, 3, 4), labels(12, 3))
    assert largest_gradient(Objective(*tokens, F.cross_entropy), 0.1) is None


@pytest.mark.parametrize("name", ["sigmoid first", "shared activation", "one layer"])
def test_no_gradient_in_the_ball_is_above_the_bound(name: str) -> None:
    relu = nn.ReLU()
    objective = {
        "sigmoid first": lambda: deep(nn.Sigmoid(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        "shared activation": lambda: deep(
            *(nn.Linear(4, 5), relu, nn.Linear(5, 5), relu, nn.Linear(5, 3))
        ),
        "one layer": lambda: deep(nn.Flatten(), nn.Linear(4, 3)),
    }[name]()
    for radius in (0.01, 1.0):
        bound = largest_gradient(objective, radius)
        assert bound is not None
        for seed in range(20):
            ray = randn(objective.size, seed=seed)
            there = objective.at(objective.vector + radius * ray / ray.norm())
            assert float(there.gradient().norm()) <= bound
