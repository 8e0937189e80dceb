"""What is made again instead of held: less memory, the same bits, nothing that changed since."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import CASES, Case, engine_of, randn
from spiritlevel.base.tensors import leaves
from spiritlevel.curvature import again
from spiritlevel.curvature.engine import PAYS


def played(objective: sl.Objective, seeds: range = range(4)) -> tuple[sl.Operator, Tensor]:
    """The Hessian, and its products with some vectors, of which the last ones are played."""
    operator = sl.hessian(objective, compile=False)
    return operator, torch.stack([operator @ randn(objective.size, seed=s) for s in seeds])


def held(operator: sl.Operator, objective: sl.Objective) -> int:
    tapes = engine_of(operator).tapes
    own = [*objective.params.values()]
    return sum(
        tape.nbytes([*own, *leaves(batch)])
        for tape, batch in zip(tapes.values(), objective.batches, strict=True)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_same_bits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every case, with all that is cheap made again, and with nothing."""
    monkeypatch.setattr(again, "WORTH", 2**60)
    _, truth = played(case.objective())
    monkeypatch.setattr(again, "WORTH", 1)
    _, found = played(case.objective())
    assert torch.equal(found, truth)


class Squashed(nn.Module):
    """Ten element-wise operations on one activation, as the older GELU of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return self.outer(0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * h**3))))


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x.reshape(-1, 1, 2, 4).repeat(1, 1, 4, 2))
        h = torch.relu(self.norm(h)) + h  # so that the norm cannot be merged into the convolution
        return self.last(h.mean((2, 3)))


@pytest.mark.parametrize(("net", "share"), [(Squashed, 0.5), (Normalized, 0.85)])
def test_less_is_held(net: type[nn.Module], share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten tensors of one size the one that all come from, and the gradient there."""
    torch.manual_seed(0)
    x, y = randn(400, 8), torch.arange(400) % 3
    objective = sl.Objective(net().double().eval(), (x, y), F.cross_entropy)
    sizes = []
    for worth in (2**60, 2**8):
        monkeypatch.setattr(again, "WORTH", worth)
        operator, _ = played(objective)
        sizes.append(held(operator, objective))
    assert sizes[1] < share * sizes[0]


@pytest.mark.parametrize("kind", [sl.hessian, sl.ggn])
@pytest.mark.parametrize("net", [Squashed, Normalized])
def test_a_recording_leaves_no_tensor_to_the_collector(
    net: type[nn.Module], kind: Callable[[sl.Objective], sl.Operator], monkeypatch: Any
) -> None:
    """What it went through is several times what it holds, and a GPU does not wait for Python."""
    monkeypatch.setattr(again, "WORTH", 2**4)
    x, y = randn(40, 8), torch.arange(40) % 3
    objective = sl.Objective(net().double().eval(), (x, y), F.cross_entropy)
    operator = kind(objective)
    operator @ randn(objective.size)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        operator @ randn(objective.size, seed=1)
        gc.collect()
        left = [one for one in gc.garbage if isinstance(one, Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert engine_of(operator).tapes
    assert not left


class Meddling(nn.Module):
    """Writes into what an element-wise operation made, out of torch's sight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = 2.0 * x[:, :1]
        mask.detach().numpy()[:] = 1.0 + x[:, 1:2].detach().numpy() ** 2
        return self.outer(torch.tanh(self.inner(x)) * mask)


def test_what_changed_since_it_was_made_stays_held(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, y = randn(12, 4), torch.arange(12) % 3
    objective = sl.Objective(Meddling().double(), (x, y), F.cross_entropy)
    monkeypatch.setattr(again, "WORTH", 2**60)
    _, truth = played(objective)
    refused = []
    remakes = again.Recipe.remakes

    def watched(recipe: again.Recipe, slot: int, held: dict[int, Tensor]) -> bool:
        refused.append(not remakes(recipe, slot, held))
        return not refused[-1]

    monkeypatch.setattr(again, "WORTH", 1)
    monkeypatch.setattr(again.Recipe, "remakes", watched)
    _, found = played(objective)
    assert torch.equal(found, truth)
    assert any(refused)


def test_where_many_products_are_ahead_the_first_is_recorded() -> None:
    x, y = randn(12, 8), torch.arange(12) % 3
    objective = sl.Objective(Squashed().double(), (x, y), F.cross_entropy, microbatch=4)
    v, many, few = randn(objective.size), sl.hessian(objective), sl.hessian(objective)
    many.expect(PAYS)
    few.expect(PAYS - 1)
    found = many @ v
    truth = few @ v
    assert sorted(engine_of(many).tapes) == [0, 1, 2]
    assert not engine_of(few).tapes
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-14)


def test_a_search_says_that_many_are_ahead() -> None:
    told: list[int] = []
    operator = replace(sl.from_matrix(torch.eye(20)), ahead=told.append)
    sl.eigenvalues(sl.scaled(operator, torch.arange(1.0, 21.0)))
    sl.trace(operator, budget=150)
    assert len(told) == 2
    assert min(told) >= PAYS


class Transposed(nn.Module):
    """Adds in place to a view of a copy; its use is masked in the first rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x[:, :6])
        copy = h.t().clone().t()
        copy.add_(h * h)
        return self.outer(torch.tanh(h) + x[:, 6:] * copy * h)


@pytest.mark.parametrize("kind", [sl.hessian, sl.ggn])
def test_a_copy_that_is_written_into_is_no_copy(
    kind: Callable[[sl.Objective], sl.Operator],
) -> None:
    """The first batch does not see what the later ones do, which take over its program."""
    torch.manual_seed(0)
    x, y = randn(12, 7), torch.arange(12) % 3
    x[:4, 6], x[4:, 6] = 0.0, 1.0
    net = Transposed().double()
    cut = kind(sl.Objective(net, (x, y), F.cross_entropy, microbatch=4))
    truth = kind(sl.Objective(net, (x, y), F.cross_entropy)).dense()
    for seed in range(4):
        v = randn(cut.size, seed=seed)
        torch.testing.assert_close(cut @ v, truth @ v, rtol=1e-12, atol=1e-13)
