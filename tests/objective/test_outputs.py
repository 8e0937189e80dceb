"""All that a model returns is a prediction, and a loss may be more than a function of it."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import spiritlevel as sl
from cases import labels, randn

X, Y = randn(20, 6), labels(20)


@dataclass
class Answer:
    logits: Tensor
    value: Tensor


Pair = namedtuple("Pair", "logits value")
STRUCTURES: dict[str, Any] = {
    "tuple": lambda z, v: (z, v),
    "dict": lambda z, v: {"logits": z, "inner": {"value": v}},
    "dataclass": Answer,
    "namedtuple": Pair,
    "namespace": lambda z, v: SimpleNamespace(logits=z, value=v),
}


class TwoHeads(nn.Module):
    def __init__(self, structure: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 1)
        self.structure = structure

    def forward(self, x: Tensor) -> Any:
        h = self.body(x).relu()
        return self.structure(self.a(h), self.b(h))


def parts(out: Any) -> tuple[Tensor, Tensor]:
    if isinstance(out, dict):
        return out["logits"], out["inner"]["value"]
    return (out[0], out[1]) if isinstance(out, tuple) else (out.logits, out.value)


def both(out: Any, y: Tensor) -> Tensor:
    logits, value = parts(out)
    return F.cross_entropy(logits, y) + value.square().mean()


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_a_loss_gets_what_the_model_returned(structure: Any) -> None:
    model = TwoHeads(structure).double()
    objective = sl.Objective(model, [(X[:8], Y[:8]), (X[8:], Y[8:])], both)
    assert objective.value() == pytest.approx(float(both(model(X), Y).detach()), rel=1e-13)
    names = list(objective.params)

    def total(vector: Tensor) -> Tensor:
        return both(functional_call(model, objective.named(vector), (X,)), Y)

    truth = torch.func.hessian(total)(objective.vector)
    torch.testing.assert_close(sl.hessian(objective).dense(), truth, rtol=1e-9, atol=1e-12)
    outputs = lambda v: torch.cat(parts(functional_call(model, objective.named(v), (X,))), 1)  # noqa: E731
    jacobian = torch.func.jacrev(outputs)(objective.vector)
    z = outputs(objective.vector).detach()
    inner = torch.func.hessian(lambda z: F.cross_entropy(z[:, :3], Y) + z[:, 3].square().mean())(z)
    truth = torch.einsum("nap,namb,mbq->pq", jacobian, inner, jacobian)
    torch.testing.assert_close(sl.ggn(objective).dense(), truth, rtol=1e-9, atol=1e-12)
    group = sl.symmetries(objective)
    assert group.dim == 5
    assert group.verify(objective, group.apply(objective, group.random(0))).verdict == "exact"
    assert names[0] == "body.weight"


def test_a_head_is_chosen_by_name_or_place() -> None:
    model = TwoHeads(STRUCTURES["dict"]).double()
    want = float(F.cross_entropy(parts(model(X))[0], Y).detach())
    objective = sl.Objective(model, (X, Y), F.cross_entropy, heads="logits")
    assert objective.value() == pytest.approx(want, rel=1e-13)
    assert objective.predictions().shape == (20, 3)
    nested = sl.Objective(model, (X, randn(20, 1)), F.mse_loss, heads="inner.value")
    assert nested.predictions().shape == (20, 1)
    two = sl.Objective(TwoHeads(STRUCTURES["tuple"]).double(), (X, Y), both, heads=[0, 1])
    assert two.value() == pytest.approx(float(both(model(X), Y).detach()), rel=1e-13)
    with pytest.raises(sl.SpiritlevelError, match=r"heads='no' is not among .*: logits, inner"):
        sl.Objective(model, (X, Y), F.cross_entropy, heads="no")
    with pytest.raises(sl.SpiritlevelError, match=r"returns 2 tensors \(logits, inner"):
        sl.Objective(model, (X, Y), F.cross_entropy)


class Exposed(nn.Module):
    """Features beside the logits: no rescaling of the hidden units keeps them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.a(x).relu()
        return self.b(h), h


