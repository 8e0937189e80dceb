"""An Objective is sent to another process, and is the same there."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, randn


def measured(objective: sl.Objective) -> dict[str, float]:
    torch.set_num_threads(1)
    names = ["loss", "gradient_norm", "hessian_spectral", "hessian_trace", "orbit_trace"]
    rows = sl.measure(objective, names).rows
    return {row.name: row.estimate.value for row in rows}


def decayed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    squares = sum(p.square().sum() for p in model.parameters())
    return F.cross_entropy(model(batch[0]), batch[1]) + 0.01 * squares


def test_another_process_measures_the_same() -> None:
    objective = BY_NAME["relu mlp"].objective()
    twin = sl.symmetries(objective).apply(objective, torch.full((5,), 0.3).double())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for point in (objective, twin):
            assert pool.apply(measured, (point,)) == pytest.approx(measured(point), rel=1e-10)


@pytest.mark.parametrize("name", ["cnn with BatchNorm in train mode", "LSTM", "GPT-2", "embedding"])
def test_what_comes_out_of_a_pickle_is_what_went_in(name: str) -> None:
    objective = BY_NAME[name].objective()
    moved = objective.at(objective.vector + 0.01 * randn(objective.size))
    back = pickle.loads(pickle.dumps(moved))
    assert repr(back) == repr(moved)
    assert back.value() == moved.value()
    assert torch.equal(back.gradient(), moved.gradient())
    v = randn(objective.size, 1, seed=3)
    products = sl.hessian(back) @ v, sl.hessian(moved) @ v
    torch.testing.assert_close(*products, rtol=1e-9, atol=1e-12)


def test_penalties_coordinates_and_precisions_travel_along() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    data = BY_NAME["mlp"].data()
    objective = sl.Objective(model, data, decayed)
    size = torch.full((objective.size,), 2.0).double()
    other = objective.reparametrize(sl.coordinates.Diagonal(size))
    for point in (objective, other, objective.to(torch.float32)):
        back = pickle.loads(pickle.dumps(point))
        assert back.value() == point.value()
        assert back.dtype == point.dtype
        assert torch.equal(back.gradient(), point.gradient())


def test_a_loss_that_cannot_travel_says_so_and_copies_all_the_same() -> None:
    model, data = nn.Linear(4, 3).double(), BY_NAME["mlp"].data()
    objective = sl.Objective(model, data, lambda out, y: 2 * F.cross_entropy(out, y))
    with pytest.raises(sl.SpiritlevelError, match="cannot be sent to another process, because of"):
        pickle.dumps(objective)
    for other in (copy.copy(objective), copy.deepcopy(objective)):
        assert other.value() == objective.value()


def test_an_objective_is_frozen() -> None:
    objective = BY_NAME["mlp"].objective()
    with pytest.raises(sl.SpiritlevelError, match="an Objective is frozen, seed cannot be set"):
        objective.seed = 3
