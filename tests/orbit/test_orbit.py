"""Orbit minima: the same from every point of an orbit, right, and certified."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize as quasi_newton
from scipy.sparse import csr_matrix
from torch import Tensor, nn

import spiritlevel as sl
from architectures import ResNet, mlp, randomized
from cases import labels, randn
from spiritlevel.base.estimate import Status, format_error
from spiritlevel.base.operator import from_matrix
from spiritlevel.curvature.diagonals import ggn_diagonal
from spiritlevel.orbit import frobenius as from_products
from spiritlevel.orbit.balance import balance
from spiritlevel.orbit.bundle import least_eigenvalue
from spiritlevel.orbit.cells import Cells, cells

LONG = os.environ.get("SPIRITLEVEL_LONG") == "1"


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


def objective_of(make: Callable[[], nn.Module], *shape: int, classes: int = 3) -> sl.Objective:
    data = (randn(12, *shape), labels(12, classes=classes))
    return sl.Objective(randomized(make()), data, F.cross_entropy)


NETS: dict[str, Callable[[], sl.Objective]] = {
    "mlp": lambda: objective_of(small_net, 5),
    "conv with BatchNorm": lambda: objective_of(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3),
            nn.BatchNorm2d(2),
            nn.ReLU(),
            nn.Conv2d(2, 3, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        1,
        6,
        6,
    ),
    "residual": lambda: objective_of(lambda: ResNet((3, 4), 1, "B"), 3, 6, 6, classes=10),
    "transformer": lambda: objective_of(
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), nn.Flatten(), nn.Linear(12, 3)
        ),
        3,
        4,
    ),
}


@functools.cache
def problem(name: str) -> tuple[sl.Objective, sl.Group]:
    objective = NETS[name]()
    return objective, sl.symmetries(objective)


def at(matrix: Tensor, group: sl.Group, objective: sl.Objective, t: Tensor) -> Tensor:
    """exp(-B t) A exp(-B t), dense."""
    factors = group.factors(t)
    d = torch.cat([factors[n].expand(s).reshape(-1) for n, s in objective.shapes.items()])
    return matrix / (d[:, None] * d[None, :])


@pytest.mark.parametrize("name", NETS)
def test_the_exact_diagonal(name: str) -> None:
    objective, _ = problem(name)
    torch.testing.assert_close(ggn_diagonal(objective).values, sl.ggn(objective).dense().diagonal())


def test_the_diagonal_where_every_pixel_is_classified() -> None:
    net = randomized(nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 3, 1)))
    data = (randn(5, 2, 6), labels(5, 4))
    objective = sl.Objective(net, data, F.cross_entropy)
    torch.testing.assert_close(ggn_diagonal(objective).values, sl.ggn(objective).dense().diagonal())


def test_the_diagonal_with_weights_and_squares() -> None:
    net = randomized(small_net())
    data = (randn(8, 5), randn(8, 3, seed=2), randn(8, seed=3).abs())
    objective = sl.Objective(net, data, F.mse_loss)
    torch.testing.assert_close(ggn_diagonal(objective).values, sl.ggn(objective).dense().diagonal())


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("norm", ["trace", "spectral"])
def test_the_minimum_is_that_of_the_orbit(name: str, norm: Any) -> None:
    objective, group = problem(name)
    found = sl.orbit.minimum(objective, group, norm=norm)
    accuracy = 1e-6 if norm == "trace" else 5e-3
    moved = 0.0
    for seed in range(20 if LONG or norm == "trace" else 8):
        twin = group.apply(objective, group.random(seed, scale=1.0))
        again = sl.orbit.minimum(twin, group, norm=norm)
        assert again.value == pytest.approx(found.value, rel=accuracy)
        moved = max(moved, again.before / found.before)
    assert moved > (2 if name == "transformer" else 5)  # the plain value is not
    assert found.status is sl.Status.CONVERGED
    assert found.lower_bound is not None
    assert found.lower_bound <= found.value <= found.lower_bound * (1 + accuracy)
    assert found.value <= found.before * (1 + 1e-9)
    assert sl.verify(objective, found.objective).verdict == "exact"


@pytest.mark.parametrize("name", ["mlp", "conv with BatchNorm"])
def test_the_balanced_network_has_the_value(name: str) -> None:
    objective, group = problem(name)
    trace = sl.orbit.minimum(objective, group, norm="trace")
    dense = sl.ggn(sl.orbit.balanced(objective, group)).dense()
    assert float(dense.trace()) == pytest.approx(trace.value, rel=1e-9)
    top = sl.orbit.minimum(objective, group, norm="spectral")
    dense = sl.ggn(top.objective).dense()
    assert float(torch.linalg.eigvalsh(dense)[-1]) == pytest.approx(top.value, rel=1e-3)


def dense_minimum(matrix: Tensor, group: sl.Group, objective: sl.Objective, power: int) -> float:
    """The Schatten norm of high power, minimized by brute force over t."""
    table = torch.from_numpy(group.matrix(objective.shapes).toarray())

    def value_and_slope(x: np.ndarray, p: int) -> tuple[float, np.ndarray]:
        t = torch.from_numpy(x).requires_grad_()
        d = torch.exp(-(table @ t))
        values = torch.linalg.eigvalsh(d[:, None] * matrix * d[None, :]).abs()
        top = values.max().detach()
        loss = top.log() + ((values / top) ** p).sum().log() / p
        (slope,) = torch.autograd.grad(loss, t)
        return float(loss.detach()), slope.numpy()

    x = np.zeros(group.dim)
    for p in (2, 10, 50, power):
        options = {"maxiter": 400}
        x = quasi_newton(
            value_and_slope, x, args=(p,), jac=True, method="L-BFGS-B", options=options
        ).x
    t = torch.from_numpy(x)
    d = torch.exp(-(table @ t))
    return float(torch.linalg.eigvalsh(d[:, None] * matrix * d[None, :]).abs().max())


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_against_brute_force(kind: str) -> None:
    objective, group = problem("mlp")
    dense = (sl.ggn if kind == "ggn" else sl.hessian)(objective).dense()
    found = sl.orbit.minimum(objective, group, operator=kind, tol=1e-3)  # type: ignore[arg-type]
    truth = dense_minimum(dense, group, objective, power=400)
    assert found.value <= truth * (1 + 2e-3)
    if found.lower_bound is not None:
        assert found.lower_bound <= truth


def test_a_norm_that_is_known_is_not_measured_again() -> None:
    """Unless it is known too roughly, or is that of more than the minimum is of."""
    objective, group = problem("mlp")
    anew = sl.orbit.minimum(objective, group, operator="hessian")
    ends = sl.eigenvalues(sl.hessian(objective), which="both", k=2, tol=1e-6)
    here = max(ends, key=lambda end: abs(end.value))
    known = sl.orbit.minimum(objective, group, operator="hessian", here=here)
    assert known.products < anew.products
    assert known.before == abs(here.value) == pytest.approx(anew.before, rel=1e-3)
    assert known.value == anew.value
    rough = replace(here, value=2 * here.value, bound=abs(here.value))
    again = sl.orbit.minimum(objective, group, operator="hessian", here=rough)
    assert (again.before, again.products) == (anew.before, anew.products)


def test_the_frobenius_norm_against_brute_force() -> None:
    objective, group = problem("mlp")
    found = sl.orbit.minimum(objective, group, norm="frobenius")
    dense = sl.ggn(objective).dense()
    assert found.before == pytest.approx(float(dense.norm()), rel=1e-9)
    assert float(sl.ggn(found.objective).dense().norm()) == pytest.approx(found.value, rel=1e-9)
    for seed in range(30):  # convex: no other point is lower
        t = found.log_scales + group.random(seed, scale=0.05)
        assert float(at(dense, group, objective, t).norm()) >= found.value * (1 - 1e-9)
    twin = group.apply(objective, group.random(1, scale=1.0))
    assert sl.orbit.minimum(twin, group, norm="frobenius").value == pytest.approx(
        found.value, rel=1e-6
    )


@pytest.mark.parametrize("sizes", [(4, 5, 3), (4, 6, 5, 3), (3, 4, 4, 4, 3)])
def test_one_factor_per_layer_has_a_closed_form(sizes: tuple[int, ...]) -> None:
    """K (prod_k tr_k)^(1/K), without biases (Ibayashi et al., 2021)."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for inside, outside in pairwise(sizes):
            layers += [nn.Linear(inside, outside, bias=False), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    objective = objective_of(make, sizes[0])
    layers = sl.symmetries(objective).layerwise()
    found = sl.orbit.minimum(objective, layers, norm="trace")
    diagonal = objective.named(ggn_diagonal(objective).values)
    traces = [float(d.sum()) for d in diagonal.values()]
    k = len(traces)
    assert found.value == pytest.approx(k * float(np.prod(traces)) ** (1 / k), rel=1e-9)
    balanced = sl.orbit.balanced(objective, layers)
    parts = [float(d.sum()) for d in balanced.named(ggn_diagonal(balanced).values).values()]
    assert parts == pytest.approx([found.value / k] * k, rel=1e-6)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(["spectral", "fro", "nuclear"]))
