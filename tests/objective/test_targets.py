"""Targets that a loss does not take, and models whose loss lies in a dict or a tuple."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.training import fit

X, Y = randn(24, 4), labels(24)
CE, BCE = F.cross_entropy, F.binary_cross_entropy_with_logits
REFUSED: dict[str, tuple[Tensor, Callable[..., Any], int, str]] = {
    "one-hot": (F.one_hot(Y, 3), CE, 3, r"shape \(\d+, 3\).*y.argmax\(1\), or prob.*y.float\(\)$"),
    "column": (Y[:, None], CE, 3, r"whole numbers of shape \(\d+, 1\).*: give y.squeeze\(1\)$"),
    "square": (Y[:, None].expand(24, 2), CE, 3, r"give class numbers of shape \(\d+,\)$"),
    "floats": (Y.double(), CE, 3, r"targets are of torch.float64: give class numbers, y.long\(\)$"),
    "truth values": (Y > 0, CE, 3, r"truth values \(torch.bool\): give class numbers, y.long\(\)$"),
    "binary": ((Y > 0)[:, None], BCE, 1, r"truth values .*: give numbers, y.float\(\)$"),
    "few": (Y[:10], CE, 3, r"x has 24 rows and y has 10: give one target for each example"),
    "complex": (Y + 0j, CE, 3, r"the model or the loss raised RuntimeError: expected target"),
    "item": (Y, lambda out, y: CE(out, y).item(), 3, r"plain float, .*: leave out .item\(\)"),
    "no return": (Y, lambda out, y: None, 3, r"is nothing \(None\): is a return missing\?$"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_error_says_what_to_give(name: str) -> None:
    y, loss, outputs, said = REFUSED[name]
    net = nn.Linear(4, outputs).double()
    with pytest.raises(sl.SpiritlevelError, match=said):
        sl.Objective(net, (X, y), loss)
    with pytest.raises(sl.SpiritlevelError, match=said):
        fit(net, (X, y), loss, torch.optim.SGD(net.parameters(), lr=0.1), 1)


def test_the_first_dimension_counts_the_classes() -> None:
    with pytest.raises(sl.SpiritlevelError, match=r"outputs of an example, \(1, 8, 3\),"):
        sl.Objective(nn.Linear(8, 3), (torch.randn(20, 1, 8, 8), labels(20)), CE)


@pytest.mark.parametrize("y", [F.one_hot(Y, 3).double(), Y, Y.to(torch.int8)])
def test_what_the_loss_takes_is_taken(y: Tensor) -> None:
    net = nn.Linear(4, 3).double()
    found = sl.Objective(net, (X, y), CE).value()
    assert found == pytest.approx(CE(net(X), Y).item(), rel=1e-12)


def test_truth_values_are_numbers_to_a_squared_error() -> None:
    net, y = nn.Linear(4, 1).double(), (Y > 0)[:, None]
    assert sl.Objective(net, (X, y), F.mse_loss).value() == F.mse_loss(net(X), y.double()).item()


class Pruned(Exception):
    """What a search of hyperparameters raises to end a training."""


@pytest.mark.parametrize("kind", [Pruned, ValueError, RuntimeError])
def test_what_a_loss_raises_on_the_way_passes_through_fit(kind: type[Exception]) -> None:
    calls = 0

    def loss(out: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise kind("stop here")
        return CE(out, y)

    net = nn.Linear(4, 3).double()
    with pytest.raises(kind, match=r"^stop here$"):
        fit(net, (X, Y), loss, torch.optim.SGD(net.parameters(), lr=0.1), epochs=30)


class Own(nn.Module):
    """A model that makes its loss itself, and returns it in one of three ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
        self.kind = kind

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        out = self.body(x)
        loss = None if labels is None else CE(out, labels)
        if self.kind == "tuple":
            return (out,) if loss is None else (loss, out)
        return {"logits": out} if loss is None else {"loss": loss, "logits": out}


@pytest.mark.parametrize("kind", ["mapping", "tuple"])
def test_a_loss_in_a_mapping_or_before_the_outputs_is_found(kind: str) -> None:
    data = [{"x": X[:16], "labels": Y[:16]}, {"x": X[16:], "labels": Y[16:]}]
    found, plain = sl.Objective(Own(kind), data), sl.Objective(Own(kind).body, (X, Y), CE)
    assert found.value() == pytest.approx(plain.value(), rel=1e-12)
    assert torch.allclose(found.predictions(), plain.predictions())
    assert sl.symmetries(found).dim == sl.symmetries(plain).dim == 6
    least = [sl.orbit.minimum(o, norm="trace").value for o in (found, plain)]
    assert least[0] == pytest.approx(least[1], rel=1e-9)


class Attribute(dict[str, Tensor]):
    """A mapping that has its loss beside its keys."""

    loss: Tensor | None = None


@pytest.mark.parametrize("kind", ["tuple", "other key", "attribute"])
def test_the_loss_is_no_prediction(kind: str) -> None:
    """Encoders with decoders get the labels, and their outputs begin with the loss."""

    class Model(Own):
        config = SimpleNamespace(is_encoder_decoder=kind != "attribute")

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            out = self.body(x)
            loss = None if labels is None else CE(out, labels)
            if kind == "tuple":
                return (out,) if loss is None else (loss, out)
            found = Attribute(logits=out) if kind == "attribute" else {"loss": loss, "pred": out}
            if isinstance(found, Attribute):
                found.loss = loss
            return found

    found, body = sl.Objective(Model(kind), [{"x": X, "labels": Y}]), Own(kind).body
    assert found.value() == pytest.approx(CE(body(X), Y).item(), rel=1e-12)
    assert torch.allclose(found.predictions(), body(X))
    assert sl.symmetries(found).dim == 6


def test_a_mapping_without_a_loss_says_what_it_has() -> None:
    class NoLoss(Own):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            return {"logits": self.body(x)}

    with pytest.raises(sl.SpiritlevelError, match=r"returned dict with the keys \['logits'\] and"):
        sl.Objective(NoLoss("mapping"), [{"x": X, "labels": Y}])
