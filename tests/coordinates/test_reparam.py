"""Other coordinates: bijections, the laws of gradient and Hessian, orders of sharpness at will."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, labels, randn
from spiritlevel import Objective, SpiritlevelError
from spiritlevel.coordinates import (
    Chain,
    Custom,
    Diagonal,
    Linear,
    Power,
    Radial,
    Reparametrization,
    hessian_law,
    rerank,
    weight_norm,
)
from spiritlevel.objective.default import digits, trained_net

STEP = 1e-6
Make = Callable[[Objective], Reparametrization]


def away(objective: Objective, distance: float) -> Tensor:
    """A point at this distance, in a fixed direction."""
    ray = randn(objective.size, seed=7)
    return objective.vector + distance * ray / ray.norm()


def between(objective: Objective) -> Radial:
    """The point lies between the spheres, where the map bends."""
    return Radial(away(objective, 0.6), 0.3, 1.0, 0.1)


MAPS: dict[str, Make] = {
    "radial, at the centre": lambda o: Radial(o.vector, 0.5, 2.0, 0.1),
    "radial, between": between,
    "power": lambda o: Power(away(o, 0.5), 0.5, 0.3),
    "power, rough": lambda o: Power(away(o, 0.5), -0.25, 0.0),
    "linear": lambda o: Linear(torch.eye(o.size).double() + 0.1 * randn(o.size, o.size)),
    "diagonal": lambda o: Diagonal(randn(o.size).exp()),
    "weight normalization": weight_norm,
    "chain": lambda o: Chain((between(o), Diagonal(randn(o.size).exp()))),
    "custom": lambda o: Custom(torch.sinh, torch.asinh, o.vector),
}
MODELS = ["mlp", "relu mlp", "cnn with BatchNorm", "LSTM", "mean squared error"]


def random_radial(draws: torch.Generator) -> tuple[Radial, Tensor]:
    """A map and a point that no finite difference takes across a kink."""
    while True:
        n = int(torch.randint(1, 7, (), generator=draws))
        share = torch.rand(4, generator=draws, dtype=torch.float64)
        delta = float(0.3 + 2 * share[0])
        g = Radial(
            torch.randn(n, generator=draws, dtype=torch.float64),
            delta * float(0.02 + 0.96 * share[1]),
            delta,
            delta * float(0.02 + 0.96 * share[2]),
        )
        ray = torch.randn(n, generator=draws, dtype=torch.float64)
        radius = float(1.4 * delta * share[3])
        if min(abs(radius - g.rho), abs(radius - delta)) > 10 * STEP:
            return g, g.center + radius * ray / ray.norm()


def differences(function: Callable[[Tensor], Tensor], x: Tensor, step: float = STEP) -> Tensor:
    units = step * torch.eye(len(x), dtype=x.dtype)
    return torch.stack([(function(x + e) - function(x - e)) / (2 * step) for e in units], dim=1)


# The maps ----------------------------------------------------------------------------------------


def test_the_radial_map_in_two_thousand_cases() -> None:
    draws = torch.Generator().manual_seed(0)
    for _ in range(2000):
        g, eta = random_radial(draws)
        jacobian = g.jacobian(eta)
        assert float((differences(g.forward, eta) - jacobian).abs().max()) < 1e-7
        theta = g.forward(eta)
        swapped = Radial(g.center, g.rho, g.delta, g.r_hat)
        assert torch.equal(g.inverse(theta), swapped.forward(theta))
        torch.testing.assert_close(g.inverse(theta), eta, rtol=0, atol=1e-13)
        expected = torch.linalg.slogdet(jacobian)[1]
        torch.testing.assert_close(g.log_abs_det(eta), expected, rtol=0, atol=1e-12)


def test_the_radial_map_is_the_identity_outside_and_linear_inside() -> None:
    g = Radial(torch.tensor([1.0, 2.0]).double(), 0.5, 2.0, 0.25)
    far = torch.tensor([4.0, 2.0]).double()
    assert torch.equal(g.forward(far), far)
    inside = g.center + torch.tensor([0.1, 0.2]).double()
    torch.testing.assert_close(g.forward(inside), g.center + 2 * (inside - g.center))
    on_spheres = g.center + torch.tensor([0.25, 0.0]).double()
    torch.testing.assert_close(g.forward(on_spheres)[0], torch.tensor(1.5).double())


@pytest.mark.parametrize(("a", "b", "factor"), [(0.5, 0.1, 10), (-0.25, 0.1, 0.316), (1, 0.1, 100)])
def test_the_power_map_multiplies_curvature_at_its_centre(
    a: float, b: float, factor: float
) -> None:
    objective = BY_NAME["mlp"].objective()
    there = objective.reparametrize(Power(objective.vector, a, b))
    v = randn(objective.size)
    ratio = (sl.hessian(there) @ v).norm() / (sl.hessian(objective) @ v).norm()
    assert float(ratio) == pytest.approx(b ** (-2 * a), rel=1e-9)
    assert float(ratio) == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("a", [0.5, -0.25])
def test_without_b_a_parabola_becomes_a_kink_or_a_quartic(a: float) -> None:
    """L = theta^2 is |eta|^(2 / (2a + 1)): |eta| for a = 1/2, eta^4 for a = -1/4."""
    g = Power(torch.zeros(1).double(), a, 0.0)
    eta = torch.tensor([0.3]).double()
    torch.testing.assert_close(g.forward(eta) ** 2, eta ** (2 / (2 * a + 1)))
    assert float(g.forward(0 * eta)) == 0.0


@pytest.mark.parametrize("name", MAPS)
def test_jacobians_and_determinants(name: str) -> None:
    objective = BY_NAME["relu mlp"].objective()
    g = MAPS[name](objective)
    eta = g.inverse(away(objective, 1e-3))
    jacobian = g.jacobian(eta)
    torch.testing.assert_close(jacobian, differences(g.forward, eta), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(g.log_abs_det(eta), torch.linalg.slogdet(jacobian)[1])
    torch.testing.assert_close(g.forward(eta), away(objective, 1e-3))


def test_weight_normalization_scales_directions_by_the_length() -> None:
    """At the centre J is a rotation of each row times (1, g, ..., g)."""
    objective = BY_NAME["relu mlp"].objective()
    g = weight_norm(objective, "0.weight")
    there = objective.reparametrize(g)
    rows = there.params["0.weight"]
    lengths = objective.params["0.weight"].norm(dim=1)
    torch.testing.assert_close(rows[:, 0], lengths)
    assert float(rows[:, 1:].abs().max()) < 1e-15
    gram = g.jacobian(there.vector).T @ g.jacobian(there.vector)
    expected = torch.ones_like(rows)
    expected[:, 1:] = lengths[:, None] ** 2
    torch.testing.assert_close(gram[:20, :20], expected.reshape(-1).diag())


# An objective in other coordinates ---------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", MAPS)
def test_the_same_function_and_the_laws(name: str, model: str) -> None:
    objective = BY_NAME[model].objective()
    g = MAPS[name](objective)
    law = hessian_law(objective, g)
    there = law.objective
    torch.testing.assert_close(there.predictions(), objective.predictions())
    assert there.value() == pytest.approx(objective.value(), abs=1e-14)
    torch.testing.assert_close(there.theta, objective.vector)
    slope = g.jacobian(there.vector).T @ objective.gradient()
    torch.testing.assert_close(there.gradient(), slope)
    v = randn(objective.size, 2)
    direct = sl.hessian(there) @ v
    assert float((law.total @ v - direct).norm() / direct.norm()) < 1e-10
    naive = float((law.transported @ v - direct).norm() / direct.norm())
    bends = name not in ("radial, at the centre", "linear", "diagonal")
    assert naive > 1e-3 if bends else naive < 1e-10


def test_the_law_against_a_plain_second_derivative() -> None:
    """Dense, by torch.func over a loss written down here; no part of the library in between."""
    x, y = randn(7, 2), randn(7, seed=3)
    model = nn.Linear(2, 1, bias=False).double()
    objective = Objective(model, (x, y[:, None]), F.mse_loss)
    g = Power(objective.vector + 0.3, 0.5, 0.2)
    eta = g.inverse(objective.vector)

    def loss(point: Tensor) -> Tensor:
        return (x @ g.forward(point) - y).square().mean()

    truth = torch.autograd.functional.hessian(loss, eta)
    law = hessian_law(objective, g)
    assert isinstance(truth, Tensor)
    assert float((law.total.dense() - truth).abs().max()) < 1e-10
    assert float((law.transported.dense() - truth).abs().max()) > 1e-2


def test_the_centre_of_a_radial_map() -> None:
    """H_eta = (r_hat / rho)^2 H, also where the gradient is not zero."""
    objective = BY_NAME["relu mlp"].objective()
    there = objective.reparametrize(Radial(objective.vector, 0.6, 1.0, 0.2))
    v = randn(objective.size)
    torch.testing.assert_close(sl.hessian(there) @ v, 9 * (sl.hessian(objective) @ v))


def test_measures_apply_and_points_move_in_eta() -> None:
    objective = BY_NAME["relu mlp"].objective()
    there = objective.reparametrize(Diagonal(torch.full((objective.size,), 2.0)))
    names = ["loss", "hessian_spectral"]
    here, now = sl.measure(objective, names), sl.measure(there, names)
    assert now["loss"].value == pytest.approx(here["loss"].value)
    assert now["hessian_spectral"].value == pytest.approx(4 * here["hessian_spectral"].value)
    moved = there.at(there.vector + 0.1)
    assert moved.value() == pytest.approx(objective.at(objective.vector + 0.2).value())
    assert there.to(torch.float32).value() == pytest.approx(objective.value(), rel=1e-5)
    assert there.per_example_gradients().shape == (objective.examples, objective.size)
    assert sl.verify(objective, there).verdict == "exact"


def test_coordinates_of_coordinates() -> None:
    objective = BY_NAME["relu mlp"].objective()
    outer, inner = between(objective), Diagonal(randn(objective.size).exp())
    twice = objective.reparametrize(outer).reparametrize(inner)
    once = objective.reparametrize(Chain((outer, inner)))
    torch.testing.assert_close(twice.vector, once.vector)
    torch.testing.assert_close(twice.gradient(), once.gradient())


def test_symmetries_are_not_looked_for_in_eta() -> None:
    objective = BY_NAME["relu mlp"].objective()
    there = objective.reparametrize(Diagonal(torch.full((objective.size,), 2.0)))
    with pytest.raises(SpiritlevelError, match="from before reparametrize"):
        sl.symmetries(there)


# Orders ------------------------------------------------------------------------------------------


def of_the_digits(seed: int) -> Objective:
    train = tuple(column[:300] for column in digits()[0])
    return Objective(trained_net(seed), train, F.cross_entropy, dtype=torch.float64)


def of_a_few_points(seed: int) -> Objective:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    x, y = randn(24, 4), labels(24, classes=2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return Objective(net, (x, y), F.cross_entropy)


@pytest.mark.parametrize(
    ("make", "orders"),
    [(of_a_few_points, permutations(range(3))), (of_the_digits, [(2, 0, 1)])],
    ids=["all six", "digits"],
)
def test_three_trained_nets_in_any_order(
    make: Callable[[int], Objective], orders: Iterable[tuple[int, ...]]
) -> None:
    nets = [make(seed) for seed in range(3)]
    for order in orders:
        found = rerank(nets, order)
        assert found.holds
        assert found.value_gap < 1e-12
        assert found.round_trip < 1e-12
        values = [found.after[i].value for i in order]
        assert values == sorted(values)
        assert values[2] / values[1] == pytest.approx(2, rel=1e-2)
        assert "the same function" in str(found)
        for net, there in zip(nets, found.objectives, strict=True):
            assert there.value() == pytest.approx(net.value(), abs=1e-12)
            torch.testing.assert_close(there.predictions(), net.predictions())


def test_rerank_says_what_it_needs() -> None:
    objective = BY_NAME["relu mlp"].objective()
    other = objective.at(away(objective, 1.0))
    with pytest.raises(SpiritlevelError, match="an order of their numbers"):
        rerank([objective, other], [0, 0])
    with pytest.raises(SpiritlevelError, match="the same point"):
        rerank([objective, objective], [0, 1])
    with pytest.raises(SpiritlevelError, match="one architecture"):
        rerank([objective, BY_NAME["LSTM"].objective()], [0, 1])
    with pytest.raises(SpiritlevelError, match="one loss on one data set"):
        rerank([objective, other.on([other.few(3)])], [0, 1])


# Bad input ---------------------------------------------------------------------------------------


def test_what_is_no_bijection_is_refused() -> None:
    near = torch.ones(3).double()
    with pytest.raises(SpiritlevelError, match="no bijection: inverse"):
        Custom(torch.square, torch.sqrt, near)
    with pytest.raises(SpiritlevelError, match="no bijection: inverse"):
        Custom(torch.sinh, torch.sinh, near)
    with pytest.raises(SpiritlevelError, match="keeps the number of parameters"):
        Custom(lambda x: x[:2], lambda x: x, near)
    with pytest.raises(SpiritlevelError, match="0 < r_hat < delta"):
        Radial(near, 2.0, 1.0, 0.5)
    with pytest.raises(SpiritlevelError, match="a > -1/2"):
        Power(near, -0.5, 0.1)
    with pytest.raises(SpiritlevelError, match="with an inverse"):
        Linear(torch.ones(3, 3))
    with pytest.raises(SpiritlevelError, match="none of them 0"):
        Diagonal(torch.zeros(3))


def test_reparametrize_checks_the_point() -> None:
    objective = BY_NAME["relu mlp"].objective()

    class Wrong:
        def forward(self, eta: Tensor) -> Tensor:
            return 2 * eta

        inverse = forward

    with pytest.raises(SpiritlevelError, match="is not theta at this point"):
        objective.reparametrize(Wrong())
    with pytest.raises(SpiritlevelError, match="matches no matrix"):
        weight_norm(objective, "nothing.*")
    zero = objective.at({"0.weight": torch.zeros(5, 4).double()})
    with pytest.raises(SpiritlevelError, match="some are zero"):
        weight_norm(zero)


def test_random_states_stay() -> None:
    before = torch.get_rng_state()
    objective = BY_NAME["relu mlp"].objective()
    torch.set_rng_state(before)
    with torch.inference_mode():
        rerank([objective, objective.at(away(objective, 1.0))], [1, 0])
        Custom(torch.sinh, torch.asinh, torch.zeros(3))
    assert torch.equal(before, torch.get_rng_state())
