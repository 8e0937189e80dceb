"""Labels, margins and errors, whatever form the targets have."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.objective import classes

X = torch.tensor([[2.0, 0.0], [1.0, 3.0], [0.5, 0.0], [4.0, 1.0]], dtype=torch.float64)
Y = torch.tensor([0, 1, 1, 0])
MARGINS = torch.tensor([2.0, 2.0, -0.5, 3.0], dtype=torch.float64)


def identity() -> nn.Module:
    layer = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
    return layer


@pytest.mark.parametrize(
    ("model", "y", "loss"),
    [
        (identity(), Y, F.cross_entropy),
        (identity(), F.one_hot(Y).double(), F.cross_entropy),
        (identity(), Y, partial(F.cross_entropy, weight=torch.tensor([0.1, 9.0]).double())),
        (nn.Sequential(identity(), nn.LogSoftmax(1)), Y, F.nll_loss),
    ],
)
def test_margins_by_hand(model: nn.Module, y: torch.Tensor, loss: object) -> None:
    point = sl.Objective(model, (X, y), loss, microbatch=3)  # type: ignore[arg-type]
    known = classes.labels(point)
    assert torch.equal(torch.cat(known.batches), Y)
    torch.testing.assert_close(classes.margins(point, known), MARGINS)
    assert classes.error(point, known) == 0.25
    flipped = {"0.weight" if "0.weight" in point.params else "weight": -torch.eye(2).double()}
    assert classes.error(point, known, {**point.params, **flipped}) == 0.75


def test_ignored_labels_do_not_count() -> None:
    point = sl.Objective(identity(), (X, torch.tensor([0, -100, 1, 0])), F.cross_entropy)
    known = classes.labels(point)
    assert known.units == 3
    torch.testing.assert_close(classes.margins(point, known), MARGINS[[0, 2, 3]])


def test_one_logit_is_a_classifier_of_two() -> None:
    layer = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0]]))
    y = torch.tensor([[1.0], [0.0], [0.0], [1.0]]).double()
    point = sl.Objective(layer, (X, y), F.binary_cross_entropy_with_logits)
    torch.testing.assert_close(classes.margins(point, classes.labels(point)), MARGINS)


def test_smoothed_labels_are_labels() -> None:
    loss = partial(F.cross_entropy, label_smoothing=0.2)
    point = sl.Objective(identity(), (X, Y), loss)
    torch.testing.assert_close(classes.margins(point, classes.labels(point)), MARGINS)


def test_what_has_no_margins_says_so() -> None:
    one = sl.Objective(nn.Linear(2, 1).double(), (X, torch.zeros(4).long()), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="one class leaves no decision"):
        classes.labels(one)
    uneven = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.7, 0.3], [0.1, 0.9]]).double()
    with pytest.raises(sl.SpiritlevelError, match="shares of several classes"):
        classes.labels(sl.Objective(identity(), (X, uneven), F.cross_entropy))
    soft = torch.tensor([[0.5, 0.5]] * 4).double()
    with pytest.raises(sl.SpiritlevelError, match="shares of several classes"):
        classes.labels(sl.Objective(identity(), (X, soft), F.cross_entropy))
    with pytest.raises(sl.SpiritlevelError, match="this loss is none of classes"):
        classes.labels(sl.Objective(identity(), (X, X), F.mse_loss))
