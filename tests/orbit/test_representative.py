"""The point of least weight norm: closed forms, balance, and one point for all twins."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from torch import nn

import spiritlevel as sl
from architectures import DenseNet, ResNet, ViT, objective_of
from cases import labels, randn
from spiritlevel.orbit.cells import cells
from spiritlevel.orbit.representative import least_norm, representative
from zoo import trained

ROOM = "spiritlevel.orbit.representative"

FREE = {"statistics": "free"}
ROUGH = {"statistics": "free", "eps": "approximate"}
Orbit = tuple[sl.Objective, sl.Group]


def bare(width: int = 6, dtype: torch.dtype = torch.float64) -> sl.Objective:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, width, bias=False), nn.ReLU(), nn.Linear(width, 3, bias=False))
    return sl.Objective(net, (randn(20, 4), labels(20)), F.cross_entropy, dtype=dtype)


def dead() -> sl.Objective:
    """A unit that nothing listens to, one that hears nothing, and one that does neither."""
    objective = trained("mlp").objective()
    params = {name: p.clone() for name, p in objective.params.items()}
    params["2.weight"][:, 0] = 0
    for name in ("0.weight", "0.bias"):
        params[name][1:3] = 0
    params["2.weight"][:, 2] = 0
    return objective.at(params)


MAKERS: dict[str, tuple[Callable[[], sl.Objective], dict[str, Any]]] = {
    "mlp": (lambda: trained("mlp").objective(), {}),
    "convolutional": (lambda: trained("convolutional").objective(), {}),
    "convolutional, statistics free": (lambda: trained("convolutional").objective(), FREE),
    "convolutional, running away together": (lambda: trained("convolutional").objective(), ROUGH),
    "residual": (lambda: trained("residual").objective(), {}),
    "transformer with dead biases": (lambda: trained("transformer").objective(), {}),
    "ViT with a stream": (lambda: objective_of(ViT(8, 2, 1, True), 3, 8, 8), ROUGH),
    "ResNet, all coupled": (lambda: objective_of(ResNet((4, 8), 1, "B"), 3, 8, 8), ROUGH),
    "DenseNet": (lambda: objective_of(DenseNet(), 3, 8, 8), FREE),
    "dead units": (dead, {}),
}


@functools.cache
def orbit(name: str) -> Orbit:
    make, options = MAKERS[name]
    objective = make()
    return objective, sl.symmetries(objective, **options)


def pulls(objective: sl.Objective, group: sl.Group) -> torch.Tensor:
    """Half of the gradient of the squared norm in t: in-squares minus out-squares."""
    return group.pull({n: p**2 for n, p in objective.params.items()})


def test_two_layers_have_a_closed_form() -> None:
    """a^2 e^(2t) + b^2 e^(-2t) is least where both are a b."""
    objective = bare()
    one, two = objective.params.values()
    inside, outside = one.norm(dim=1), two.norm(dim=0)
    found = representative(objective)
    first, second = found.objective.params.values()
    both = (inside * outside).sqrt()
    torch.testing.assert_close(first, one * (both / inside)[:, None], rtol=1e-13, atol=0)
    torch.testing.assert_close(second, two * (both / outside), rtol=1e-13, atol=0)
    squared = float(found.objective.vector @ found.objective.vector)
    assert squared == pytest.approx(2 * float((inside * outside).sum()), rel=1e-13)
    assert found.one_sided == ()
    assert found.certificate.verdict == "exact"


@pytest.mark.parametrize("name", MAKERS)
def test_every_twin_has_the_same_representative(name: str) -> None:
    objective, group = orbit(name)
    found = representative(objective, group)
    assert found.certificate.holds
    for seed in range(3):
        twin = group.apply(objective, group.random(seed, 1.0))
        other = representative(twin, group)
        point, there = found.objective, other.objective
        assert float((twin.vector - point.vector).norm()) > 0.1
        gap = float((there.vector - point.vector).norm() / point.vector.norm())
        assert gap <= 1e-12
        assert other.one_sided == found.one_sided
        for buffer in group.buffers:
            torch.testing.assert_close(
                there.buffers[buffer], point.buffers[buffer], rtol=1e-10, atol=1e-12
            )


@pytest.mark.parametrize(
    "name", [n for n, (_, options) in MAKERS.items() if options != ROUGH and "dead" not in n]
)
def test_the_norm_is_least_where_all_squares_balance(name: str) -> None:
    objective, group = orbit(name)
    point = representative(objective, group).objective
    squared = float(point.vector @ point.vector)
    assert float(pulls(point, group).abs().max()) <= 1e-13 * squared
    params = {**point.buffers, **point.params}
    moved = {n: params[n] for n in group.shapes}
    for seed in range(200):
        t = group.random(seed, (1e-3, 0.1, 1.0)[seed % 3])
        twin = group.act(moved, t)
        norm = sum(float((twin.get(n, p) ** 2).sum()) for n, p in point.params.items())
        assert norm >= squared * (1 - 1e-14)
    assert squared <= float(objective.vector @ objective.vector)


def test_the_representative_of_itself_is_itself() -> None:
    objective, group = orbit("residual")
    once = representative(objective, group)
    twice = representative(once.objective, group)
    assert float(twice.log_scales.abs().max()) <= 1e-13
    assert float(once.log_scales.abs().max()) > 0.1


def test_what_has_one_side_is_brought_to_unit_size() -> None:
    objective, group = orbit("dead units")
    found = representative(objective, group)
    assert found.one_sided == ("0 -> 2, channel 0", "0 -> 2, channel 1")
    params = found.objective.params
    heard = params["0.weight"][0] @ params["0.weight"][0] + params["0.bias"][0] ** 2
    assert float(heard) == pytest.approx(1, rel=1e-13)
    assert float(params["2.weight"][:, 1].norm()) == pytest.approx(1, rel=1e-13)
    assert not params["0.weight"][2].any()
    # those that live do not see the dead: they balance as if these were not there
    squares = {n: p**2 for n, p in params.items()}
    squares["2.weight"][:, 1] = 0
    squares["0.weight"][0] = squares["0.bias"][0] = 0
    assert float(group.pull(squares).abs().max()) <= 1e-13


def test_dead_biases_get_the_size_one() -> None:
    objective, group = orbit("transformer with dead biases")
    found = representative(objective, group)
    keys = found.objective.params["attend.bias"][4:8]
    torch.testing.assert_close(keys.abs(), torch.ones(4).double(), rtol=1e-13, atol=0)
    assert len(found.one_sided) == 4
    alive = {n: p**2 for n, p in found.objective.params.items()}
    alive["attend.bias"][4:8] = 0
    assert float(group.pull(alive).abs().max()) <= 1e-13


def test_cells_that_run_away_together() -> None:
    """t = (1, 1) sends the first cell to zero alone; the others are least at t_1 - t_2 = log r."""
    exponents = csr_matrix([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    t, touched = least_norm(exponents, np.array([3.0, 2.0, 5.0]), [np.array([0]), np.array([1])])
    assert touched.tolist() == [True, True]
    assert t[0] - t[1] == pytest.approx(np.log(5 / 2) / 4, rel=1e-12)
    assert 3 * np.exp(-2 * (t[0] + t[1])) == pytest.approx(1, rel=1e-12)


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.5, 3.0, 10.0]))
def test_any_exponents_and_masses(seed: int, far: float) -> None:
    """From two points of one orbit to one; no slope is left where all have two sides."""
    draws = np.random.default_rng(seed)
    cell_count, dim = 12, 4
    exponents = csr_matrix(draws.integers(-2, 3, (cell_count, dim)).astype(float))
    masses = np.exp(draws.normal(size=cell_count)) * (draws.random(cell_count) < 0.8)
    shift = far * draws.normal(size=dim)
    blocks = [np.array([k]) for k in range(dim)]
    t, touched = least_norm(exponents, masses, blocks)
    other, _ = least_norm(exponents, masses * np.exp(2 * (exponents @ shift)), blocks)
    alive = masses > 0
    there = (exponents @ (other + shift - t))[alive]
    assert np.abs(there).max(initial=0.0) <= 1e-9
    weights = masses * np.exp(2 * (exponents @ t))
    if not touched.any():
        assert np.abs(exponents.T @ weights).max() <= 1e-10 * max(weights.sum(), 1)


def test_many_generators_by_conjugate_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same point as from a dense matrix; and a wide layer, in closed form."""
    objective, group = orbit("residual")
    grid = cells(group, objective.shapes)
    masses = grid.gather(objective.vector**2)
    dense, _ = least_norm(grid.exponents, masses, [])
    wide = 20_000
    monkeypatch.setattr(sys.modules[ROOM], "NORMAL", 3)
    sparse, _ = least_norm(grid.exponents, masses, [])
    assert sparse == pytest.approx(dense, abs=1e-12)
    draws = np.random.default_rng(0)
    exponents = csr_matrix(
        (np.tile([1.0, -1.0], wide), (np.arange(2 * wide), np.repeat(np.arange(wide), 2)))
    )
    masses = np.exp(draws.normal(size=2 * wide))
    t, _ = least_norm(exponents, masses, [])
    assert t == pytest.approx(np.log(masses[1::2] / masses[::2]) / 4, abs=1e-12)


