"""Traces that are sums of a diagonal: equal to the dense Hessian's, or not called exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.base.estimate import Estimate
from spiritlevel.measures.instruments import TENSORS, Instruments
from zoo import trained

WANTED = ["hessian_trace", "layer_traces", "effective_rank"]


def of(net: nn.Module, loss: Callable[..., Tensor] = F.cross_entropy) -> sl.Objective:
    torch.manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, std=0.5)
    return sl.Objective(net.double().eval(), (randn(90, 5), labels(90)), loss)


def rectified() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3))


class Twice(nn.Module):
    """One layer used twice: its weights are multiplied with themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.layer(torch.relu(self.layer(x)))))


class Gated(nn.Module):
    """Two layers that are multiplied, one of them by itself where `alone`."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 9), nn.Linear(5, 9), nn.Linear(9, 3)
        self.alone = alone

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x) * (self.a(x) if self.alone else self.b(x)))


def as_probabilities(out: Tensor, y: Tensor) -> Tensor:
    """Not convex in the outputs."""
    return (out.softmax(1)[torch.arange(len(y)), y] - 1).square().mean()


def dense(objective: sl.Objective) -> Tensor:
    return sl.hessian(objective).dense()


@pytest.mark.parametrize("name", ["mlp", "convolutional", "residual"])
def test_of_trained_networks_they_are_those_of_the_dense_hessian(name: str) -> None:
    objective = trained(name).objective()
    table, matrix = sl.measure(objective, WANTED), dense(objective)
    trace = float(matrix.trace())
    assert table["hessian_trace"].status is sl.Status.EXACT
    assert float(table["hessian_trace"]) == pytest.approx(trace, rel=1e-9)
    rank = table["effective_rank"]  # of which the norm is drawn
    assert abs(rank.value - (trace / float(matrix.norm())) ** 2) <= 4 * rank.error
    layers = dict[str, float]()
    for parameter, span in objective.spans.items():
        layer = parameter.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0.0) + float(matrix.diagonal()[span].sum())
    for layer, value in layers.items():
        assert float(table[f"layer_traces.{layer}"]) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("net", "loss", "exact"),
    [
        (rectified(), F.cross_entropy, True),
        (Gated(alone=False), F.cross_entropy, True),
        (Gated(alone=True), F.cross_entropy, False),
        (Twice(), F.cross_entropy, False),
        (nn.Sequential(rectified(), nn.Tanh()), F.cross_entropy, False),
        (nn.Sequential(nn.Linear(5, 9), nn.Softplus(), nn.Linear(9, 3)), F.cross_entropy, False),
        (rectified(), as_probabilities, False),
    ],
    ids=["rectified", "gated", "squared", "twice", "tanh", "softplus", "not convex"],
)
def test_what_bends_in_a_parameter_is_not_called_exact(
    net: nn.Module, loss: Callable[..., Tensor], exact: bool
) -> None:
    objective = of(net, loss)
    found, truth = sl.measure(objective, ["hessian_trace"])["hessian_trace"], dense(objective)
    assert (found.matvecs <= TENSORS) is exact  # else products were made
    assert found.status is sl.Status.EXACT or not exact
    width = 4 * found.error + 1e-9 * abs(found.value)
    assert abs(found.value - float(truth.trace())) <= width


def test_premises_that_are_false_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By entries of the Hessian; and where those were not looked at, by probes."""
    objective = of(nn.Sequential(rectified(), nn.Tanh()))
    drawn = sl.measure(objective, ["hessian_trace"])["hessian_trace"]
    assert drawn.stderr is not None
    monkeypatch.setattr(Instruments, "multilinear", True)  # which it is not
    assert sl.measure(objective, ["hessian_trace"])["hessian_trace"].value == drawn.value
    monkeypatch.setattr(Instruments, "_agree", lambda *_: True)
    wrong: Estimate = sl.measure(objective, ["hessian_trace"])["hessian_trace"]
    assert wrong.status is sl.Status.EXACT
    with pytest.raises(
        sl.SpiritlevelError, match=r"by the Gauss-Newton diagonal and .* by products"
    ):
        sl.measure(objective, ["hessian_frobenius"])
