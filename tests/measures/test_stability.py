"""Noise and stability against closed forms, dense matrices and every step that SGD can take."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import BY_NAME, labels, randn
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.measures import examples
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import singles


def measured(name: str, objective: sl.Objective, **options: Any) -> Estimate:
    return sl.MEASURES[name](objective, **options)


class Scalar(nn.Module):
    """f_i(x) = a_i x^2 / 2."""

    def __init__(self, x: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([x], dtype=torch.float64))

    def forward(self, a: Tensor) -> Tensor:
        return a * self.x**2 / 2


def scalar(curvatures: list[float], x: float = 0.0) -> sl.Objective:
    a = torch.tensor(curvatures, dtype=torch.float64)[:, None]
    return sl.Objective(Scalar(x), (a, torch.zeros_like(a)), lambda f, y: (f - y).mean())


def half_square(f: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (f - y).square().sum(1).mean()


def linear(x: Tensor, y: Tensor, loss: Callable[..., Tensor] = F.mse_loss) -> sl.Objective:
    """f = W x at a fixed W."""
    model = nn.Linear(x.shape[1], y.shape[1], bias=False).double()
    with torch.no_grad():
        model.weight.copy_(randn(y.shape[1], x.shape[1], seed=5))
    return sl.Objective(model, (x, y), loss)


def with_errors(x: Tensor, errors: Tensor, loss: Callable[..., Tensor] = F.mse_loss) -> Any:
    """A linear model that errs by as much."""
    return linear(x, x @ randn(errors.shape[1], x.shape[1], seed=5).T + errors, loss)


def net(loss: Any = F.mse_loss, n: int = 12, **options: Any) -> sl.Objective:
    model = randomized(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))).double()
    return sl.Objective(model, (randn(n, 3), randn(n, 2, seed=7)), loss, **options)


def hessians(objective: sl.Objective) -> Tensor:
    """Of every example, dense."""
    alone = [objective.on([(x[None], y[None])]) for x, y in zip(*one(objective), strict=True)]
    return torch.stack([sl.hessian(single, compile=False).dense() for single in alone])


def one(objective: sl.Objective) -> tuple[Tensor, Tensor]:
    (batch,) = objective.batches
    return batch


# The noise of single examples --------------------------------------------------------------------


def test_the_variance_and_the_scale_in_closed_form() -> None:
    """Gradients a_i x: the variance is Var(a) x^2 and the scale Var(a) / mean(a)^2."""
    objective = scalar([1.0, 2.0, 6.0], x=0.5)
    assert measured("gradient_variance", objective).value == pytest.approx(14 / 3 * 0.25)
    scale = measured("gradient_noise_scale", objective)
    assert scale.value == pytest.approx(14 / 27)
    assert scale.status is Status.EXACT
    with pytest.raises(sl.SpiritlevelError, match="noise scale is infinite here"):
        measured("gradient_noise_scale", with_errors(*twins(randn(4, 3))))
    with pytest.raises(sl.SpiritlevelError, match="too large for float64"):
        measured("gradient_variance", linear(1e140 * randn(4, 3), randn(4, 1)))


def twins(x: Tensor, outputs: int = 1) -> tuple[Tensor, Tensor]:
    """Every input with an error and its opposite in each output: the gradient is zero."""
    sides = torch.cat([torch.eye(outputs), -torch.eye(outputs)]).double()
    return x.repeat_interleave(2 * outputs, 0), 0.3 * sides.repeat(len(x), 1)


@pytest.mark.parametrize("name", ["mlp", "cnn with BatchNorm", "LSTM", "embedding"])
def test_the_variance_is_that_of_all_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept or made anew, at once or some rows at a time, with vmap or without."""
    objective = BY_NAME[name].objective()
    rows = objective.per_example_gradients()
    truth = float((rows - rows.mean(0)).square().sum(1).mean())
    assert measured("gradient_variance", objective).value == pytest.approx(truth, rel=1e-10)
    monkeypatch.setattr(singles, "ROOM", {"cpu": 3 * objective.size})
    monkeypatch.setattr(examples, "KEPT", 0)
    tools = Instruments(objective)
    assert examples.noise(tools).kept is None
    assert len(list(examples.noise(tools).rows())) == -(-objective.examples // 3)
    assert examples.noise(tools).variance == pytest.approx(truth, rel=1e-10)


def test_weights_are_those_of_the_mean() -> None:
    x, y, w = randn(8, 4), labels(8), randn(8, seed=4).exp()
    model = BY_NAME["mlp"].model()
    objective = sl.Objective(model, (x, y, w), F.cross_entropy)
    found = torch.cat(list(singles.gradients(objective)))
    torch.testing.assert_close(found, objective.per_example_gradients())
    torch.testing.assert_close(found.mean(0), objective.gradient())


def test_examples_that_depend_on_each_other_have_no_gradients() -> None:
    objective = BY_NAME["cnn with BatchNorm in train mode"].objective()
    for name in ("gradient_variance", "sgd_growth", "alignment"):
        with pytest.raises(sl.SpiritlevelError, match="per-example gradients do not exist"):
            measured(name, objective)


# The edges ---------------------------------------------------------------------------------------


def test_the_edge_of_gradient_descent() -> None:
    objective = scalar([1.0, 2.0, 6.0])
    assert measured("edge", objective).value == pytest.approx(0.15)
    assert measured("edge", objective, rate=2 / 3).value == pytest.approx(1.0)
    assert measured("edge", scalar([-1.0, -3.0])).value == pytest.approx(-0.1)
    deep = net()
    top = float(torch.linalg.eigvalsh(sl.hessian(deep).dense())[-1])
    found = measured("edge", deep, rate=0.4)
    assert abs(found.value - 0.2 * top) <= found.error + 1e-9


def test_growth_of_one_parameter() -> None:
    """(1 - eta h)^2 + eta^2 Var(a) / B: 1.23 leaves, five examples at a time .26 stay."""
    h, spread = 1 - 0.0175**0.5, 1.2125**0.5
    objective = scalar([h - spread, h + spread], x=0.1)
    for batch, factor in ((1, 1.23), (5, 0.26)):
        found = measured("sgd_growth", objective, rate=1.0, batch=batch)
        assert found.value == pytest.approx(factor)
        assert found.status is Status.LOWER_BOUND


@pytest.mark.parametrize(("rate", "leaves"), [(0.45, False), (0.55, True)])
def test_growth_with_orthogonal_features(rate: float, leaves: bool) -> None:
    """Stable if eta ||a_i||^2 <= 2 for all i, whatever gradient descent on all of them does."""
    sizes = torch.tensor([2.0, 1.0, 0.5]).double()
    objective = with_errors(sizes.diag(), randn(3, 1), half_square)
    found = measured("sgd_growth", objective, rate=rate).value
    a = 4.0
    assert found == pytest.approx(1 + rate * a / 3 * (rate * a - 2))
    assert (found > 1) == leaves
    assert measured("edge", objective, rate=rate).value < 1


@pytest.mark.parametrize("loss", [F.mse_loss, half_square])
@pytest.mark.parametrize(("rate", "batch"), [(0.1, 1), (0.6, 2), (2.0, 1), (2.0, 8)])
def test_growth_is_a_lower_bound(loss: Any, rate: float, batch: int) -> None:
    """Of the spectral radius of X -> E (I - eta H_B) X (I - eta H_B), as a dense matrix."""
    objective = net(loss)
    each = hessians(objective)
    mean, n = each.mean(0), len(each)
    step = torch.eye(len(mean)).double() - rate * mean
    spread = sum(torch.kron(h, h) for h in each) / n - torch.kron(mean, mean)
    moments = torch.kron(step, step) + rate**2 / batch * spread
    radius = float(torch.linalg.eigvalsh(moments).abs().max())
    v = torch.linalg.eigh(mean)[1][:, -1]
    here = float(torch.kron(v, v) @ moments @ torch.kron(v, v))
    found = measured("sgd_growth", objective, rate=rate, batch=batch).value
    assert found == pytest.approx(here, rel=1e-4)
    assert found <= radius * (1 + 1e-9)


class Branches(nn.Module):
    """Control flow that vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.a(r).tanh() if float(r.sum()) > 0 else self.b(r).tanh() for r in x]
        return torch.stack(rows)


def test_curvatures_where_vmap_cannot_go_or_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = sl.Objective(Branches(), (randn(7, 3), randn(7, 2, seed=7)), F.mse_loss)
    v = randn(objective.size)
    truth = torch.einsum("i,nij,j->n", v, hessians(objective), v)
    torch.testing.assert_close(examples.curvatures(Instruments(objective), v), truth)
    mapped = net()
    truth = torch.einsum("i,nij,j->n", (u := randn(mapped.size)), hessians(mapped), u)
    torch.testing.assert_close(examples.curvatures(Instruments(mapped), u), truth)
    wrong = torch.linspace(0.1, 1, len(truth), dtype=torch.float64)
    monkeypatch.setattr(singles, "_mapped", lambda *_: wrong)
    torch.testing.assert_close(examples.curvatures(Instruments(mapped), u), truth)


class Once(torch.autograd.Function):
    """A tanh of which autograd has no second derivative, as of kernels written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x.tanh())
        return x.tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class Written(nn.Module):
    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[2](Once.apply(self.layers[0](x)))


