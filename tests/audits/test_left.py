"""Freedoms that are no rescalings are counted and said."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

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
    assert audit.left == (Left("heads", heads),)
    assert heads > 0


def test_where_rescalings_say_it_all_nothing_is_left() -> None:
    assert sl.audit(_mlp(nn.ReLU()), ["loss"], way=False).left == ()
