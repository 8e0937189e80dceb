"""Exact diagonals: in pieces, without batching rules, and where there are none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, labels, randn
from spiritlevel import diagonals


@pytest.mark.parametrize("at_once", [1, 3, 4, 100])
def test_pieces_of_any_length(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = BY_NAME["relu mlp"].objective(microbatch=7)
    monkeypatch.setitem(diagonals.NUMBERS_AT_ONCE, "cpu", at_once * 3 * objective.size)
    found = diagonals.ggn_diagonal(objective)
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
    found = diagonals.ggn_diagonal(objective)
    torch.testing.assert_close(found, sl.ggn(objective).dense().diagonal())


def test_losses_without_an_exact_diagonal_say_so() -> None:
    model, data = BY_NAME["mlp"].model(), BY_NAME["mlp"].data()
    pairs = sl.Objective(model, data, lambda out, y: out.var(0).sum())
    wide = nn.Linear(4, diagonals.MOST_OUTPUTS + 1).double()
    many = sl.Objective(wide, (data[0], data[1]), F.cross_entropy)
    for objective in (pairs, many):
        with pytest.raises(sl.SpiritlevelError, match="exact diagonal needs a loss that is a sum"):
            diagonals.ggn_diagonal(objective)