def test_curvatures_by_differences_keep_their_digits() -> None:
    """In float32, of a model with first derivatives only."""
    plain = net()
    v = plain.gradient() / plain.gradient().norm()
    truth = torch.einsum("i,nij,j->n", v, hessians(plain), v)
    layers: Any = deepcopy(plain.module).requires_grad_()
    layers.load_state_dict(plain.params)
    single = sl.Objective(Written(layers), one(plain), F.mse_loss, dtype=torch.float32)
    found = examples.curvatures(Instruments(single), v.float())
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-4 * float(truth.abs().max()))


# The alignment -----------------------------------------------------------------------------------


def covariance(objective: sl.Objective) -> Tensor:
    rows = objective.per_example_gradients()
    return (rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows)


def outputs_matrix(objective: sl.Objective) -> Tensor:
    x, _ = one(objective)
    jacobian = torch.func.jacrev(
        lambda v: objective.outputs(objective.named(v), objective.batches[0])
    )(objective.vector)
    return torch.einsum("nki,nkj->ij", jacobian, jacobian) / len(x)


@pytest.mark.parametrize("outputs", [1, 2])
def test_errors_that_know_nothing_of_gradients_are_aligned(outputs: int) -> None:
    """Sigma is a multiple of G, the same for each output: 1 / outputs."""
    for loss in (F.mse_loss, half_square):
        found = measured("alignment", with_errors(*twins(randn(6, 3), outputs), loss))
        assert found.value == pytest.approx(1 / outputs)
        assert found.status is Status.EXACT


