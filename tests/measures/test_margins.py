"""Margins, errors and entropies by hand, and the course of the training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

import conformance
import spiritlevel as sl
from cases import labels, randn

MEASURES = sl.MEASURES


def identity(margins: list[float], scale: float = 1.0) -> sl.Objective:
    """Outputs of two classes with the given margins, of labels 0, 1, 0, 1, ..."""
    y = torch.arange(len(margins)) % 2
    x = torch.zeros(len(margins), 2, dtype=torch.float64)
    x[torch.arange(len(y)), y] = torch.tensor(margins, dtype=torch.float64)
    layer = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(scale * torch.eye(2))
    return sl.Objective(layer, (x, y), F.cross_entropy, microbatch=7)


def ladder(n: int) -> list[float]:
    """1, 2, ..., n in another order."""
    return [float(1 + 7 * i % n) for i in range(n)]


@pytest.mark.parametrize(
    ("n", "share", "expected"),
    [(50, 0.1, 5), (50, 0.5, 25), (50, 1.0, 50), (50, 0.11, 6), (5, 0.1, 1), (71, 0.1, 8)],
)
def test_the_margin_is_that_of_one_example(n: int, share: float, expected: float) -> None:
    """At least the share are at or below it, and fewer are below it."""
    objective = identity(ladder(n))
    assert MEASURES["margin"](objective, share=share).value == expected
    assert MEASURES["inverse_margin"](objective, share=share).value == pytest.approx(expected**-2)


def test_it_is_the_tenth_percentile_of_numpy() -> None:
    values = randn(143).tolist()
    found = MEASURES["margin"](identity(values)).value
    assert found == np.quantile(values, 0.1, method="inverted_cdf")


def test_what_is_decided_wrongly_has_no_inverse_margin() -> None:
    objective = identity([-1.0, -0.5, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert MEASURES["margin"](objective).value == -1.0
    assert MEASURES["training_error"](objective).value == 0.3  # a tie is none of both
    with pytest.raises(sl.SpiritlevelError, match=r"that 0\.1 of the examples .* is -1: so many"):
        MEASURES["inverse_margin"](objective)
    with pytest.raises(sl.SpiritlevelError, match="choose a larger share"):
        MEASURES["log_spectral_product_over_margin"](objective)
    assert MEASURES["inverse_margin"](objective, share=0.5).value == 0.25
    with pytest.raises(sl.SpiritlevelError, match=r"share=1\.5: give a share .* at most 1"):
        MEASURES["margin"](objective, share=1.5)


def test_entropy_against_scipy() -> None:
    net = nn.Linear(4, 3).double()
    data = randn(20, 4), labels(20)
    objective = sl.Objective(net, data, F.cross_entropy, microbatch=6)
    outputs = net(data[0]).detach().softmax(1).numpy()
    expected = stats.entropy(outputs, axis=1).mean()
    assert MEASURES["output_entropy"](objective).value == pytest.approx(expected, rel=1e-12)


def test_entropy_of_one_logit_and_of_certainty() -> None:
    layer = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    x = torch.tensor([[0.0], [2.0], [1e4]], dtype=torch.float64)
    y = torch.ones(3, 1, dtype=torch.float64)
    objective = sl.Objective(layer, (x, y), F.binary_cross_entropy_with_logits)
    expected = sum(stats.bernoulli.entropy(float(f.sigmoid())) for f in x) / 3
    assert MEASURES["output_entropy"](objective).value == pytest.approx(expected, rel=1e-12)


def test_ignored_labels_count_nowhere() -> None:
    x = torch.tensor([[2.0, 0.0], [9.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    layer = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
    y = torch.tensor([0, -100, 0])
    objective = sl.Objective(layer, (x, y), F.cross_entropy)
    assert MEASURES["training_error"](objective).value == 0.5
    assert MEASURES["margin"](objective, share=1.0).value == 2.0
    expected = stats.entropy(x[[0, 2]].softmax(1).numpy(), axis=1).mean()
    assert MEASURES["output_entropy"](objective).value == pytest.approx(expected, rel=1e-12)


def test_what_multiplies_all_outputs() -> None:
    one, five = identity(ladder(20)), identity(ladder(20), scale=5.0)
    for name in ("training_error", "margin", "inverse_margin", "output_entropy"):
        a, b = (MEASURES[name](objective).value for objective in (one, five))
        assert (a == b) == ("output" in MEASURES[name].invariances), name


@pytest.mark.parametrize("name", ["margin", "inverse_margin", "output_entropy", "training_error"])
def test_they_are_functions_of_the_predictions_alone(name: str) -> None:
    conformance.check(MEASURES[name])
    objective = conformance.objective()
    units = sl.coordinates.Diagonal(0.5 + randn(objective.size, seed=5).abs())
    elsewhere = objective.reparametrize(units)
    here, there = (MEASURES[name](one).value for one in (objective, elsewhere))
    assert there == pytest.approx(here, rel=1e-9)


def test_a_regression_has_no_margin() -> None:
    net = nn.Linear(4, 3).double()
    objective = sl.Objective(net, (randn(9, 4), randn(9, 3)), F.mse_loss)
    with pytest.raises(sl.SpiritlevelError, match="this loss is none of classes"):
        MEASURES["margin"](objective)


# The course of the training ----------------------------------------------------------------------

LOSSES = [2.0, 0.5, 0.1, 0.3, 0.05, 0.02, 0.011, 0.01, 0.02]


def course(name: str, losses: Any = LOSSES, **parameters: Any) -> float:
    return MEASURES[name](identity(ladder(5)), losses=losses, **parameters).value


def test_steps_by_hand() -> None:
    assert course("steps_to_loss") == 3
    assert course("steps_to_loss", level=0.05) == 5
    assert course("steps_to_loss", level=5.0) == 1
    assert course("steps_between_losses") == 5
    assert course("steps_between_losses", start=0.5, end=0.02) == 4
    assert course("steps_between_losses", start=0.09, end=0.06) == 0  # one step past both


def test_what_the_losses_do_not_tell() -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"never at most 0\.001 in 9 steps .* was 0\.01"):
        course("steps_to_loss", level=1e-3)
    with pytest.raises(sl.SpiritlevelError, match=r"never at most 0\.01 in 4 steps"):
        course("steps_between_losses", losses=LOSSES[:4])
    with pytest.raises(sl.SpiritlevelError, match="give an end below the start"):
        course("steps_between_losses", start=0.01, end=0.1)
    with pytest.raises(sl.SpiritlevelError, match="give losses="):
        course("steps_to_loss", losses=None)
