"""Exact diagonals: in pieces, without batching rules, and where there are none."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, labels, randn
from spiritlevel.curvature import diagonals


@pytest.mark.parametrize("at_once", [1, 3, 4, 100])
def test_pieces_of_any_length(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = BY_NAME["relu mlp"].objective(microbatch=7)
    monkeypatch.setitem(diagonals.NUMBERS_AT_ONCE, "cpu", at_once * 3 * objective.size)
    found = diagonals.ggn_diagonal(objective).values
    torch.testing.assert_close(found, sl.ggn(objective).dense().diagonal())


class Branching(nn.Module):
    """Control flow that depends on the data, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if bool((x > -100).all()) else self.linear(-x)


def test_without_batching_rules_one_example_after_another() -> None:
    objective = sl.Objective(Branching(), (randn(5, 4), labels(5)), F.cross_entropy)
    found = diagonals.ggn_diagonal(objective).values
    torch.testing.assert_close(found, sl.ggn(objective).dense().diagonal())


def test_losses_without_a_diagonal_say_so() -> None:
    model, data = BY_NAME["mlp"].model(), BY_NAME["mlp"].data()
    pairs = sl.Objective(model, data, lambda out, y: out.var(0).sum())
    with pytest.raises(sl.SpiritlevelError, match="needs a loss that is a sum over examples"):
        diagonals.ggn_diagonal(pairs)
    wide = nn.Linear(4, diagonals.MOST_OUTPUTS + 1).double()
    unknown = sl.Objective(wide, data, lambda out, y: F.cross_entropy(out, y) + 0)
    with pytest.raises(sl.SpiritlevelError, match="129 outputs per example needs a loss of known"):
        diagonals.ggn_diagonal(unknown)


def test_many_outputs_are_sampled_without_bias() -> None:
    wide = nn.Linear(4, diagonals.MOST_OUTPUTS + 1).double()
    objective = sl.Objective(wide, (randn(40, 4), labels(40)), F.cross_entropy, microbatch=10)
    found, truth = diagonals.ggn_diagonal(objective), sl.ggn(objective).dense().diagonal()
    assert not found.exact
    ratio = found.values / truth
    spread = float(ratio.std()) / len(ratio) ** 0.5
    assert abs(float(ratio.mean()) - 1) <= 5 * spread + 0.02
    traces = diagonals.sampled_traces(objective, torch.ones(1, objective.size))[:, 0]
    assert abs(float(traces.mean() - truth.sum())) <= 4 * float(traces.std()) / len(traces) ** 0.5


@pytest.mark.parametrize("loss", [F.l1_loss, F.hinge_embedding_loss], ids=["l1", "hinge"])
def test_an_empty_gauss_newton_matrix_is_said(loss: object) -> None:
    targets = randn(12, 3, seed=5).sign()
    objective = sl.Objective(BY_NAME["relu mlp"].model(), (randn(12, 4), targets), loss)  # type: ignore[arg-type]
    assert not bool(sl.ggn(objective).dense().any())
    with pytest.raises(sl.SpiritlevelError, match="Gauss-Newton matrix of this loss is empty"):
        diagonals.ggn_diagonal(objective)
    with pytest.raises(sl.SpiritlevelError, match="Gauss-Newton matrix of this loss is empty"):
        sl.orbit.minimum(objective)


def test_convexity_is_seen_on_all_the_data() -> None:
    """Outliers after the first examples make a Cauchy loss concave there."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    x = randn(100, 4)
    with torch.no_grad():
        y = net(x) + 0.1 * randn(100, 1, seed=3)
    y[20:60] += 1.8

    def cauchy(out: Tensor, t: Tensor) -> Tensor:
        return torch.log1p((out - t) ** 2).mean()

    objective = sl.Objective(net, (x, y), cauchy)
    assert float(torch.linalg.eigvalsh(sl.ggn(objective).dense())[0]) < -1e-4
    with pytest.raises(sl.SpiritlevelError, match="not convex in the outputs"):
        sl.orbit.minimum(objective, norm="trace")


@functools.cache
def default() -> sl.Objective:
    return sl.default_objective()


@pytest.mark.parametrize("factor", [1, 4, 16, 32])
def test_confident_networks_in_float32_are_those_of_float64(factor: int) -> None:
    """The last layer scaled up saturates the softmax: 1 - p has no digit left in float32."""
    objective = default()
    last = list(objective.params)[-2:]
    scaled = objective.at({name: factor * objective.params[name] for name in last})
    for norm in ("trace", "spectral"):
        exact, rough = (
            sl.orbit.minimum(scaled.to(dtype), norm=norm)
            for dtype in (torch.float64, torch.float32)
        )
        assert rough.value == pytest.approx(exact.value, rel=2e-3)
        assert rough.lower_bound == pytest.approx(exact.lower_bound, rel=2e-3)
        assert rough.status is exact.status is sl.Status.CONVERGED


def test_where_lapack_gives_up_in_float32_there_is_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.linalg.eigh

    def moody(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if matrices.dtype == torch.float32:
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return plain(matrices)

    data = (randn(10, 4).float(), labels(10))
    objective = sl.Objective(nn.Linear(4, 3), data, lambda out, y: F.cross_entropy(out, y) + 0)
    usual = diagonals.ggn_diagonal(objective).values
    monkeypatch.setattr(torch.linalg, "eigh", moody)
    found = diagonals.ggn_diagonal(objective).values
    torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-9)