def test_norms_are_log_convex_along_the_orbit(seed: int, norm: str) -> None:
    objective, group = problem("mlp")
    dense = _hessian_of_the_mlp()
    a, b = group.random(seed, scale=1.0), group.random(seed + 1, scale=1.0)
    kinds = {"spectral": 2, "fro": "fro", "nuclear": "nuc"}

    def log_norm(t: Tensor) -> float:
        return float(torch.linalg.matrix_norm(at(dense, group, objective, t), kinds[norm]).log())  # type: ignore[arg-type]

    assert log_norm((a + b) / 2) <= (log_norm(a) + log_norm(b)) / 2 + 1e-9


@functools.cache
def _hessian_of_the_mlp() -> Tensor:
    return sl.hessian(problem("mlp")[0]).dense()


def test_the_dual_bound_of_a_posynomial() -> None:
    """min 4 e^-2t + e^2t = 4; a mass on one side alone can be sent to zero: no bound."""
    sides = csr_matrix([[1.0], [-1.0]])
    blocks, free = [np.array([0])], np.ones(1)
    found = balance(sides, np.array([4.0, 1.0]), blocks)
    assert found.value == pytest.approx(4.0, rel=1e-12)
    assert found.lower_bound == pytest.approx(4.0, rel=1e-12)
    rough = balance(sides, np.array([4.0, 1.0]), [], np.array([0.3]), free)  # not balanced at all
    assert 3.9 < rough.lower_bound <= 4.0 < rough.value
    assert balance(sides, np.array([4.0, 0.0]), blocks, None, free).lower_bound == 0.0
    fixed = balance(sides, np.array([4.0, 0.0]), blocks)  # one-sided, so it is not free
    assert fixed.lower_bound == pytest.approx(4.0, rel=1e-12)


