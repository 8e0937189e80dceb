"""Beyond the diagonal: permutations of units, linear maps of heads, signs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel as sl
from architectures import ResNet, gpt2, llama, mlp, objective_of, randomized, tokens
from spiritlevel.symmetry import head_maps, permutations, sign_flips

ROUNDING = 1e-12


def test_permutations_of_units() -> None:
    objective = objective_of(mlp(nn.GELU), 64)
    sets = permutations(objective)
    assert [(u.name, u.size) for u in sets] == [("0 -> 2", 12), ("2 -> 4", 10)]
    units = sets[0]
    order = units.random(5)
    moved = units.act(objective.params, order)
    torch.testing.assert_close(moved["0.weight"], objective.params["0.weight"][order])
    torch.testing.assert_close(moved["2.weight"], objective.params["2.weight"][:, order])
    back = units.act(moved, units.inverse(order))
    assert all(torch.equal(back[n], p) for n, p in objective.params.items())
    assert sl.verify(objective, units.apply(objective, order)).relative <= ROUNDING
    with pytest.raises(sl.SpiritlevelError, match="a permutation of 12 units"):
        units.act(objective.params, torch.zeros(12).long())


def test_permutations_take_statistics_along() -> None:
    objective = objective_of(ResNet((4, 8), 1, "B"), 3, 8, 8)
    sizes = {u.name: u.size for u in permutations(objective)}
    assert sizes == {
        "conv1 -> stages.1.shortcut.0": 4,  # the first stage's stream
        "stages.0.conv1 -> stages.0.conv2": 4,
        "stages.1.conv1 -> stages.1.conv2": 8,
        "stages.1.conv2 -> linear": 8,
    }


def test_units_of_two_heads_do_not_change_places() -> None:
    """Large sets are proved together: one that does not hold sends each to a proof of its own."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True)
            self.head = nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x).mean(1))

    objective = objective_of(Encoder(), 4, 16)
    found = permutations(objective)
    assert [u.size for u in found] == [8, 8, 24]  # the values of each head, and the hidden units
    for units in found:
        assert sl.verify(objective, units.apply(objective, units.random(3))).relative <= ROUNDING


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_linear_maps_of_heads(attention: str) -> None:
    ids = tokens()
    model = randomized(gpt2(attention).model)  # type: ignore[arg-type]
    objective = sl.Objective(model, {"input_ids": ids, "labels": ids})
    maps = head_maps(objective)
    assert (
        sorted((m.kind, m.size) for m in maps) == [("query-key", 8)] * 4 + [("value-output", 8)] * 4
    )
    for number, head in enumerate(maps):
        matrix = head.random(number)
        twin = head.apply(objective, matrix)
        assert sl.verify(objective, twin).relative <= 1e-11
        assert float((twin.vector - objective.vector).norm()) > 0.1
        back = head.act(twin.params, head.inverse(matrix))
        for name, tensor in objective.params.items():
            torch.testing.assert_close(back[name], tensor, rtol=1e-9, atol=1e-10)


def test_rotated_queries_have_no_linear_maps_but_values_do() -> None:
    ids = tokens()
    model = randomized(llama().model)  # type: ignore[arg-type]
    objective = sl.Objective(model, {"input_ids": ids, "labels": ids})
    maps = head_maps(objective)
    assert [m.kind for m in maps] == ["value-output"] * 4  # two key-value heads in two layers
    assert all(len(m.down) == 2 for m in maps)  # each serves two query heads


@pytest.mark.parametrize(
    ("activation", "dim"), [(nn.Tanh, 22), (nn.Hardtanh, 22), (nn.ReLU, 0), (nn.GELU, 0)]
)
def test_signs_of_odd_activations(activation: Any, dim: int) -> None:
    objective = objective_of(mlp(activation), 64)
    signs = sign_flips(objective)
    assert signs.dim == dim
    flips = signs.random(1)
    twin = signs.apply(objective, flips)
    assert sl.verify(objective, twin).relative <= ROUNDING
    again = signs.act(twin.params, signs.inverse(flips))
    assert all(torch.equal(again[n], p) for n, p in objective.params.items())
    if dim:
        assert not torch.equal(twin.vector, objective.vector)
        with pytest.raises(sl.SpiritlevelError, match="flips are 22 numbers 0 or 1"):
            signs.act(objective.params, torch.full((22,), 2))
