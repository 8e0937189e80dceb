"""The loss's Hessian in the outputs: closed forms against autograd, and where digits run out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.objective.loss.bends import bend, combined, matrix, root
from spiritlevel.objective.loss.stable import binary_cross_entropy, label_cross_entropy

N = 7
WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
X, ROWS = randn(N, 4), torch.linspace(0.1, 1.2, N, dtype=torch.float64)
HARD, SOFT = labels(N), randn(N, 3, seed=2).softmax(-1)
IGNORED = torch.where(torch.arange(N) == 2, -100, HARD)
BITS, REAL = (randn(N, 3, seed=3) > 0).double(), randn(N, 3, seed=4)
CE, BCE = nn.CrossEntropyLoss, nn.BCEWithLogitsLoss

CASES: dict[str, tuple[Any, tuple[Tensor, ...], bool]] = {
    "labels": (F.cross_entropy, (HARD,), False),
    "class weights": (CE(weight=WEIGHTS), (HARD,), False),
    "smoothed, ignored": (CE(weight=WEIGHTS, label_smoothing=0.1), (IGNORED,), False),
    "a partial": (functools.partial(F.cross_entropy, weight=WEIGHTS), (IGNORED,), False),
    "probabilities": (CE(weight=WEIGHTS), (SOFT,), False),
    "weighted rows": (F.cross_entropy, (HARD, ROWS), False),
    "bits": (F.binary_cross_entropy_with_logits, (BITS,), False),
    "bits, weights": (BCE(pos_weight=WEIGHTS, weight=WEIGHTS), (BITS,), False),
    "bits, rows": (F.binary_cross_entropy_with_logits, (BITS, ROWS), False),
    "squares": (F.mse_loss, (REAL,), False),
    "summed squares, rows": (nn.MSELoss(reduction="sum"), (REAL, ROWS), False),
    "squares, elements": (F.mse_loss, (REAL, REAL.abs()), False),
    "nll": (nn.NLLLoss(weight=WEIGHTS), (HARD,), True),
    "nll, a function": (lambda out, y: F.nll_loss(out, y) + 0, (HARD,), True),
    "kl": (nn.KLDivLoss(reduction="batchmean"), (SOFT,), True),
    "kl, rows": (nn.KLDivLoss(), (SOFT, ROWS), True),
}


def objective_of(loss: Any, targets: tuple[Tensor, ...], logs: bool) -> sl.Objective:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    return sl.Objective(nn.Sequential(net, nn.LogSoftmax(-1)) if logs else net, (X, *targets), loss)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_closed_forms_are_the_second_derivative(case: Any) -> None:
    objective = objective_of(*case)
    loss, (batch,) = objective.loss, objective.batches
    assert loss.on_outputs is not None
    assert loss.strength is not None
    out = objective.outputs(objective.params, batch).detach()

    def total(z: Tensor) -> Tensor:
        return loss.on_outputs(z.reshape(out.shape), batch)[0]  # type: ignore[misc]

    truth = torch.func.hessian(total)(out.reshape(-1))
    tangent = randn(*out.shape, seed=8)
    found = bend(loss, out, tangent, batch).reshape(-1)
    torch.testing.assert_close(found, truth @ tangent.reshape(-1), rtol=1e-12, atol=1e-14)
    one = tuple(t[:1] for t in batch)
    block = matrix(loss, out[:1], one)
    square = root(loss, out[:1], one)
    torch.testing.assert_close(square @ square.T, block, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(truth[:3, :3], block, rtol=1e-12, atol=1e-14)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    columns = torch.stack([combined(loss, out[:1], one, s[None])[0] for s in signs])
    torch.testing.assert_close(columns.T @ columns / len(signs), block, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whole_matrices_against_dense_derivatives(case: Any) -> None:
    """G = J' (grad_f^2 l) J with the logits as outputs, also behind a log_softmax."""
    loss, targets, logs = case
    objective = objective_of(*case)
    model: Any = objective.module[0] if logs else objective.module  # type: ignore[index]
    weight, bias = model.weight.detach(), model.bias.detach()
    held, (batch,) = objective.loss, objective.batches

    def total(theta: Tensor) -> Tensor:
        z = X @ theta[:12].reshape(3, 4).T + theta[12:]
        return held.on_outputs(z, batch)[0] / objective.count  # type: ignore[misc]

    theta = torch.cat([weight.reshape(-1), bias])
    truth = torch.func.hessian(total)(theta)  # outputs are linear: the Hessian is G
    torch.testing.assert_close(sl.ggn(objective).dense(), truth, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(sl.hessian(objective).dense(), truth, rtol=1e-9, atol=1e-12)
    want = _mean(loss, targets, logs, model)
    assert objective.value() == pytest.approx(want, rel=1e-13)


def _mean(loss: Callable[..., Any], targets: tuple[Tensor, ...], logs: bool, model: Any) -> float:
    """The mean by PyTorch's own functions; with a column of weights by hand."""
    out = model(X).detach()
    out = out.log_softmax(-1) if logs else out
    if len(targets) == 1:
        return float(loss(out, targets[0]))
    y, weight = targets
    each = {
        F.cross_entropy: lambda: F.cross_entropy(out, y, reduction="none"),
        F.binary_cross_entropy_with_logits: lambda: F.binary_cross_entropy_with_logits(
            out, y, reduction="none"
        ).mean(1),
        F.mse_loss: lambda: (out - y) ** 2,
    }.get(loss)
    if each is not None:
        units = each()
    elif isinstance(loss, nn.MSELoss):
        units = ((out - y) ** 2).sum(1)
    else:
        units = F.kl_div(out, y, reduction="none").mean(1)
    return float((units * weight).sum() / weight.sum())


class Named(nn.Module):
    """One tensor of log-probabilities in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logs": self.linear(x).log_softmax(-1)}


@pytest.mark.parametrize("loss", [F.nll_loss, lambda out, y: F.nll_loss(out["logs"], y)])
def test_a_log_softmax_in_a_container_is_seen_through(loss: Any) -> None:
    model, y = Named(), torch.randint(3, (len(X),), generator=torch.Generator().manual_seed(0))
    fused = sl.Objective(model, (X, y), loss)
    plain = sl.Objective(model.linear, (X, y), F.cross_entropy)
    torch.testing.assert_close(sl.ggn(fused).dense(), sl.ggn(plain).dense())
    assert float(sl.ggn(fused).dense().norm()) > 0.1


def test_cross_entropies_keep_their_digits_in_float32() -> None:
    z = torch.tensor([[30.0, 0.0, -3.0], [-40.0, 2.0, 1.0]])
    y = torch.tensor([0, 0])

    def derivatives(z: Tensor) -> tuple[Tensor, ...]:
        loss = lambda z: label_cross_entropy(z, y).sum()  # noqa: E731
        return label_cross_entropy(z, y), torch.func.grad(loss)(z), torch.func.hessian(loss)(z)

    for rough, exact in zip(derivatives(z), derivatives(z.double()), strict=True):
        torch.testing.assert_close(rough.double(), exact, rtol=1e-5, atol=1e-20)
    exact = F.cross_entropy(z.double(), y, reduction="none")
    torch.testing.assert_close(label_cross_entropy(z.double(), y), exact, rtol=1e-3, atol=0)
    bits = torch.tensor([1.0, 0.0])
    ones, zeros = binary_cross_entropy(z[0, :2].double(), bits.double())
    truth = F.binary_cross_entropy_with_logits(z[0, :2].double(), bits.double(), reduction="none")
    torch.testing.assert_close(ones + zeros, truth, rtol=1e-12, atol=0)


def test_targets_of_another_shape_are_refused() -> None:
    net = nn.Linear(4, 1).double()
    for loss in (F.mse_loss, nn.L1Loss(), F.huber_loss, functools.partial(F.smooth_l1_loss)):
        with pytest.raises(sl.SpiritlevelError, match=r"\(2, 1\) and targets \(2,\) compares"):
            sl.Objective(net, (X, REAL[:, 0]), loss)
