"""Local entropies and learning coefficients, against integrals that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor, nn

import conformance
import spiritlevel as sl
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.tensors import generator
from spiritlevel.measures import entropy, laplace
from spiritlevel.measures.entropy import gelman_rubin
from spiritlevel.measures.instruments import Instruments
from spiritlevel.measures.logmean import log_mean
from spiritlevel.measures.sampling import Well

COUNT = 1000
WEIGHT = COUNT / math.log(COUNT)
SEEDS = range(3)
CURVATURES = torch.tensor([0.1, 1.0, 5.0, 20.0, 50.0]).double()


class Vector(nn.Module):
    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w.clone())


def function(f: Callable[[Tensor], Tensor], w: Tensor) -> sl.Objective:
    """f of the parameters alone, the same for each of a thousand examples."""

    def loss(model: Vector, batch: Tensor) -> tuple[Tensor, int]:
        return len(batch) * f(model.w), len(batch)

    return sl.Objective(Vector(w.double()), torch.zeros(COUNT, 1).double(), loss)


def quadratic(w: Tensor, k: Tensor = CURVATURES) -> sl.Objective:
    return function(lambda x: (k * x.square()).sum() / 2, w)


def closed_entropy(w: Tensor, gamma: float, k: Tensor = CURVATURES) -> float:
    slope = -k * gamma / (k + gamma) * w.square() / 2
    return float((slope + (2 * math.pi / (k + gamma)).log() / 2).sum())


def within(found: Estimate, value: float, errors: float = 3.5) -> bool:
    return abs(found.value - value) <= errors * found.error + 1e-9 * abs(value)


def test_local_entropy_of_a_quadratic() -> None:
    w = torch.tensor([1.0, -0.5, 0.3, 0.2, 0.01]).double()
    point = quadratic(w)
    for gamma, seeds in ((1.0, range(1)), (10.0, range(2))):
        wanted = closed_entropy(w, gamma)
        order2 = sl.MEASURES["local_entropy_laplace"](point, gamma=gamma)
        assert order2.status is Status.EXACT
        assert order2.value == pytest.approx(wanted, rel=1e-12)
        flat = 2.5 * math.log(2 * math.pi / gamma) - point.value()
        for seed in seeds:
            tools = Instruments(point, seed=seed)
            found = entropy.local_entropy(tools, gamma=gamma)
            assert within(found, wanted)
            assert found.error < 0.8
            gap = entropy.local_entropy_gap(tools, gamma=gamma)
            assert gap.value == pytest.approx(flat - found.value)
            assert gap.error == found.error


def test_the_gradient_of_the_local_entropy() -> None:
    """-dF/dx = k g / (k + g) x of k x^2 / 2 (Chaudhari et al., 2017)."""
    k, gamma, x, h = torch.tensor([3.0]).double(), 2.0, 0.7, 1e-4
    up, down = (
        sl.MEASURES["local_entropy_laplace"](
            quadratic(torch.tensor([at], dtype=torch.float64), k), gamma=gamma
        ).value
        for at in (x + h, x - h)
    )
    assert -(up - down) / (2 * h) == pytest.approx(3 * 2 / 5 * x, rel=1e-6)


def test_the_wide_one_of_two_wells_has_more_entropy() -> None:
    def wells(x: Tensor) -> Tensor:
        """Parabolas of widths 1 and 5 around -5 and 5, equally deep."""
        return torch.minimum((x + 5) ** 2, (x - 5) ** 2 / 25).sum()

    gamma, found = 1.0, {}
    for at in (-5.0, 5.0):
        point = function(wells, torch.tensor([at]))

        def density(x: float, at: float = at) -> float:
            return math.exp(-float(wells(torch.tensor([x]).double())) - gamma * (x - at) ** 2 / 2)

        wanted = math.log(quad(density, -15, 15, points=[-5, -3.3, 5])[0])
        found[at] = sl.MEASURES["local_entropy"](point, gamma=gamma, chains=16)
        assert within(found[at], wanted)
    assert found[5.0].value > found[-5.0].value + 3 * (found[5.0].error + found[-5.0].error)


def test_errors_of_local_entropies_are_those_of_the_seeds() -> None:
    point = quadratic(torch.zeros(5))
    found = [sl.MEASURES["local_entropy"](point, seed=seed, levels=12) for seed in range(8)]
    wanted = closed_entropy(torch.zeros(5), 10.0)
    scores = torch.tensor([(e.value - wanted) / e.error for e in found])
    assert all(e.status is Status.CONVERGED for e in found)
    assert 0.4 < float(scores.square().mean().sqrt()) < 1.8


def test_many_chains_know_the_gap_to_two_digits() -> None:
    k = torch.tensor([0.1, 0.5, 1.0, 3.0, 5.0]).double()
    found = sl.MEASURES["local_entropy_gap"](quadratic(torch.zeros(5), k), levels=8, chains=128)
    assert within(found, float((1 + k / 10).log().sum()) / 2, errors=2)
    assert found.error < 0.02


def test_too_few_levels_say_so() -> None:
    stiff = quadratic(torch.zeros(200), torch.full((200,), 1e3).double())
    found = sl.MEASURES["local_entropy"](stiff, levels=2)
    assert found.status is Status.BUDGET
    assert "raise levels=" in found.remedy
    with pytest.raises(sl.SpiritlevelError, match="chains=1: give a whole number of at least 2"):
        sl.MEASURES["local_entropy"](stiff, chains=1)


def test_the_quadratic_of_a_net_by_quadrature() -> None:
    point = conformance.objective()
    hessian = sl.hessian(point).dense()
    values, vectors = torch.linalg.eigh(hessian)
    for gamma in (1.0, 10.0):
        form = (vectors.T @ point.gradient()).square() / (values + gamma)
        wanted = point.size / 2 * math.log(2 * math.pi) - point.value()
        wanted += float(form.sum() - (values + gamma).log().sum()) / 2
        tools = Instruments(point, compile=False)
        exact = laplace.local_entropy_laplace(tools, gamma=gamma)
        assert exact.value == pytest.approx(wanted, rel=1e-9)
        for seed in SEEDS:
            tools.seed = seed
            found = laplace.local_entropy_laplace(tools, gamma=gamma, probes=8, steps=12)
            assert found.status is Status.CONVERGED
            assert within(found, wanted)
            assert 0 < found.error < 2
    tools = Instruments(point, compile=False)
    coarse = laplace.local_entropy_laplace(tools, gamma=0.2, probes=8, steps=1)
    assert coarse.status is Status.BUDGET
    assert "raise steps=" in coarse.remedy


def test_a_saddle_has_no_quadratic_entropy() -> None:
    saddle = quadratic(torch.zeros(2), torch.tensor([1.0, -3.0]).double())
    with pytest.raises(sl.SpiritlevelError, match="an eigenvalue of H may be -3; give a larger"):
        sl.MEASURES["local_entropy_laplace"](saddle, gamma=2.0)
    found = sl.MEASURES["local_entropy_laplace"](saddle, gamma=4.0)
    assert found.value == pytest.approx(closed_entropy(torch.zeros(2), 4.0, torch.tensor([1, -3])))


@pytest.mark.parametrize("gamma", [1.0, 100.0])
def test_the_coefficient_of_a_regular_minimum(gamma: float) -> None:
    """d/2 but for what gamma holds back: sum of w k / (w k + gamma) / 2."""
    k = torch.tensor([5.0, 6.0, 8.0, 10.0, 12.0]).double()
    wanted = float((WEIGHT * k / (WEIGHT * k + gamma)).sum()) / 2
    for seed in range(2):
        found = sl.MEASURES["local_learning_coefficient"](
            quadratic(torch.zeros(5), k), seed=seed, gamma=gamma, chains=4, steps=90
        )
        assert found.status is Status.CONVERGED
        assert within(found, wanted)
        assert found.error < 0.2 * wanted
        assert gamma > 1 or within(found, 2.5)


def test_the_coefficient_of_a_singular_minimum() -> None:
    """1/4 of w^4, whose Hessian is zero."""
    point = function(lambda w: w.square().square().sum(), torch.zeros(1))

    def mean(gamma: float) -> float:
        def weight(w: float) -> float:
            return math.exp(-WEIGHT * w**4 - gamma * w**2 / 2)

        above = quad(lambda w: WEIGHT * w**4 * weight(w), -3, 3)[0]
        return above / quad(weight, -3, 3)[0]

    assert mean(0.01) == pytest.approx(0.25, abs=0.001)
    for gamma, seeds in ((1.0, range(2)), (0.01, range(1))):
        for seed in seeds:
            found = sl.MEASURES["local_learning_coefficient"](
                point, seed=seed, gamma=gamma, chains=4, steps=100
            )
            assert within(found, mean(gamma))
            assert found.error < 0.1


def test_unhealthy_chains_say_so() -> None:
    falling = function(lambda w: w.sum(), torch.zeros(3))
    found = sl.MEASURES["local_learning_coefficient"](falling)
    assert found.status is Status.BUDGET
    assert found.value < 0
    assert "no minimum" in found.remedy
    stiff = quadratic(torch.zeros(100), torch.logspace(-3, 4, 100).double())
    short = sl.MEASURES["local_learning_coefficient"](stiff, steps=12, gamma=1e-3)
    assert short.status is Status.BUDGET
    assert "raise steps=" in short.remedy
    with pytest.raises(sl.SpiritlevelError, match="chains=1: give a whole number of at least 2"):
        sl.MEASURES["local_learning_coefficient"](stiff, chains=1)


def test_steps_leave_the_density_alone() -> None:
    """Drawn from the density of a quadratic, places stay so however long the leaps are."""
    k, gamma, draws = torch.tensor([0.5, 4.0]).double(), 2.0, generator(3)
    well = Well(quadratic(torch.zeros(2), k), gamma)
    spread = (gamma / (k + gamma)).sqrt()
    squares = []
    for _ in range(200):
        here = well.place(spread * torch.randn(2, generator=draws, dtype=torch.float64))
        for _ in range(2):
            here, acceptance = well.step(here, 1.0, 1.2, 1, draws)
            assert 0 <= acceptance <= 1
        squares.append(here.y.square() / spread.square())
    means = torch.stack(squares).mean(0)
    assert torch.allclose(means, torch.ones(2).double(), atol=4 * (2 / 200) ** 0.5)


def test_chains_that_agree() -> None:
    draws = generator(0)
    same = torch.randn(6, 200, generator=draws, dtype=torch.float64)
    assert gelman_rubin(same) == pytest.approx(1, abs=0.02)
    apart = same + torch.arange(6)[:, None]
    assert gelman_rubin(apart) == pytest.approx(math.sqrt(1 + 3.5), abs=0.1)
    assert gelman_rubin(torch.zeros(2, 5)) == 1


def test_the_logarithm_of_a_mean() -> None:
    found = log_mean(torch.tensor([1.0, 2.0, 4.0]).double().log())
    assert found.value == pytest.approx(math.log(7 / 3))
    assert found.effective == pytest.approx(49 / 21)
    assert found.known
    one = log_mean(torch.tensor([0.0, -50.0, -60.0, -70.0]).double())
    assert one.value == pytest.approx(-math.log(4))
    assert not one.known
    assert one.stderr > 30  # without its largest term it is 50 less
    draws = generator(1)
    values = [log_mean(0.5 * torch.randn(50, generator=draws).double()) for _ in range(200)]
    spread = torch.tensor([v.value for v in values]).std()
    assert float(spread) == pytest.approx(sum(v.stderr for v in values) / len(values), rel=0.15)


def test_the_unit_of_weights_does_not_heat_the_chains() -> None:
    """n is the number of examples, not the sum of their weights."""
    model, x = nn.Linear(2, 1).double(), torch.randn(20, 2, generator=generator(0)).double()
    y, each = x[:, :1].clone(), torch.full((20,), 10.0).double()
    found = [
        sl.MEASURES["local_learning_coefficient"](
            sl.Objective(model, data, nn.functional.mse_loss), chains=2, steps=12
        ).value
        for data in ((x, y), (x, y, each))
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_a_large_gradient_by_quadrature() -> None:
    """The error of g' (H + gamma I)^-1 g counts too, whatever the size of g."""
    draws, n, gamma = torch.Generator().manual_seed(0), 300, 4.0
    x = torch.randn(400, n, generator=draws, dtype=torch.float64)
    x = 6 * x * torch.linspace(1, 0.02, n)
    layer = nn.Linear(n, 1, bias=False).double()
    nn.init.zeros_(layer.weight)
    for size in (1e4, 1e9):
        y = size * torch.randn(400, 1, generator=draws, dtype=torch.float64)
        point = sl.Objective(layer, (x, y), nn.functional.mse_loss)
        shifted = sl.hessian(point).dense() + gamma * torch.eye(n)
        slope = point.gradient()
        wanted = n / 2 * math.log(2 * math.pi) - point.value() - float(shifted.logdet()) / 2
        wanted += float(slope @ torch.linalg.solve(shifted, slope)) / 2
        found = sl.MEASURES["local_entropy_laplace"](point, gamma=gamma)
        assert found.status is Status.CONVERGED
        assert abs(found.value - wanted) <= 3.5 * found.error
        coarse = sl.MEASURES["local_entropy_laplace"](point, gamma=gamma, steps=4)
        assert coarse.status is Status.BUDGET
        assert abs(coarse.value - wanted) <= 3.5 * coarse.error


def test_chains_that_would_start_where_the_loss_overflows() -> None:
    def walled(x: Tensor) -> Tensor:
        return torch.where(x.norm() > 0.1, math.inf, 1.0) * 50 * x.square().sum()

    found = sl.MEASURES["local_learning_coefficient"](function(walled, torch.zeros(2)))
    assert math.isfinite(found.value)
    assert math.isfinite(found.error)
    steep = function(lambda x: (1e5 * x.square().sum()).exp(), torch.zeros(2))
    with pytest.raises(sl.SpiritlevelError, match="overflows along the chains: give a larger gam"):
        sl.MEASURES["local_learning_coefficient"](steep)
    broken = function(lambda x: torch.where(x.norm() > 0, math.inf, 1.0) * x.sum(), torch.zeros(2))
    with pytest.raises(sl.SpiritlevelError, match="not finite around the point"):
        sl.MEASURES["local_learning_coefficient"](broken)
