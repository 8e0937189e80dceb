"""What a loss of the user's own averages over is read off its values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, labels, randn, splits


def test_a_mean_that_depends_on_the_batches_says_so() -> None:
    x, y = randn(10, 4), labels(10)
    odd = lambda out, y: F.cross_entropy(out, y, ignore_index=0)  # noqa: E731
    found = sl.Objective(BY_NAME["mlp"].model(), list(splits((x, y), [7, 3])), odd)
    together = sl.Objective(BY_NAME["mlp"].model(), (x, y), odd)
    for one in (found, together):
        assert [note.split(":")[0] for note in one.notes] == [
            "the loss of a batch is neither the mean nor the sum of those of its examples"
        ]
        assert "give loss(model, batch) -> (sum, count)" in one.notes[0]
    assert together.value() == pytest.approx(odd(BY_NAME["mlp"].model()(x), y).item())


class Speaker(nn.Module):
    """A label at each of eight places."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(12, 6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 12))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).transpose(1, 2)


def sequences() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randint(12, (2, 20, 8), generator=draws)
    for row, length in zip(y, torch.randint(1, 9, (20,), generator=draws), strict=True):
        row[length:] = -100
    return x, y


def each(out: Tensor, y: Tensor) -> Tensor:
    """The mean over the places of a sequence."""
    return F.cross_entropy(out, y, reduction="none").sum(1) / (y != -100).sum(1)


def lengths(y: Tensor) -> Tensor:
    """The share of all places that a sequence has."""
    counts = (y != -100).sum(1)
    return counts / counts.sum().double()


@pytest.mark.parametrize("sizes", [[20], [7, 7, 6], [1] * 20])
@pytest.mark.parametrize(
    ("loss", "truth", "notes"),
    [
        (lambda o, y: each(o, y).mean(), lambda o, y: each(o, y).mean(), []),
        (lambda o, y: each(o, y) @ lengths(y), F.cross_entropy, []),
        (
            lambda o, y: F.cross_entropy(o, y, reduction="sum"),
            F.cross_entropy,
            ["the loss adds up its examples"],
        ),
        (
            lambda o, y: each(o, y).sum(),
            lambda o, y: each(o, y).sum() / (y != -100).sum(),
            ["the loss adds up its examples"],
        ),
    ],
    ids=["mean over sequences", "mean over places", "sum over places", "sum over sequences"],
)
def test_what_a_loss_of_ones_own_averages_over_is_seen(
    loss: Any, truth: Any, notes: list[str], sizes: list[int]
) -> None:
    """However the data are batched; the error of a wrong reading is 2 %, or a factor of 72."""
    torch.manual_seed(0)
    model, (x, y) = Speaker(), sequences()
    found = sl.Objective(model, list(splits((x, y), sizes)), loss, dtype=torch.float64)
    assert found.separable
    assert found.value() == pytest.approx(truth(model.double()(x), y).item(), rel=1e-12)
    assert [note.split(":")[0] for note in found.notes] == notes


def test_a_sum_over_targets_is_divided_by_their_number() -> None:
    model = nn.Linear(5, 2).double()
    x, y = randn(30, 5), randn(30, 2)
    found = sl.Objective(model, list(splits((x, y), [20, 10])), lambda o, y: (o - y).abs().sum())
    assert found.value() == pytest.approx((model(x) - y).abs().sum().item() / 30, rel=1e-12)
