"""Saddle-free Newton against dense |H|^-1 g, and where Newton's method sticks."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.training import SaddleFreeNewton


class Point(nn.Module):
    """A vector as a model: what it makes of it is for the loss."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(numbers, dtype=torch.float64))

    def forward(self, scale: Tensor) -> Tensor:
        return scale * self.x


def bowl(model: Point, curvatures: list[float], slopes: list[float]) -> sl.Objective:
    """L = sum_i h_i x_i^2 / 2 + c_i x_i."""
    h, c = torch.tensor(curvatures).double(), torch.tensor(slopes).double()
    data = torch.ones(1, len(h)).double(), torch.zeros(1).double()
    return sl.Objective(model, data, lambda out, y: (h * out**2 / 2 + c * out).sum() + 0 * y.sum())


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def trained(model: nn.Module) -> sl.Objective:
    return sl.Objective(model, (randn(10, 4), labels(10)), F.cross_entropy)


def dense(objective: sl.Objective) -> tuple[Tensor, Tensor]:
    """The gradient and the Hessian by torch alone."""
    (x, y), model, shapes = objective.batches[0], objective.module, objective.shapes

    def loss(vector: Tensor) -> Tensor:
        pieces = vector.split([s.numel() for s in shapes.values()])
        state = {n: p.view(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, state, (x,)), y)

    point = objective.vector
    found: Any = torch.autograd.functional.hessian(loss, point)
    return torch.func.grad(loss)(point), found


def absolute_step(gradient: Tensor, matrix: Tensor, damping: float = 0.0) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return -vectors @ ((vectors.T @ gradient) / (values.abs() + damping))


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def test_it_leaves_the_saddle_that_newton_sticks_to() -> None:
    model = Point(1.0, 1e-3)
    optimizer = SaddleFreeNewton(model.parameters(), objective=bowl(model, [2, -1], [0, 0]))
    newton = model.x.detach().clone()
    h = torch.tensor([2.0, -1.0]).double()
    for _ in range(5):
        optimizer.step()
        newton -= (h * newton) / h
    expected = torch.tensor([0, 0.032], dtype=torch.float64)
    assert torch.allclose(model.x, expected, rtol=0, atol=1e-14)
    assert torch.equal(newton, torch.zeros(2).double())


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_in_the_full_space_it_is_the_dense_step(damping: float) -> None:
    model = net()
    objective = trained(model)
    gradient, matrix = dense(objective)
    assert (torch.linalg.eigvalsh(matrix) < -1e-3).any(), "there is something to take absolute"
    before, expected = flat(model), absolute_step(gradient, matrix, damping)
    optimizer = SaddleFreeNewton(
        model.parameters(), objective=objective, k=objective.size, damping=damping
    )
    # 3 classes share a direction that changes nothing, for every hidden unit and the bias
    kept = torch.linalg.eigvalsh(matrix).abs() > 1e-12
    assert int((~kept).sum()) == 6
    if not damping:
        values, vectors = torch.linalg.eigh(matrix)
        inside = (vectors.T @ gradient)[kept] / values[kept].abs()
        expected = -vectors[:, kept] @ inside
    assert optimizer.step() == pytest.approx(objective.value(), rel=1e-14)
    assert (flat(model) - before - expected).norm() <= 1e-8 * expected.norm()


def test_in_one_dimension_it_is_the_gradient_over_its_own_curvature() -> None:
    model = net()
    objective = trained(model)
    gradient, matrix = dense(objective)
    before = flat(model)
    SaddleFreeNewton(model.parameters(), objective=objective, k=1, lr=0.5).step()
    curvature = abs(float(gradient @ matrix @ gradient / (gradient @ gradient)))
    assert torch.allclose(flat(model), before - 0.5 * gradient / curvature, rtol=0, atol=1e-12)


def test_where_nothing_bends_the_step_is_that_of_the_largest_curvature() -> None:
    model = Point(3.0, 5.0)
    SaddleFreeNewton(model.parameters(), objective=bowl(model, [-4, 0], [0, 1])).step()
    assert torch.allclose(model.x, torch.tensor([6.0, 4.75]).double(), rtol=0, atol=1e-12)


def test_where_nothing_bends_at_all_only_damping_gives_a_step() -> None:
    model = Point(3.0, 5.0)
    objective = bowl(model, [0, 0], [2, 1])
    with pytest.raises(sl.SpiritlevelError, match=r"zero along the gradient.*give damping"):
        SaddleFreeNewton(model.parameters(), objective=objective).step()
    SaddleFreeNewton(model.parameters(), objective=objective, damping=4.0).step()
    assert torch.allclose(model.x, torch.tensor([2.5, 4.75]).double(), rtol=0, atol=1e-12)


