"""Certificates: what must not be called equal, and what must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.symmetry import head_maps
from spiritlevel.symmetry.drawn import drawn

X, Y = randn(40, 6), labels(40)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


class Masked(nn.Module):
    """One class is masked: by filling it, or by adding to it."""

    def __init__(self, fill: float, added: bool) -> None:
        super().__init__()
        self.net, self.fill, self.added = mlp(), fill, added

    def forward(self, x: Tensor) -> Tensor:
        gone = torch.tensor([False, False, True])
        out = self.net(x)
        return out + gone * self.fill if self.added else out.masked_fill(gone, self.fill)


MASKS = [(-1e9, False), (-1e9, True), (torch.finfo(torch.float32).min, False)]
MASKS += [(torch.finfo(torch.float32).min, True), (-torch.inf, False)]


@pytest.mark.parametrize(("fill", "added"), MASKS)
def test_masked_logits_hide_nothing_and_refute_nothing(fill: float, added: bool) -> None:
    objective = sl.Objective(Masked(fill, added), (X, Y % 2), F.cross_entropy)
    group = sl.symmetries(objective)
    proof = group.verify(objective, group.apply(objective, group.random(1, 1.0)))
    assert proof.verdict == "exact"
    assert proof.relative <= 1e-13
    for change in (1e-6, 1e-3, 1.0):
        other = objective.at(objective.vector + change * randn(objective.size, seed=3))
        assert sl.verify(objective, other).verdict == "refuted"


class Gated(nn.Module):
    """Attention whose values gate it: no map of the values is free, whatever masks the classes."""

    def __init__(self, fill: float | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.c, self.fill = nn.Linear(8, 4), fill

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            f(x).view(batch, tokens, 2, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = (F.scaled_dot_product_attention(q, k, v) * v).transpose(1, 2)
        out = self.c(self.o(y.reshape(batch, tokens, width)).mean(1))
        gone = torch.tensor([False, False, False, True])
        return out if self.fill is None else out.masked_fill(gone, self.fill)


@pytest.mark.parametrize("fill", [None, -1e9, torch.finfo(torch.float32).min])
def test_head_maps_are_proved_output_by_output(fill: float | None) -> None:
    data = (randn(16, 5, 8), labels(16))
    objective = sl.Objective(Gated(fill).double(), data, F.cross_entropy)
    maps = head_maps(objective)
    assert maps
    for found in maps:
        twin = found.apply(objective, found.random(3))
        gap = (objective.predictions() - twin.predictions())[:, :3].abs().max()
        assert float(gap) <= 1e-12


def test_float32_is_told_from_proof() -> None:
    """A step of 1e-6 is as small as rounding: it may not be called exact."""
    objective = sl.Objective(mlp().float(), (X.float(), Y), F.cross_entropy)
    group = sl.symmetries(objective)
    twin = group.apply(objective, group.random(0, 1.0))
    proof = group.verify(objective, twin)
    assert proof.verdict == "exact"
    assert proof.relative <= 1e-13
    assert 1e-9 < proof.stored < 1e-5
    assert "rounded to float32" in str(proof)
    assert sl.verify(objective, twin).verdict == "rounding"
    step = objective.at(objective.vector - 1e-6 * objective.gradient())
    assert group.verify(objective, step).verdict == "refuted"
    assert sl.verify(objective, step).verdict != "exact"
    large = objective.at(objective.vector - 1e-3 * objective.gradient())
    assert sl.verify(objective, large).verdict == "refuted"
    exact = objective.to(torch.float64)
    step = exact.at(exact.vector - 1e-9 * exact.gradient())
    assert sl.verify(exact, step).verdict == "refuted"


class Normed(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b = nn.Linear(6, 5), nn.LayerNorm(5, eps=eps), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.norm(self.a(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_eps_is_no_equality(dtype: torch.dtype) -> None:
    objective = sl.Objective(Normed(1e-6).to(dtype), (X.to(dtype), Y), F.cross_entropy)
    rough = sl.symmetries(objective, eps="approximate")
    twin = rough.apply(objective, rough.random(0, 1.0))
    assert rough.verify(objective, twin).verdict == "approximate"


def test_outputs_of_very_different_sizes_are_judged_each_by_itself() -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) * torch.tensor([1.0, 1e9, 1e-9], dtype=torch.float64)

    objective = sl.Objective(Sizes(), (X, randn(40, 3)), F.mse_loss)
    moved = {name: p.clone() for name, p in objective.params.items()}
    moved["net.2.bias"][2] += 1e-3  # a change of 1e-12, in an output of 1e-9
    assert sl.verify(objective, objective.at(moved)).verdict == "refuted"
    group = sl.symmetries(objective)
    assert group.verify(objective, group.apply(objective, group.random(0))).verdict == "exact"


@settings(max_examples=30)
@given(
    st.integers(0, 10**6),
    st.floats(-9, 0),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_what_is_called_exact_is_an_element(
    seed: int, size: float, dtype: torch.dtype, element: bool
) -> None:
    """Elements are exact; anything that is none of them, however near, is not."""
    objective = sl.Objective(mlp().to(dtype), (X.to(dtype), Y), F.cross_entropy)
    group = sl.symmetries(objective)
    twin = group.apply(objective, group.random(seed, 1.0))
    if not element:
        noise = randn(objective.size, seed=seed).to(dtype)
        twin = twin.at(twin.vector * (1 + 10**size * noise))
    proof = group.verify(objective, twin)
    near = dtype == torch.float32 and 10**size < 1e-6
    if element:
        assert proof.verdict == "exact"
    elif not near:
        assert proof.verdict == "refuted"
    else:  # it may round to an element
        assert proof.verdict in ("exact", "refuted")


def test_a_point_that_is_another_network_is_not_handed_out(monkeypatch: Any) -> None:
    objective = sl.Objective(mlp(), (X, Y), F.cross_entropy)
    group = sl.symmetries(objective)
    act = type(group).act

    def wrong(self: Any, params: Any, t: Tensor) -> dict[str, Tensor]:
        return {n: p * (1 + 1e-3 * (n == "0.bias")) for n, p in act(self, params, t).items()}

    monkeypatch.setattr(type(group), "act", wrong)
    with pytest.raises(sl.SpiritlevelError, match="this element changes the predictions"):
        group.apply(objective, group.random(0))
    with pytest.raises(sl.SpiritlevelError, match="this element changes the predictions"):
        sl.orbit.minimum(objective, group)


def test_a_loss_of_one_precision_is_no_obstacle() -> None:
    weights = torch.tensor([0.2, 1.0, 3.0])  # float32, held by the function itself

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y, weight=weights)

    objective = sl.Objective(mlp().float(), (X.float(), Y), loss)
    group = sl.symmetries(objective)
    twin = group.apply(objective, group.random(0))
    assert group.verify(objective, twin).verdict == "exact"
    other = objective.at(objective.vector * 1.001)
    assert group.verify(objective, other).verdict == "refuted"


class Tables(nn.Module):
    """Ids, one for each table, as `ids` reads them from columns of x, and what else there is."""

    def __init__(self, sizes: tuple[int, ...], ids: Callable[[Tensor], Tensor], rest: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in sizes)
        self.ids = ids
        self.f, self.g = nn.Linear(4 * len(sizes) + rest, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        n, ids = len(self.tables), self.ids(x).long()
        found = [table(ids[:, k]) for k, table in enumerate(self.tables)]
        return self.g(F.relu(self.f(torch.cat([*found, x[:, n:].double()], 1))))


def columns(*sizes: int) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.stack([torch.randint(0, n, (40,), generator=draws) for n in sizes], 1)


INPUTS = {  # what the model is, its data, and what else it can be run on
    "user and item": (Tables((20, 4), lambda x: x, 0), columns(20, 4), "random inputs"),
    "a category in a table of numbers": (
        Tables((5,), lambda x: x, 6),
        torch.cat([columns(5), X], 1),
        "random inputs",
    ),
    "quarters": (
        Tables((5,), lambda x: 4 * x, 6),
        torch.cat([columns(5) / 4, X], 1),
        "shuffled columns of the data",
    ),
    "one less the other": (
        Tables((5,), lambda x: x[:, :1] - x[:, 1:], 1),
        torch.cat([columns(5) + columns(5), columns(5)], 1),
        "no other inputs",
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_beside_the_data_are_some_that_the_model_takes(name: str) -> None:
    net, x, inputs = INPUTS[name]
    objective = sl.Objective(net.double(), (x, Y), F.cross_entropy)
    found = drawn(objective, seed=0)
    assert found.inputs == inputs
    assert torch.equal(found.batch[0], x) == (inputs == "no other inputs")
    group = sl.symmetries(objective)
    proof = group.verify(objective, group.apply(objective, group.random(1, 1.0)))
    assert proof.verdict == "exact"
    assert f"40 examples ({proof.on_data:.1e}) and on {inputs} (" in str(proof)
    other = objective.at(objective.vector + 1e-6 * randn(objective.size, seed=3))
    assert sl.verify(objective, other).verdict == "refuted"
    audit = sl.audit(objective, ["loss"], way=False)
    assert f"on 40 examples and on {inputs}, at" in " ".join(str(audit).split())


def test_columns_keep_what_they_hold() -> None:
    """Whole numbers are drawn among those of their column, others from a normal distribution."""
    x = torch.cat([columns(2, 20), 7 + 0 * X[:, :1], X], 1)
    objective = sl.Objective(nn.Linear(9, 3).double(), (x, Y), F.cross_entropy)
    batch = drawn(objective, seed=0).batch[0]
    assert batch.shape == (64, 9)
    for k in range(2):
        assert set(batch[:, k].tolist()) <= set(x[:, k].tolist())
        assert len(batch[:, k].unique()) > 1
    assert len(batch[:, 2:].unique()) == 64 * 7
    tokens = torch.arange(12).reshape(1, 12)
    text = sl.Objective(
        nn.Sequential(nn.Embedding(12, 3), nn.Flatten(), nn.Linear(36, 3)).double(),
        (tokens, Y[:1]),
        F.cross_entropy,
    )
    shuffled = drawn(text, seed=0).batch[0]
    assert set(shuffled.flatten().tolist()) < set(range(12))
    assert not torch.equal(shuffled, tokens)
