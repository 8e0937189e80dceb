"""Guarantees that did not hold: what knows the examples, other networks, copies, other events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.base.spoken import at_most
from spiritlevel.bounds import bits_back, flat_box, kl_inverse, occam, pac_bayes, survey, vc
from spiritlevel.bounds.noisy import noisy
from spiritlevel.results.bound import Bounds, Row

FEW: Any = {"epochs": 1, "draws": 20}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(3)
    x = torch.randn(n, 4, generator=draws)
    return x, (x[:, 0] > 0).long()


def objective(model: nn.Module | None = None, **options: Any) -> sl.Objective:
    return sl.Objective(model or net(1), data(), F.cross_entropy, **options)


@pytest.mark.parametrize("options", [{}, {"share": 0.2}])
def test_weights_that_were_not_chosen_may_know_the_examples(options: dict[str, Any]) -> None:
    chosen = objective(params=["2.bias"])
    with pytest.raises(
        sl.SpiritlevelError, match=r"'0\.weight' is not among the chosen parameters"
    ):
        pac_bayes(chosen, init=net(), **options, **FEW)
    said = "the 35 numbers beside the chosen parameters do not depend on these examples"
    found = pac_bayes(chosen, init={"2.bias": torch.zeros(2)}, **options, **FEW)
    assert said in found["maurer"].assumptions
    assert said in found.provenance["notes"]
    same = pac_bayes(chosen, init=chosen.module, **options, **FEW)
    assert not any("beside the chosen" in one for one in same["maurer"].assumptions)
    box = flat_box(chosen, init={"2.bias": torch.zeros(2)}, draws=5)
    assert said in box.rows[0].bound.assumptions


class Tabled(nn.Module):
    """A table of numbers that no optimizer sees."""

    table: Tensor

    def __init__(self, size: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("table", torch.full((4,), size))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.table)


def test_tables_are_those_of_before_training() -> None:
    torch.manual_seed(0)
    found = pac_bayes(objective(Tabled(9.0)), init=Tabled(0.0), **FEW)
    assert found.origin is not None
    # with a table of zeros every network names one class for all examples
    ones = float(data()[1].double().mean())
    assert min(ones, 1 - ones) - 1e-9 <= found.origin.error.error <= max(ones, 1 - ones) + 1e-9


class Signed(nn.Module):
    def __init__(self, sign: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.sign = nn.Linear(4, 2), sign

    def forward(self, x: Tensor) -> Tensor:
        return self.sign * self.layer(x)


def test_a_checkpoint_is_of_one_network_and_one_test_set(tmp_path: Path) -> None:
    path, start = tmp_path / "run", net()
    one: Any = {"init": {k: v * 0.5 for k, v in Signed(1).state_dict().items()}, **FEW}
    pac_bayes(objective(Signed(1.0)), checkpoint=path, **one)
    with pytest.raises(sl.SpiritlevelError, match="is of another run: the network is"):
        pac_bayes(objective(Signed(-1.0)), checkpoint=path, **one)
    other = tmp_path / "other"
    pac_bayes(objective(), init=start, test=data(), checkpoint=other, **FEW)
    with pytest.raises(sl.SpiritlevelError, match="is of another run: the test data is"):
        pac_bayes(objective(), init=start, test=data(50), checkpoint=other, **FEW)


def test_what_looks_as_if_a_premise_did_not_hold_is_noted() -> None:
    o = objective()
    found = pac_bayes(o, init=o.params, **FEW)
    assert any(
        n.startswith("init is the point of the objective") for n in found.provenance["notes"]
    )
    x, y = data(30)
    twice = sl.Objective(net(1), (x.repeat(2, 1), y.repeat(2)), F.cross_entropy)
    notes = pac_bayes(twice, init=net(), **FEW).provenance["notes"]
    assert any(n.startswith("30 of 60 examples are copies of others") for n in notes)
    plain = pac_bayes(o, init=net(), **FEW).provenance["notes"]
    assert not any(word in note for note in plain for word in ("init is", "copies"))


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_decisions_that_depend_on_other_examples_have_no_bound() -> None:
    torch.manual_seed(0)
    together = objective(nn.Sequential(Centred(), nn.Linear(4, 2)))
    for name in ("occam", "expected_sharpness", "flat_box"):
        with pytest.raises(sl.SpiritlevelError, match="or their losses hang together"):
            survey(together, init=nn.Sequential(Centred(), nn.Linear(4, 2)), only=[name])
    with pytest.raises(sl.SpiritlevelError, match="losses of examples hang together"):
        bits_back(together, epochs=1)


def test_shares_of_classes_have_no_number_of_bits() -> None:
    x, _ = data()
    soft = sl.Objective(net(), (x, torch.softmax(x[:, :2], 1)), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="these targets are shares of several classes"):
        bits_back(soft, epochs=1)


def test_the_least_box_is_that_of_a_box() -> None:
    box = flat_box(objective(), init=net(), draws=5, orbit=True)
    assert box.least is not None
    assert box.least.plain >= box.least.kl
    assert box.least.kl == pytest.approx(box.rows[1].bound["kl"], rel=1e-12)
    assert box.least.lower_bound <= box.least.kl


def test_the_least_of_several_events_is_not_sold_as_one() -> None:
    rows = [
        Row("here", occam(error=0.1, nats=3.0, m=900)),
        Row("here", vc(error=0.0, dimension=3, m=9000)),
    ]
    told = survey(objective(), only=["vc"]).provenance
    said = "if it was chosen before: the least of 2 bounds that say something, each of which holds"
    assert said in Bounds(tuple(rows), None, told).headline
    assert "if it was chosen" not in Bounds(tuple(rows[:1]), None, told).headline


def test_noise_at_two_points_shares_what_is_set_aside() -> None:
    o = objective()
    alone, both = (noisy(o, draws=50, points=points) for points in (1, 2))
    assert both.delta == alone.delta
    assert both["sharpness"] > alone["sharpness"]


def test_a_linear_classifier_has_a_dimension() -> None:
    torch.manual_seed(0)
    found = survey(objective(nn.Linear(4, 2)), only=["vc"])
    assert found["vc"]["dimension"] > 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"test": (data()[0][:, :3], data()[1])}, "test is no data of this network"),
        ({"test": (data()[0], data()[1] + 5)}, "test is no data of this network|a label is"),
        ({"prior": "zero", "share": 0.5}, "leave prior=.zero. out"),
    ],
)
def test_what_cannot_be_used_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(sl.SpiritlevelError, match=said):
        pac_bayes(objective(), init=net(), **wrong, **FEW)


def test_large_and_tiny_numbers() -> None:
    assert at_most(9.0000001e30) == "9.001e30"
    assert kl_inverse(1e-64, 5e-15) == pytest.approx(5e-15, rel=1e-3)
    assert kl_inverse(1e-64, 1.7e-17) == pytest.approx(1.7e-17, rel=1e-3)