def activity(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    logits, h = model(batch[0])
    penalty = 0.5 * h.square().sum()
    return F.cross_entropy(logits, batch[1], reduction="sum") + penalty, len(batch[0])


def decay(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    n = len(batch[0])
    penalty = 0.5 * n * sum((p**2).sum() for p in model.parameters())
    return F.cross_entropy(model(batch[0])[0], batch[1], reduction="sum") + penalty, n


def last_only(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    n = len(batch[0])
    penalty = n * model.b.weight.square().sum()  # type: ignore[union-attr, operator]
    return F.cross_entropy(model(batch[0])[0], batch[1], reduction="sum") + penalty, n


@pytest.mark.parametrize("loss", [activity, decay, last_only])
def test_penalties_block_what_they_move(loss: Any) -> None:
    objective = sl.Objective(Exposed().double(), (X, Y), loss)
    group = sl.symmetries(objective)
    assert group.dim == 0
    with pytest.raises(sl.SpiritlevelError, match="no rescaling symmetry to sharpen it along"):
        sl.sharpen(objective, target=1e6)
    assert "nothing to move" in sl.audit(objective, ["hessian_spectral"], way=False).headline
    # the group of the logits alone is none of this loss: neither is it handed out
    logits = sl.symmetries(sl.Objective(Exposed().double(), (X, Y), F.cross_entropy, heads=0))
    assert logits.dim == 5
    with pytest.raises(sl.SpiritlevelError, match="this element changes the"):
        logits.apply(objective, logits.random(0))
    twin = objective.at(logits.act(objective.params, logits.random(0)))
    assert sl.verify(objective, twin).verdict == "refuted"


def test_a_penalty_that_rescalings_keep_blocks_nothing() -> None:
    """The path norm of the two layers: a penalty, but no obstacle."""

    def paths(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        a, b = model.a.weight, model.b.weight  # type: ignore[union-attr]
        penalty = (b.square() @ a.square()).sum()  # type: ignore[union-attr, operator]
        value = F.cross_entropy(model(batch[0])[0], batch[1], reduction="sum")
        return value + len(batch[0]) * penalty, len(batch[0])

    class Logits(Exposed):
        def forward(self, x: Tensor) -> tuple[Tensor]:  # type: ignore[override]
            return (super().forward(x)[0],)

    objective = sl.Objective(Logits().double(), (X, Y), paths)
    group = sl.symmetries(objective)
    assert group.dim == 5
    certificate = group.verify(objective, group.apply(objective, group.random(0)))
    assert certificate.verdict == "exact"
    assert certificate.loss <= 1e-14


def test_a_loss_that_closes_over_the_model_is_refused() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()

    def closed(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) + sum((p**2).sum() for p in net.parameters())

    with pytest.raises(sl.SpiritlevelError, match=r"uses the parameter '0.weight' of the model"):
        sl.Objective(net, (X, Y), closed)
    with pytest.raises(sl.SpiritlevelError, match=r"uses the parameter '0.weight' of the model"):
        sl.Objective(net, (X, Y), lambda model, batch: (net(batch[0]).square().sum(), 20))
    frozen = net.requires_grad_(False)
    frozen[2].requires_grad_(True)
    with pytest.raises(sl.SpiritlevelError, match=r"uses the parameter '0.weight' of the model"):
        sl.Objective(frozen, (X, Y), closed)


def test_asking_the_model_for_its_size_is_no_closure() -> None:
    net = nn.Linear(6, 3).double()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) / sum(p.numel() + p.shape[0] for p in net.parameters())

    want = float(F.cross_entropy(net(X), Y).detach()) / (18 + 3 + 3 + 3)
    assert sl.Objective(net, (X, Y), loss).value() == pytest.approx(want, rel=1e-13)


def test_an_activation_from_an_earlier_pass_is_refused() -> None:
    net = nn.Linear(6, 3).double()
    kept = net(X).square().mean()

    with pytest.raises(sl.SpiritlevelError, match="requires gradients but is no function of the"):
        sl.Objective(net, (X, Y), lambda out, y: F.cross_entropy(out, y) + kept)
    constant = kept.detach()
    objective = sl.Objective(net, (X, Y), lambda out, y: F.cross_entropy(out, y) + constant)
    want = F.cross_entropy(net(X), Y) + constant
    assert objective.value() == pytest.approx(float(want.detach()), rel=1e-13)


def test_a_loss_with_parameters_of_its_own_says_so() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, out: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.scale * out, y)

    net = nn.Linear(6, 3).double()
    objective = sl.Objective(net, (X, Y), Tempered())
    assert objective.value() == pytest.approx(float(F.cross_entropy(2 * net(X), Y).detach()))
    assert any("parameters of its own (scale): held fixed" in note for note in objective.notes)