@pytest.mark.parametrize("block", range(10))
def test_the_lower_bound_never_exceeds_the_minimum(block: int) -> None:
    """Random positive matrices and exponents, twenty in each block: 200 in all."""
    for seed in range(20 * block, 20 * block + 20):
        draws = torch.Generator().manual_seed(seed)
        n, dim, rank = 12, 4, 3 + seed % 5
        root = torch.randn(n, rank, generator=draws, dtype=torch.float64)
        matrix = root @ root.T
        exponents = torch.randint(-1, 2, (n, dim), generator=draws).double().numpy()
        exponents[:dim] = np.eye(dim)
        exponents[dim : 2 * dim] = -np.eye(dim)  # each generator has two sides
        grid = Cells({"x": torch.Size([n])}, {"x": torch.Size([n])}, csr_matrix(exponents))
        blocks = [np.array([k]) for k in range(dim)]
        start = balance(grid.exponents, matrix.diagonal().numpy(), blocks)
        free = np.ones(dim)
        found = least_eigenvalue(from_matrix(matrix), grid, blocks, start.t, free, 1e-3, seed)
        lowest = _lowest(matrix, exponents, found.t)
        assert found.lower_bound <= lowest * (1 + 1e-9)
        assert found.value <= lowest * (1 + 2e-3)


def _lowest(matrix: Tensor, exponents: np.ndarray, start: np.ndarray) -> float:
    """The least largest eigenvalue that a direct search finds."""

    here = matrix.numpy()

    def top(t: np.ndarray) -> float:
        d = np.exp(-(exponents @ t))
        return float(np.linalg.eigvalsh(d[:, None] * here * d)[-1])

    options = {"maxiter": 300, "xatol": 1e-7, "fatol": 1e-10}
    result = quasi_newton(top, start, method="Nelder-Mead", options=options)
    return min(float(result.fun), top(start))


@pytest.mark.parametrize("norm", ["trace", "spectral"])
def test_a_sharpened_point_has_the_same_minimum(norm: Any) -> None:
    objective, group = problem("mlp")
    sharp = sl.sharpen(objective, target=1e9, group=group).objective
    plain, far = (sl.orbit.minimum(o, group, norm=norm) for o in (objective, sharp))
    assert far.before > 1e8 * plain.before
    assert far.value == pytest.approx(plain.value, rel=5e-3)
    assert (far.dead, far.divided_out) == (0, ())


def test_dead_units_are_dropped_and_counted() -> None:
    objective, _ = problem("mlp")
    params = objective.params
    weight, bias = params["0.weight"].clone(), params["0.bias"].clone()
    weight[2], bias[2] = 0.0, -1.0  # never active
    dead = objective.at({"0.weight": weight, "0.bias": bias})
    found = sl.orbit.minimum(dead, norm="trace")
    assert found.dead == 1
    assert float(found.log_scales[2]) == 0.0


def test_one_sided_rescalings_are_divided_out() -> None:
    """Weights before a norm: their scale is free, and the minimum does not depend on it."""
    make = NETS["conv with BatchNorm"]
    objective = make()
    group = sl.symmetries(objective, statistics="free")
    found = sl.orbit.minimum(objective, group, norm="trace")
    values = [
        sl.orbit.minimum(group.apply(objective, group.random(seed, 1.0)), group, norm="trace").value
        for seed in range(3)
    ]
    assert values == pytest.approx([found.value] * 3, rel=1e-6)


