"""Matrices, traces and norms against curvlinops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import cnn, labels, mlp, randn
from peering import peer
from spiritlevel.spectral.probes import standard_error

curvlinops = peer("curvlinops")

N = 10
LOSSES: dict[str, tuple[Callable[..., Tensor], nn.Module, Callable[[], Tensor]]] = {
    "cross-entropy": (F.cross_entropy, nn.CrossEntropyLoss(), lambda: labels(N)),
    "squares": (F.mse_loss, nn.MSELoss(), lambda: randn(N, 3)),
    "binary": (
        F.binary_cross_entropy_with_logits,
        nn.BCEWithLogitsLoss(),
        lambda: randn(N, 3).sign().clamp(min=0),
    ),
}
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (4,)),
    "rectified mlp": (lambda: mlp(nn.ReLU), (4,)),
    "cnn with BatchNorm": (cnn, (1, 6, 6)),
}


def both(model: str, loss: str) -> tuple[sl.Objective, Callable[..., Any]]:
    """Ours, and a maker of theirs: the same model, data in unequal batches, the same mean."""
    make, shape = MODELS[model]
    net, x = randomized(make()).double().eval(), randn(N, *shape)
    ours, theirs, targets = LOSSES[loss]
    y = targets()
    batches = list(zip(x.split([4, 4, 2]), y.split([4, 4, 2]), strict=True))
    params = list(net.parameters())

    def operator(kind: str, **options: Any) -> Any:
        return getattr(curvlinops, kind)(net, theirs, params, batches, **options)

    return sl.Objective(net, (x, y), ours), operator


def dense(operator: Any) -> Tensor:
    return operator @ torch.eye(operator.shape[1], dtype=torch.float64)


def close(ours: sl.Operator, theirs: Any, factor: float = 1.0) -> None:
    a, b = ours.dense(), dense(theirs)
    torch.testing.assert_close(factor * a, b, rtol=0, atol=1e-10 * float(b.norm()))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", MODELS)
def test_the_hessian_and_gauss_newton_are_the_same(model: str, loss: str) -> None:
    objective, theirs = both(model, loss)
    close(sl.hessian(objective, compile=False), theirs("HessianLinearOperator"))
    close(sl.ggn(objective), theirs("GGNLinearOperator"))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_empirical_fisher(loss: str) -> None:
    """Of a loss that averages over d outputs of an example, theirs is d times ours.

    Ours is the mean over examples of g_i g_i', with g_i the gradient of what example i adds to the
    loss; theirs takes the outputs of an example for d independent terms of the mean.
    """
    objective, theirs = both("mlp", loss)
    rows = objective.per_example_gradients()
    ours = sl.fisher(objective, "empirical")
    torch.testing.assert_close(ours.dense(), rows.T @ rows / N, rtol=1e-9, atol=1e-12)
    close(ours, theirs("EFLinearOperator"), factor=1 if loss == "cross-entropy" else 3)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_fisher_is_the_mean_of_their_draws(loss: str) -> None:
    """For a binary loss that averages over d outputs, theirs is d times the mean of g g'.

    It is the Gauss-Newton matrix by definition there; g_i of ours holds the average.
    """
    objective, theirs = both("mlp", loss)
    ours = (3 if loss == "binary" else 1) * sl.fisher(objective).dense()
    draws = [dense(theirs("FisherMCLinearOperator", seed=s, mc_samples=20)) for s in range(20)]
    samples = torch.stack(draws)
    probe = randn(len(ours), seed=9)
    along = torch.einsum("i,sij,j->s", probe, samples, probe)
    assert abs(float(along.mean() - probe @ ours @ probe)) <= 3.5 * standard_error(along)
    traces = samples.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(float(traces.mean() - ours.trace())) <= 3.5 * standard_error(traces)


def test_traces_and_norms() -> None:
    """Theirs come without an error: many of them, and ours within what they scatter by."""
    objective, theirs = both("mlp", "cross-entropy")
    operator = sl.hessian(objective, compile=False)
    peers = theirs("HessianLinearOperator")
    torch.manual_seed(0)
    for estimator in (curvlinops.hutchinson_trace, curvlinops.hutchpp_trace, curvlinops.xtrace):
        many = torch.stack([estimator(peers, num_matvecs=12) for _ in range(12)]).double()
        ours = sl.trace(operator, rtol=0.02, budget=2000)
        spread = (standard_error(many) ** 2 + (ours.stderr or 0.0) ** 2) ** 0.5
        assert abs(float(many.mean()) - ours.value) <= 3.5 * spread
    many = torch.stack(
        [curvlinops.hutchinson_squared_fro(peers, num_matvecs=12) for _ in range(12)]
    ).double()
    ours = sl.frobenius(operator, rtol=0.02, budget=2000)
    spread = standard_error(many) + 2 * ours.value * (ours.stderr or 0.0)
    assert abs(float(many.mean()) - ours.value**2) <= 3.5 * spread


def test_labels_that_are_left_out() -> None:
    """A mean of batch means: theirs depends on how the data are cut, and is ours only uncut."""
    net, x, y = randomized(mlp()).double(), randn(N, 4), labels(N)
    y[:5] = -100
    params = list(net.parameters())
    cut, whole = (
        curvlinops.HessianLinearOperator(
            net, nn.CrossEntropyLoss(), params, list(zip(x.split(s), y.split(s), strict=True))
        )
        for s in (4, N)
    )
    for microbatch in (4, N):
        objective = sl.Objective(net, (x, y), F.cross_entropy, microbatch=microbatch)
        close(sl.hessian(objective, compile=False), whole)
    apart = dense(cut) - dense(whole)
    assert float(apart.norm()) > 0.1 * float(dense(whole).norm())