@pytest.mark.parametrize("loss", [F.mse_loss, half_square])
def test_alignment_of_squared_errors_is_the_published_one(loss: Any) -> None:
    """tr(Sigma H) / (2 L ||H||_F^2), where H is a multiple of G."""
    objective = with_errors(randn(9, 4), randn(9, 2, seed=8), loss)
    sigma, h = covariance(objective), sl.hessian(objective).dense()
    truth = float((sigma @ h).trace() / (2 * objective.value() * h.square().sum()))
    assert measured("alignment", objective).value == pytest.approx(truth)


@pytest.mark.parametrize("n", [30, 90])
def test_alignment_of_any_loss_is_that_of_dense_matrices(n: int) -> None:
    """Exact for few examples and parameters, else within its error."""
    model = randomized(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))).double()
    objective = sl.Objective(model, (randn(n, 3), labels(n)), F.cross_entropy)
    x, y = one(objective)
    score = model(x).detach().softmax(1) - F.one_hot(y, 3)
    g = outputs_matrix(objective)
    truth = float((covariance(objective) @ g).trace() / g.square().sum())
    truth /= float(score.square().sum(1).mean())
    for seed in range(4):
        found = measured("alignment", objective, seed=seed)
        assert found.status is Status.CONVERGED
        assert abs(found.value - truth) <= 3 * found.error
        assert found.error <= 0.15 * truth


def test_alignment_of_rows_that_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = with_errors(randn(9, 4), randn(9, 2, seed=8))
    kept = measured("alignment", objective).value
    monkeypatch.setattr(singles, "ROOM", {"cpu": 2 * objective.size})
    monkeypatch.setattr(examples, "KEPT", 0)
    assert measured("alignment", objective).value == pytest.approx(kept, rel=1e-9)


