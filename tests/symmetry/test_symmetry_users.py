"""What people bring: train mode, long texts, fresh statistics, dicts, heads, mistakes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from architectures import mlp, randomized
from cases import labels, randn
from spiritlevel.symmetry import permutations


def proof(objective: sl.Objective) -> sl.Certificate:
    group = sl.symmetries(objective)
    return group.verify(objective, group.apply(objective, group.random(1)))


class Attends(nn.Module):
    """Attention whose keys pass a dropout, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.drop(self.k(x)), self.v(x)
        return self.head(F.scaled_dot_product_attention(q, k, v).mean(1))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    )


@pytest.mark.parametrize(("make", "shape"), [(normed, (8,)), (Attends, (5, 4))])
def test_an_active_dropout_makes_no_bias_dead(make: Any, shape: tuple[int, ...]) -> None:
    """It masks the shift, so batch statistics and softmax see it."""
    data = (randn(12, *shape), labels(12))
    model = randomized(make())
    trained = sl.Objective(model, data, F.cross_entropy, mode="train", seed=0)
    assert "dead" not in sl.symmetries(trained).kinds
    assert proof(trained).verdict == "exact"


def test_the_same_bias_is_dead_without_dropout() -> None:
    model = randomized(
        nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    )
    objective = sl.Objective(model, (randn(12, 8), labels(12)), F.cross_entropy, mode="train")
    assert sl.symmetries(objective).kinds["dead"] == 6
    assert proof(objective).verdict == "exact"


class Positions(nn.Module):
    """Tokens and places; a text reaches as many places as it is long."""

    def __init__(self, table: bool) -> None:
        super().__init__()
        self.tokens, self.table = nn.Embedding(20, 6), table
        self.places = nn.Embedding(32, 6) if table else nn.Parameter(torch.zeros(1, 32, 6))
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if isinstance(self.places, nn.Embedding):
            places = self.places(torch.arange(length))
        else:
            places = self.places[:, :length]
        return self.second(F.relu(self.first(self.tokens(x) + places))).mean(1)


@pytest.mark.parametrize("table", [True, False])
def test_longer_texts_keep_their_predictions(table: bool) -> None:
    draws = torch.Generator().manual_seed(0)
    model = randomized(Positions(table))

    def texts(n: int, length: int) -> Tensor:
        return torch.randint(0, 20, (n, length), generator=draws)

    data = [(texts(4, 5), labels(4)), (texts(4, 9), labels(4))]
    objective = sl.Objective(model, data, F.cross_entropy)
    assert sl.symmetries(objective).dim == 8 + 6  # hidden units, and columns of the embeddings
    assert proof(objective).verdict == "exact"
    group = sl.symmetries(model, texts(2, 3))  # an example shorter than what comes later
    state = {n: p.detach() for n, p in model.named_parameters()}
    long = texts(3, 12)
    moved = torch.func.functional_call(model, group.act(state, group.random(2)), (long,))
    torch.testing.assert_close(moved, model(long), rtol=1e-10, atol=1e-10)


class FrozenNorm(nn.Module):
    """BatchNorm as buffers and arithmetic, as detection models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0)):
            self.register_buffer(name, torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + (self.bias - self.mean * self.weight)  # type: ignore[operator]


def test_buffers_that_are_not_filled_yet_are_no_structure() -> None:
    model = nn.Sequential(nn.Linear(4, 5), FrozenNorm(5), nn.ReLU(), nn.Linear(5, 3))
    assert sl.symmetries(model, randn(2, 4).float()).dim == 0


class Answers(nn.Module):
    """A dict whose logits are not its first entry."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = F.relu(self.a(x))
        return {"aux": self.b(hidden), "logits": self.c(hidden)}


def test_one_of_several_heads_is_chosen_by_its_name() -> None:
    data = (randn(8, 4), labels(8))
    objective = sl.Objective(randomized(Answers()), data, F.cross_entropy, heads="logits")
    group = sl.symmetries(objective)
    assert objective.predictions().shape == (8, 3)
    assert proof(objective).verdict == "exact"
    assert [p.parameter for p in group.pieces(0)] == ["a.weight", "a.bias", "c.weight"]