def test_refusals() -> None:
    objective, group = problem("mlp")
    with pytest.raises(sl.SpiritlevelError, match="norm='nuclear' is not known; choose"):
        sl.orbit.minimum(objective, group, norm="nuclear")  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="operator='fisher' is not known; choose"):
        sl.orbit.minimum(objective, group, operator="fisher")  # type: ignore[arg-type]
    smooth = objective_of(
        lambda: nn.Sequential(
            nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)
        ),
        5,
    )
    with pytest.raises(
        sl.SpiritlevelError, match=r'not piecewise linear in each.*use operator="ggn"'
    ):
        sl.orbit.minimum(smooth, norm="trace", operator="hessian")
    with pytest.raises(sl.SpiritlevelError, match=r"start has the shape \(0,\); give .* \(6,\)"):
        sl.orbit.minimum(smooth, start=torch.zeros(0))


@pytest.mark.parametrize("operator", ["ggn", "hessian"])
@pytest.mark.parametrize("norm", ["spectral", "trace", "frobenius"])
def test_without_rescalings_the_least_value_is_the_value(norm: str, operator: Any) -> None:
    objective = objective_of(lambda: mlp(nn.GELU), 64, classes=10)
    start = torch.zeros(0)  # as other orbits of one point have it
    found = sl.orbit.minimum(objective, norm=norm, operator=operator, start=start)
    assert found.log_scales.shape == start.shape
    dense = (sl.ggn if operator == "ggn" else sl.hessian)(objective).dense()
    truth = {
        "spectral": torch.linalg.matrix_norm(dense, 2),
        "trace": dense.trace(),
        "frobenius": dense.norm(),
    }[norm]
    noise = 3 * (found.stderr or 0.0)
    assert found.value == pytest.approx(float(truth), rel=1e-2, abs=noise)
    assert found.before == pytest.approx(found.value, rel=1e-2)
    assert found.status is Status.CONVERGED


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
@pytest.mark.parametrize("name", ["mlp", "conv with BatchNorm"])
def test_frobenius_from_products(name: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random probes and the whole matrix agree, here and from a rescaled twin."""
    objective, group = problem(name)
    exact = sl.orbit.minimum(objective, group, norm="frobenius", operator=kind)
    monkeypatch.setattr(from_products, "DENSE", 0)
    for point in (objective, group.apply(objective, group.random(1, 1.0))):
        found = sl.orbit.minimum(point, group, norm="frobenius", operator=kind)
        assert found.stderr is not None
        assert abs(found.value - exact.value) <= 4 * found.stderr + 0.01 * exact.value
        assert found.stderr <= 0.02 * found.value
        assert found.balance <= 0.05
        dense = (sl.ggn if kind == "ggn" else sl.hessian)(found.objective).dense()
        there = float(torch.linalg.matrix_norm(dense))
        assert there <= 1.02 * exact.value  # the point is near the bottom, whatever its estimate
        assert f"± {format_error(found.stderr)}" in str(found)


@pytest.mark.parametrize(
    ("name", "kind"), [("residual", "ggn"), ("conv with BatchNorm", "hessian")]
)
def test_a_frobenius_norm_out_of_balance_is_no_minimum(
    name: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However well its value is known: this search stays where the trace is least."""
    objective, group = problem(name)
    monkeypatch.setattr(from_products, "DENSE", 0)
    there = sl.orbit.minimum(objective, group, norm="frobenius", operator=kind)
    assert there.status is Status.CONVERGED
    monkeypatch.setattr(from_products, "minimize_model", lambda model, t, *_, **__: t)
    found = sl.orbit.minimum(objective, group, norm="frobenius", operator=kind)
    assert found.stderr is not None
    assert found.stderr < 0.01 * found.value
    assert found.balance > 0.2
    assert found.status is Status.BUDGET


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_the_least_trace_against_another_solver(name: str) -> None:
    """The same geometric program, by the interior points of cvxpy."""
    objective, group = problem(name)
    grid = cells(group, objective.shapes)
    masses = grid.gather(ggn_diagonal(objective).values)
    t = cp.Variable(group.dim)
    some = masses > 0
    terms = np.log(masses[some]) - 2 * (grid.exponents.toarray()[some] @ t)
    problem_of_cvxpy = cp.Problem(cp.Minimize(cp.log_sum_exp(terms)))
    value: Any = problem_of_cvxpy.solve(solver=cp.CLARABEL)
    found = sl.orbit.minimum(objective, group, norm="trace")
    assert found.value == pytest.approx(float(np.exp(value)), rel=1e-6)