def test_single_precision_and_far_away() -> None:
    objective = bare(dtype=torch.float32)
    exact = representative(objective.to(torch.float64))
    found = representative(objective)
    assert found.objective.dtype == torch.float32
    torch.testing.assert_close(found.log_scales, exact.log_scales, rtol=0, atol=1e-12)
    assert found.certificate.holds
    group = sl.symmetries(objective)
    far = group.apply(objective.to(torch.float64), group.random(0, 30.0))
    back = representative(far, group).objective.vector
    assert float((back - exact.objective.vector).norm()) <= 1e-12


def test_no_freedom_and_what_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    smooth = trained("recurrent").objective()
    found = representative(smooth)
    assert found.objective is smooth
    assert found.certificate.verdict == "exact"
    with pytest.raises(sl.SpiritlevelError, match="give an Objective, not a Linear"):
        representative(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="group is a int; give a Group"):
        representative(smooth, 3)  # type: ignore[arg-type]
    objective, group = orbit("residual")
    before = {n: p.clone() for n, p in objective.params.items()}
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[ROOM], "ROUNDS", 1)
        patch.setattr(sys.modules[ROOM], "PATIENCE", 1)
        with pytest.raises(sl.SpiritlevelError, match="weights too many powers of ten apart"):
            representative(objective, group)
    representative(objective, group)
    assert all(torch.equal(p, before[n]) for n, p in objective.params.items())
