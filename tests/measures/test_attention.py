"""Geodesic curvature of attention: its definition, and all the maps that it does not see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import randomized
from cases import BY_NAME, First, labels, randn
from spiritlevel.measures.attention import geodesic_curvature
from spiritlevel.measures.heads import chart_of
from spiritlevel.measures.instruments import Instruments
from spiritlevel.symmetry.units import head_maps


def encoder(**options: Any) -> sl.Objective:
    layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, dropout=0.0, **options)
    data = randn(10, 3, 4), labels(10)
    return sl.Objective(randomized(First(layer, 4)), data, F.cross_entropy)


def value(objective: sl.Objective) -> float:
    return geodesic_curvature(Instruments(objective, tol=1e-7, budget=400)).value


def half(u: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(u @ u.T)
    return (vectors * values.sqrt()) @ vectors.T


def test_the_metric_by_hand() -> None:
    """S as a whole matrix, head by head, for torch's fused projections."""
    objective = encoder()
    attention, spans = "body.self_attn.", objective.spans
    s = torch.diag(objective.vector.abs())
    index = {
        n: torch.arange(objective.size)[spans[n]].reshape(v) for n, v in objective.shapes.items()
    }
    w, b = (objective.params[attention + f"in_proj_{kind}"] for kind in ("weight", "bias"))
    sides = []
    for part in range(6):  # two heads each of queries, keys and values
        rows = slice(2 * part, 2 * part + 2)
        sides.append((w[rows], index[attention + "in_proj_weight"][rows]))
        root = half(w[rows])
        inside = torch.linalg.solve(root, b[rows])
        where = index[attention + "in_proj_bias"][rows]
        s[where[:, None], where] = inside.norm() * root
    out = objective.params[attention + "out_proj.weight"]
    places = index[attention + "out_proj.weight"]
    sides += [(out[:, c].T, places[:, c].T) for c in (slice(0, 2), slice(2, 4))]
    for u, where in sides:
        for column in where.T:
            s[column[:, None], column] = half(u)
    expected = float(torch.linalg.eigvalsh(s @ sl.hessian(objective).dense() @ s)[-1])
    found = sl.MEASURES["geodesic_curvature"](objective)
    assert abs(found.value - expected) <= found.error + 1e-9 * expected


@pytest.mark.parametrize("first", [True, False])
def test_no_map_of_a_head_is_seen(first: bool) -> None:
    objective = encoder(norm_first=first)
    maps = head_maps(objective)
    assert [m.kind for m in maps] == 2 * ["query-key"] + 2 * ["value-output"]
    here = value(objective)
    moved = objective
    for seed, one in enumerate(maps):
        moved = one.apply(moved, one.random(seed, 0.7))
        assert value(moved) == pytest.approx(here, rel=1e-6)
    span = objective.spans["body.self_attn.in_proj_weight"]
    traces = [float(sl.hessian(o).dense()[span, span].trace()) for o in (objective, moved)]
    assert traces[1] != pytest.approx(traces[0], rel=0.1)


def test_rescalings_of_layers_and_of_units_inside_are_not_seen() -> None:
    objective = encoder(norm_first=True)
    group = sl.symmetries(objective)
    layers = group.layerwise()
    here = value(objective)
    assert value(layers.apply(objective, layers.random(1, 1.0))) == pytest.approx(here, rel=1e-6)
    gain = torch.tensor([float(g.kind == "gain") for g in group.generators]).double()
    t = group.random(1, 1.0)
    assert value(group.apply(objective, (1 - gain) * t)) == pytest.approx(here, rel=1e-6)
    # gains of single channels before the heads are seen: the metric mixes the columns of a head
    assert value(group.apply(objective, gain * t)) != pytest.approx(here, rel=1e-3)


def test_grouped_queries_move_together() -> None:
    """Two heads of queries for one of keys and values: one map, whose metric is that of both."""

    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
            self.o, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x).unflatten(-1, (2, 2)).transpose(1, 2)
            k, v = (f(x).unflatten(-1, (1, 2)).transpose(1, 2) for f in (self.k, self.v))
            mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return self.head(self.o(mixed.transpose(1, 2).flatten(2)).mean(1))

    objective = sl.Objective(randomized(Grouped()), (randn(9, 3, 4), labels(9)), F.cross_entropy)
    maps = head_maps(objective)
    assert {m.kind for m in maps} == {"query-key", "value-output"}
    here = value(objective)
    for seed, one in enumerate(maps):
        assert value(one.apply(objective, one.random(seed, 0.7))) == pytest.approx(here, rel=1e-6)


def test_networks_without_free_heads_are_refused() -> None:
    for objective in (BY_NAME["mlp"].objective(), BY_NAME["LSTM"].objective()):
        with pytest.raises(sl.SpiritlevelError, match="none was found here"):
            sl.MEASURES["geodesic_curvature"](objective)


def test_of_some_parameters_only_their_heads_count() -> None:
    """Without the outputs the basis of the values is not free: queries and keys are left."""
    layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, dropout=0.0)
    data = randn(10, 3, 4), labels(10)
    model = randomized(First(layer, 4))
    objective = sl.Objective(model, data, F.cross_entropy, params="body.self_attn.in_proj*")
    sides = chart_of(objective, "it", "nothing").sides
    assert [side.biases for side in sides] == [1] * 4  # two heads, two sides
    one = head_maps(objective)[1]
    twin = one.apply(objective, one.random(0, 0.7))
    assert value(twin) == pytest.approx(value(objective), rel=1e-6)


@pytest.mark.parametrize("name", ["geodesic_curvature", "geodesic_sharpness"])
def test_in_inference_mode_too(name: str) -> None:
    here = sl.MEASURES[name](encoder()).value
    with torch.inference_mode():
        assert sl.MEASURES[name](encoder()).value == pytest.approx(here, rel=1e-9)
