"""The model of the largest eigenvalue: below it everywhere, exact where it was made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as quasi_newton
from scipy.sparse import csr_matrix
from torch import Tensor

from cases import randn
from spiritlevel.base.operator import from_matrix
from spiritlevel.orbit.bundle import Model, least_norm, model_of
from spiritlevel.orbit.cells import Array, Cells

SIZE, DIM = 10, 3
ALL = np.ones(DIM)


def grid(seed: int) -> Cells:
    exponents = np.random.default_rng(seed).integers(-1, 2, (SIZE, DIM)).astype(float)
    exponents[: 2 * DIM] = np.vstack([np.eye(DIM), -np.eye(DIM)])
    shape = {"x": torch.Size([SIZE])}
    return Cells(shape, shape, csr_matrix(exponents))


def moved(matrix: Tensor, cells: Cells, t: Array) -> Tensor:
    """D A D with D = exp(-B t)."""
    d = torch.from_numpy(np.exp(-cells.log_scales(t)))
    return d[:, None] * matrix * d[None, :]


def psd(seed: int) -> Tensor:
    root = randn(SIZE, SIZE - 2, seed=seed)
    return root @ root.T


def model_at(matrix: Tensor, cells: Cells, t: Array, count: int = 3) -> Model:
    """Made of the top eigenvectors at t."""
    d = torch.from_numpy(np.exp(-cells.log_scales(t)))
    z = d[:, None] * torch.linalg.eigh(moved(matrix, cells, t))[1][:, -count:]
    return model_of(cells, matrix @ z, z.T @ matrix @ z)


def matrix_of(model: Model, t: Array) -> Array:
    """Y' D(t)^2 Y."""
    columns, factor = model.scaled(t)
    return np.exp(factor) * (columns @ columns.T)


@pytest.mark.parametrize("seed", range(5))
def test_below_everywhere_and_exact_where_it_was_made(seed: int) -> None:
    matrix, cells, draws = psd(seed), grid(seed), np.random.default_rng(seed)
    here = draws.normal(size=DIM)
    model = model_at(matrix, cells, here)
    for t in (here, *draws.normal(size=(10, DIM))):
        truth = float(torch.linalg.eigvalsh(moved(matrix, cells, t))[-1])
        bound = float(np.linalg.eigvalsh(matrix_of(model, t))[-1])
        assert bound <= truth * (1 + 1e-10)
        masses = model.dual(here, 100)  # weights made at one point are a bound at every other
        assert masses @ np.exp(-2 * cells.log_scales(t)) <= bound * (1 + 1e-10)
        if t is here:
            assert bound == pytest.approx(truth, rel=1e-10)


def test_far_out_the_model_is_what_its_logarithm_says() -> None:
    """A line search may try steps whose scales overflow; one cell is then all there is."""
    cells = grid(0)
    model = model_at(psd(0), cells, np.zeros(DIM))
    for t in 1e4 * np.random.default_rng(0).normal(size=(5, DIM)):
        logs = -2 * cells.log_scales(t)
        top = logs == logs.max()
        value, slope = model.log_norm(t, 30, ALL)
        some = model.columns[:, top[model.index]]
        schatten = np.linalg.norm(np.linalg.eigvalsh(some @ some.T), 30)
        assert value == pytest.approx(logs.max() + np.log(schatten), rel=1e-12)
        exponents = cells.exponents[int(np.argmax(logs))].toarray()[0]
        assert slope == pytest.approx(-2 * exponents, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("power", [2, 30, 300])
def test_the_slope_of_the_model(power: int) -> None:
    """Against central differences; generators that are not free have none."""
    cells, draws = grid(0), np.random.default_rng(0)
    model, t = model_at(psd(0), cells, np.zeros(DIM)), 0.3 * draws.normal(size=DIM)
    value, slope = model.log_norm(t, power, ALL)
    values = np.linalg.eigvalsh(matrix_of(model, t))
    norm = values[-1] * ((values / values[-1]) ** power).sum() ** (1 / power)
    assert value == pytest.approx(np.log(norm), rel=1e-12)
    step = 1e-5 * np.eye(DIM)
    ends = [[model.log_norm(t + sign * e, power, ALL)[0] for e in step] for sign in (1, -1)]
    assert slope == pytest.approx((np.array(ends[0]) - ends[1]) / 2e-5, rel=1e-5, abs=1e-7)
    assert model.log_norm(t, power, np.array([1.0, 0.0, 1.0]))[1][1] == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_the_least_norm_of_an_indefinite_matrix(seed: int) -> None:
    """From everywhere, and of -A too: negative eigenvalues count as positive ones do."""
    root = randn(SIZE, SIZE, seed=seed)
    matrix, cells = root + root.T, grid(seed)
    starts = np.zeros(DIM), np.random.default_rng(seed).normal(size=DIM)
    plain, turned = (
        least_norm(from_matrix(m), cells, start, ALL, 1e-3, seed)
        for m, start in zip((matrix, -matrix), starts, strict=True)
    )
    there = torch.linalg.matrix_norm(moved(matrix, cells, plain.t), 2)
    assert plain.value == pytest.approx(float(there), rel=1e-3)
    assert plain.value <= float(torch.linalg.matrix_norm(matrix, 2)) * (1 + 1e-3)
    assert turned.value == pytest.approx(plain.value, rel=2e-2)


@pytest.mark.parametrize("seed", range(8))
def test_a_search_at_rest_has_the_least_norm(seed: int) -> None:
    """Against a simplex that sees the norm itself, which is convex in three numbers."""
    root = randn(SIZE, SIZE, seed=seed)
    matrix, cells = root + root.T + 2 * torch.eye(SIZE), grid(seed)
    found = least_norm(from_matrix(matrix), cells, np.zeros(DIM), ALL, 1e-3, seed)

    def log_norm(t: np.ndarray[Any, Any]) -> float:
        return float(torch.linalg.matrix_norm(moved(matrix, cells, t), 2).log())

    options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}
    truth = min(
        float(np.exp(quasi_newton(log_norm, start, method="Nelder-Mead", options=options).fun))
        for start in (np.zeros(DIM), found.t, found.t + 0.1)
    )
    assert found.value >= truth * (1 - 1e-3)
    if found.converged:
        assert found.value <= truth * (1 + 1e-2)


def test_cells_of_many_parameters_are_a_few_columns() -> None:
    """The same matrix as with a column for each parameter; a Gram matrix has no more."""
    group = torch.arange(3).reshape(3, 1)
    shapes = {"w": torch.Size([3, 40]), "b": torch.Size([5])}
    parts = {"w": torch.Size([3, 1]), "b": torch.Size([5])}
    exponents = csr_matrix(np.random.default_rng(0).normal(size=(8, DIM)))
    images = randn(125, 4)
    model = model_of(Cells(shapes, parts, exponents), images, torch.eye(4).double())
    assert model.columns.shape == (4, 3 * 4 + 5)
    t = np.random.default_rng(1).normal(size=DIM)
    cell = torch.cat([group.expand(3, 40).reshape(-1), torch.arange(3, 8)])
    sizes = torch.from_numpy(np.exp(-2 * (exponents @ t)))[cell]
    expected = images.T @ (sizes[:, None] * images)
    assert matrix_of(model, t) == pytest.approx(expected.numpy(), rel=1e-9, abs=1e-9)
    parts_of = model.by_cell((model.columns**2).sum(0))
    assert parts_of == pytest.approx(model.masses, rel=1e-12)
