"""Freedoms that are no rescalings are counted and said."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
import zoo
from cases import labels, randn
from spiritlevel.results.symmetry import Left


def _mlp(activation: nn.Module) -> sl.Objective:
    net = nn.Sequential(nn.Linear(5, 9), activation, nn.Linear(9, 3))
    return sl.Objective(net, (randn(20, 5), labels(20, classes=3)), F.cross_entropy)


def test_units_of_a_gelu_net_change_places_and_those_of_a_tanh_net_their_sign_too() -> None:
    gelu = sl.audit(_mlp(nn.GELU()), ["loss"], way=False)
    assert gelu.left == (Left("permutations", 9),)
    assert "Left as they are: 9 units can change places" in " ".join(str(gelu).split())
    tanh = sl.audit(_mlp(nn.Tanh()), ["loss"], way=False)
    assert tanh.left == (Left("permutations", 9), Left("signs", 9))
    assert sl.Audit.from_dict(tanh.to_dict()).left == tanh.left


def test_heads_are_counted_beside_rescalings() -> None:
    audit = sl.audit(zoo.trained("transformer").objective(), ["loss"], way=False)
    heads = len(sl.symmetry.head_maps(zoo.trained("transformer").objective()))
    assert audit.group.dim
    assert audit.left == (Left("heads", heads), Left("eps", 1))
    assert heads > 0


class LowRank(nn.Module):
    """A map beside two others with nothing between them: any matrix can mix what they share."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.down = nn.Linear(5, 3), nn.Linear(5, 2, bias=False)
        self.up = nn.Linear(2, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x) + self.up(self.down(x))


def test_what_rescalings_do_not_divide_out_is_said() -> None:
    """Two networks of one function, of which the least values over all rescalings differ."""
    net = LowRank().double()
    one = sl.Objective(net, (randn(40, 5), labels(40, classes=3)), F.cross_entropy)
    mix = torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=torch.float64)
    p = one.params
    two = one.at(
        {"down.weight": mix @ p["down.weight"], "up.weight": p["up.weight"] @ mix.inverse()}
    )
    assert sl.symmetry.verify(one, two).verdict == "exact"
    assert sl.audit(one, ["loss"], way=False).left == (Left("linear", 2),)
    found = sl.compare({"one": one, "two": two}, ["hessian_trace"])
    assert found["hessian_trace"].least is not None
    said = " ".join(str(found).split())
    assert "survives rescaling" in said
    for name in ("one", "two"):
        assert (
            f"{name}: 2 channels between linear maps can be mixed by any invertible matrix" in said
        )


def test_what_may_hide_rescalings_is_said() -> None:
    """Parameters that are not chosen, and operations without a rule."""
    chosen = sl.Objective(
        nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3)),
        (randn(20, 5), labels(20, classes=3)),
        F.cross_entropy,
        params="0.*",
    )
    assert Left("unchosen", 30) in sl.audit(chosen, ["loss"], way=False).left
    bag = nn.Sequential(nn.EmbeddingBag(7, 4, mode="sum"), nn.Linear(4, 3))
    ids = torch.arange(60).reshape(20, 3) % 7
    objective = sl.Objective(bag, (ids, labels(20, classes=3)), F.cross_entropy)
    assert Left("blocked", 1) in sl.audit(objective, ["loss"], way=False).left
    p = objective.params
    twin = objective.at({"0.weight": p["0.weight"] / 4, "1.weight": p["1.weight"] * 4})
    found = sl.compare({"a": objective, "b": twin}, ["hessian_trace", "orbit_trace"])
    for pair in found.pairs:
        assert pair.text == "undecided: rescalings may be hidden"
    assert "a: 1 operations have no rule and let no rescaling pass" in " ".join(str(found).split())


def test_where_rescalings_say_it_all_nothing_is_left() -> None:
    assert sl.audit(_mlp(nn.ReLU()), ["loss"], way=False).left == ()