def test_the_loss_grows_by_what_sgd_stability_says() -> None:
    """The mean over all steps with one example, of a linear model: no less than its square."""
    objective = with_errors(randn(7, 4), randn(7, 1, seed=8), half_square)
    rows, theta = objective.per_example_gradients(), objective.vector
    for rate in (1.0, 3.0):
        steps = [objective.at(theta - rate * row).value() for row in rows]
        growth = sum(steps) / len(steps) / objective.value()
        h, sigma = sl.hessian(objective).dense(), covariance(objective)
        noisy = rate * float(((sigma @ h).trace() / (2 * objective.value())) ** 0.5)
        whole = rate * float(torch.linalg.eigvalsh(h)[-1]) / 2
        found = measured("sgd_stability", objective, rate=rate)
        assert found.value == pytest.approx(max(noisy, whole), rel=1e-3)
        assert growth >= noisy**2
    few = measured("sgd_stability", objective, rate=3.0, batch=10**6)
    assert few.value == pytest.approx(whole, rel=1e-3)  # the noise is gone, the edge is left


def test_output_gradients_stay_where_squares_are_fitted() -> None:
    x = randn(6, 4)
    fitted = with_errors(x, torch.zeros(6, 2))
    truth = 2 * float(x.square().sum(1).mean())
    assert measured("output_gradient_trace", fitted).value == pytest.approx(truth)
    assert float(sl.hessian(fitted).dense().trace()) == pytest.approx(truth)  # of 2 outputs
    with pytest.raises(sl.SpiritlevelError, match="no slope in the outputs"):
        measured("alignment", fitted)
    deep = net(n=20)
    found = measured("output_gradient_trace", deep)
    assert abs(found.value - float(outputs_matrix(deep).trace())) <= 3 * found.error + 1e-9


def test_alignment_must_see_outputs() -> None:
    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        return model(batch[0]).square().sum(), len(batch[0])

    with pytest.raises(sl.SpiritlevelError, match="must see outputs and loss apart"):
        measured("alignment", sl.Objective(nn.Linear(3, 2), (randn(5, 3), labels(5)), loss))


class Dead(nn.Module):
    """No unit is ever alive."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
        nn.init.constant_(self.a.bias, -100.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())


@pytest.mark.parametrize("name", ["alignment", "sgd_stability"])
def test_outputs_without_gradients_have_no_alignment(name: str) -> None:
    point = sl.Objective(Dead(), (randn(9, 3), randn(9, 2)), F.mse_loss, params="a.*")
    with pytest.raises(sl.SpiritlevelError, match="gradients of the outputs are 0 here"):
        measured(name, point)


# Weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alignment", "sgd_stability", "output_gradient_trace"])
def test_the_unit_of_weights_does_not_matter(name: str) -> None:
    x, y, model = randn(8, 3), labels(8), nn.Linear(3, 3).double()
    plain = measured(name, sl.Objective(model, (x, y), F.cross_entropy)).value
    for c in (2.0, 10.0):
        each = torch.full((8,), c).double()
        found = measured(name, sl.Objective(model, (x, y, each), F.cross_entropy)).value
        assert found == pytest.approx(plain)
        classes = nn.CrossEntropyLoss(weight=each[:3])
        assert measured(name, sl.Objective(model, (x, y), classes)).value == pytest.approx(plain)


@pytest.mark.parametrize("of_classes", [True, False])
def test_unequal_weights_are_those_of_the_means(of_classes: bool) -> None:
    """s^2 and G are weighted means over losses and outputs without weights."""
    x, y, model = randn(8, 3), labels(8), nn.Linear(3, 3, bias=False).double()
    classes = torch.tensor([1.0, 2.0, 5.0]).double()
    w = classes[y] if of_classes else torch.linspace(0, 3, 8).double()
    loss = nn.CrossEntropyLoss(weight=classes) if of_classes else F.cross_entropy
    objective = sl.Objective(model, (x, y) if of_classes else (x, y, w), loss)
    g = torch.kron(torch.eye(3).double(), (x * w[:, None]).T @ x / w.sum())
    slope = model(x).detach().softmax(1) - F.one_hot(y, 3)
    score = float((w * slope.square().sum(1)).sum() / w.sum())
    truth = float((covariance(objective) @ g).trace() / g.square().sum()) / score
    assert measured("alignment", objective).value == pytest.approx(truth)
    assert measured("output_gradient_trace", objective).value == pytest.approx(float(g.trace()))


def test_class_weights_of_an_unknown_kind_are_refused() -> None:
    loss = nn.NLLLoss(weight=torch.ones(3).double())
    objective = sl.Objective(nn.Linear(3, 3).double(), (randn(8, 3), labels(8)), loss)
    with pytest.raises(sl.SpiritlevelError, match="class weights do to this loss is not known"):
        measured("output_gradient_trace", objective)