class Mixed(nn.Module):
    """Units that are alike only in parts: one rectified, four bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(torch.cat([F.relu(h[:, :1]), torch.tanh(h[:, 1:])], dim=-1))


def test_only_interchangeable_units_are_permuted() -> None:
    objective = sl.Objective(randomized(Mixed()), (randn(10, 8), labels(10)), F.cross_entropy)
    (units,) = permutations(objective)
    assert units.size == 4
    assert units.places["a.weight", 0].flatten().tolist() == [1, 2, 3, 4]
    for seed in range(6):
        twin = units.apply(objective, units.random(seed))
        assert sl.verify(objective, twin).verdict == "exact"


@pytest.mark.parametrize("target", [1e12, 1e20, 1e30])
def test_enormous_targets_are_reached_or_refused(target: float) -> None:
    objective = sl.default_objective(dtype=torch.float64)
    found = sl.sharpen(objective, target=target)
    assert target <= found.reached <= 16 * target
    assert found.certificate.relative <= 1e-10


def test_targets_beyond_the_range_are_refused() -> None:
    model = randomized(mlp(nn.ReLU)).float()
    objective = sl.Objective(model, (randn(8, 64).float(), labels(8, classes=10)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match=r"is beyond the range|not the same"):
        sl.sharpen(objective, target=1e90)
    for bad in (float("inf"), float("nan"), "5"):
        with pytest.raises(sl.SpiritlevelError, match="give a positive number"):
            sl.sharpen(objective, target=bad)  # type: ignore[arg-type]


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


def test_batches_with_names() -> None:
    data = [Pair(randn(6, 64), labels(6, classes=10))]
    objective = sl.Objective(randomized(mlp(nn.ReLU)), data, F.cross_entropy)
    assert proof(objective).verdict == "exact"


def test_a_layer_of_zeros_proves_nothing_but_does_not_crash() -> None:
    model = randomized(nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 3)))
    with torch.no_grad():
        model[2].weight.zero_()  # type: ignore[index, union-attr, operator]
    objective = sl.Objective(model, (randn(8, 4), labels(8)), F.cross_entropy)
    assert sl.zero_in_ball(objective, 1e-3).lower_bound == 0.0
    found = sl.orbit.minimum(objective, norm="trace")
    assert len(found.divided_out) == 3
    assert "one-sided rescalings divided out" in str(found)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, g: sl.verify(m, m),
        lambda m, g: sl.sharpen(m, target=10.0),
        lambda m, g: sl.zero_in_ball(m, 1.0),
        lambda m, g: sl.orbit.minimum(m),
        lambda m, g: sl.audit(m, way=False),
        lambda m, g: g.apply(m, g.identity()),
    ],
)
def test_a_module_where_an_objective_belongs(call: Any) -> None:
    model = mlp(nn.ReLU)
    group = sl.symmetries(model, randn(2, 64).float())
    with pytest.raises(sl.SpiritlevelError, match="give an Objective, not a Sequential"):
        call(model, group)


def test_mistakes_get_one_clear_line() -> None:
    model = mlp(nn.ReLU)
    with pytest.raises(sl.SpiritlevelError, match=r"does not take this example of shape \(2, 9\)"):
        sl.symmetries(model, torch.randn(2, 9))
    norm = randomized(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()))
    group = sl.symmetries(norm, randn(2, 1, 5, 5), statistics="free")
    params = dict(norm.named_parameters())
    with pytest.raises(sl.SpiritlevelError, match=r"locate\(\) needs '1.running_mean'"):
        group.locate(params, params)
    with pytest.raises(sl.SpiritlevelError, match="log-scales; got list"):
        group.act(params, [0.0])  # type: ignore[arg-type]
    assert repr(group).startswith("Group(dim=")


class Routed(nn.Module):
    """Sizes that depend on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x[:, 0] > 0).nonzero()[:, 0]
        out = torch.zeros_like(x)
        out[chosen] = self.a(x[chosen])
        return self.b(out)


def test_sizes_that_depend_on_the_data_are_refused() -> None:
    with pytest.raises(sl.SpiritlevelError, match="could not trace this model"):
        sl.symmetries(Routed(), torch.randn(4, 4))