def test_at_a_minimum_it_stays() -> None:
    model = Point(0.0, 0.0)
    SaddleFreeNewton(model.parameters(), objective=bowl(model, [2, 1], [0, 0])).step()
    assert torch.equal(model.x, torch.zeros(2).double())


def test_groups_have_rates_of_their_own_and_names_say_who_is_who() -> None:
    model = net()
    objective, before = trained(model), {n: p.detach().clone() for n, p in net().named_parameters()}
    whole = net()
    SaddleFreeNewton(whole.parameters(), objective=objective, damping=0.1).step()
    named = dict(model.named_parameters())
    biases = [(n, p) for n, p in named.items() if n.endswith("bias")]
    weights = [(n, p) for n, p in named.items() if n.endswith("weight")]
    groups = [{"params": biases, "lr": 0.0}, {"params": weights, "lr": 0.5}]
    SaddleFreeNewton(groups, objective=objective, damping=0.1).step()
    for name, p in whole.named_parameters():
        rate = 0.0 if name.endswith("bias") else 0.5
        assert torch.allclose(named[name], before[name] + rate * (p - before[name]), atol=1e-14)


def test_the_closure_gives_the_loss_and_nothing_else() -> None:
    one, other = Point(1.0, 2.0), Point(1.0, 2.0)
    SaddleFreeNewton(one.parameters(), objective=bowl(one, [2, 1], [0, 0])).step()
    optimizer = SaddleFreeNewton(other.parameters(), objective=bowl(other, [2, 1], [0, 0]))

    def closure() -> Tensor:
        loss = (other.x**4).sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) == 17.0
    assert torch.equal(one.x, other.x)


def test_stored_and_loaded_it_goes_on_bit_for_bit() -> None:
    model = net()
    objective = trained(model)
    optimizer = SaddleFreeNewton(model.parameters(), objective=objective, k=4, lr=0.3)
    optimizer.step()
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    optimizer.step()
    again = net()
    other = SaddleFreeNewton(again.parameters(), objective=objective, k=4, lr=9.0, seed=5)
    again.load_state_dict(weights)
    other.load_state_dict(state)
    other.step()
    assert torch.equal(flat(model), flat(again))
    assert other.products == optimizer.products == 8


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y)


def test_it_can_be_sent_to_another_process() -> None:
    model = net()
    objective = sl.Objective(model, (randn(10, 4), labels(10)), cross_entropy)
    optimizer = SaddleFreeNewton(model.parameters(), objective=objective, k=4, damping=0.1)
    optimizer.step()
    there_model, there = pickle.loads(pickle.dumps((model, optimizer)))
    optimizer.step()
    there.step()
    assert torch.equal(flat(model), flat(there_model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k=0: give a whole number of at least 1"),
        ({"damping": -1.0}, "damping=-1.0: give a number of at least 0"),
        ({"lr": float("nan")}, "lr=nan: give a number"),
        ({"seed": 0.5}, "seed=0.5: give a whole number"),
        ({"objective": "loss"}, "give an Objective, not a str"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    model = Point(1.0, 2.0)
    given = {"objective": bowl(model, [2, 1], [0, 0]), **options}
    with pytest.raises(sl.SpiritlevelError, match=message):
        SaddleFreeNewton(model.parameters(), **given)


def test_parameters_of_another_model_are_refused() -> None:
    model, other = Point(1.0, 2.0), Point(2.0, 1.0)
    objective = bowl(model, [2, 1], [0, 0])
    with pytest.raises(sl.SpiritlevelError, match=r"give model.named_parameters\(\)"):
        SaddleFreeNewton(other.parameters(), objective=objective)
    with pytest.raises(sl.SpiritlevelError, match=r"give model.named_parameters\(\)"):
        SaddleFreeNewton([("y", other.x)], objective=objective)
    optimizer = SaddleFreeNewton(other.named_parameters(), objective=objective)
    with pytest.raises(sl.SpiritlevelError, match="all of them from the start"):
        optimizer.add_param_group({"params": [model.x]})
    with pytest.raises(sl.SpiritlevelError, match="not one of SaddleFreeNewton"):
        optimizer.load_state_dict(torch.optim.SGD([model.x]).state_dict())
