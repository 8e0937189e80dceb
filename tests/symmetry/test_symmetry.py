"""Groups of known models: their dimension, what they do, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import spiritlevel as sl
from architectures import (
    COUNTED,
    Counted,
    ResNet,
    Square,
    ViT,
    llama,
    mlp,
    objective_of,
    randomized,
    tokens,
)
from cases import BY_NAME, TOLERANCE, labels, randn
from spiritlevel.base.tensors import flatten
from spiritlevel.symmetry import Group
from spiritlevel.symmetry.group import added

ROUNDING = 1e-12


def state_of(model: nn.Module, group: Group) -> dict[str, Tensor]:
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: state[name].detach() for name in group.shapes}


def change(model: nn.Module, x: Any, moved: dict[str, Tensor]) -> float:
    """The largest change of a prediction, relative to the largest prediction."""
    with torch.no_grad():
        before, after = model(x), functional_call(model, moved, (x,))
    return float((after - before).abs().max() / before.abs().max())


def other(x: Tensor) -> Tensor:
    return randn(*x.shape, seed=9) if x.is_floating_point() else x.flip(1)


def check_independent(group: Group) -> None:
    sparse = group.matrix()
    gram = torch.from_numpy((sparse.T @ sparse).toarray())
    assert gram.shape == (group.dim, group.dim)
    assert group.dim == 0 or float(torch.linalg.eigvalsh(gram)[0]) > 1e-6


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: f"{case.name}")
def test_dimension_by_hand_and_equal_predictions(case: Counted) -> None:
    model, x = randomized(case.make()), case.example()
    group = sl.symmetries(model, x, **case.options)
    assert group.dim == case.dim, case.why
    check_independent(group)
    moved = group.act(state_of(model, group), group.random(1, scale=0.5))
    worst = max(change(model, x, moved), change(model, other(x), moved))
    if case.options.get("eps") == "approximate":
        assert worst <= (0.05 if group.norms else ROUNDING)  # the certificates tell more
    else:
        assert worst <= ROUNDING


def test_a_generator_says_what_it_scales() -> None:
    group = sl.symmetries(mlp(nn.ReLU), randn(2, 64).float())
    first = group.generators[0]
    assert (first.name, first.kind) == ("0 -> 2, channel 0", "hidden")
    assert [str(p) for p in group.pieces(3)] == [
        "0.weight[3, :] +1",
        "0.bias[3] +1",
        "2.weight[:, 3] -1",
    ]
    text = str(group)
    assert "22 rescalings of 1,020 parameters leave every prediction as it is" in text
    assert "Never moved: 4.bias" in text
    assert group.frozen == ("4.bias",)


def test_what_blocks_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3))
    group = sl.symmetries(model, randn(2, 4).float())
    (block,) = group.blocks
    assert (block.operation, block.module, block.parameters) == ("gelu", "1", ("0.weight",))
    assert "gelu in 1: 0.weight" in str(group)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 3, batch_first=True)
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    group = sl.symmetries(Recurrent(), randn(2, 5, 4).float())
    assert group.dim == 0
    assert [b.operation for b in group.blocks] == ["lstm"]
    assert "lstm.weight_hh_l0" in group.blocks[0].parameters


def test_kinds_of_a_transformer() -> None:
    model = randomized(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True))
    kinds = {"gain": 32, "query-key": 16, "value-output": 16, "dead": 16, "hidden": 32}
    assert sl.symmetries(model, randn(2, 5, 16)).kinds == kinds
    assert sl.symmetries(model).dim == 112  # without an example


def test_kinds_do_not_depend_on_how_attention_is_written() -> None:
    fused, by_hand = (
        sl.symmetries(randomized(ViT(8, 2, 1, fused)), randn(2, 3, 8, 8)) for fused in (True, False)
    )
    assert fused.kinds == {"query-key": 8, "value-output": 8, "dead": 8, "gain": 24}
    assert by_hand.kinds == fused.kinds
    layers = {g.layer.rpartition(".")[0] for g in by_hand.generators if g.kind == "value-output"}
    assert layers == {"blocks.0.attention.v"}


# Laws -----------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0.01, 1.5))
def test_group_laws(first: int, second: int, scale: float) -> None:
    model = randomized(nn.TransformerEncoderLayer(4, 2, 3, batch_first=True))
    group = _encoder_group()
    state = state_of(model, group)
    s, t = group.random(first, scale), group.random(second, scale)
    twice = group.act(group.act(state, s), t)
    back = group.act(group.act(state, s), group.inverse(s))
    for name, tensor in group.act(state, group.compose(s, t)).items():
        torch.testing.assert_close(twice[name], tensor, rtol=1e-12, atol=0)
        torch.testing.assert_close(back[name], state[name], rtol=1e-12, atol=0)
        assert torch.equal(group.act(state, group.identity())[name], state[name])
    logs = group.log_scales(s + 2 * t)
    for name, terms in group.log_scales(s).items():
        expected = added(terms) + 2 * added(group.log_scales(t)[name])
        torch.testing.assert_close(added(logs[name]), expected, rtol=1e-9, atol=1e-12)


_GROUPS: dict[str, Group] = {}


def _encoder_group() -> Group:
    if "encoder" not in _GROUPS:
        layer = nn.TransformerEncoderLayer(4, 2, 3, batch_first=True)
        _GROUPS["encoder"] = sl.symmetries(randomized(layer), randn(2, 3, 4))
    return _GROUPS["encoder"]


LAWFUL: dict[str, Callable[[], tuple[sl.Objective, dict[str, Any]]]] = {
    **{
        name: lambda name=name: (BY_NAME[name].objective(), {})
        for name in (
            "relu mlp",
            "cnn with BatchNorm in train mode",
            "embedding",
            "TransformerEncoderLayer",
            "GPT-2",
            "Llama",
        )
    },
    "squared ReLU": lambda: (objective_of(mlp(Square), 64), {}),
    "ResNet": lambda: (objective_of(ResNet((3, 4), 1, "B"), 3, 6, 6), {"statistics": "free"}),
}


@pytest.mark.parametrize("name", LAWFUL)
def test_gradients_and_hessians_move_as_the_law_says(name: str) -> None:
    """grad L(D theta) = D^-1 grad L(theta), and the Hessian is D^-1 H D^-1."""
    objective, options = LAWFUL[name]()
    group = sl.symmetries(objective, **options)
    assert group.dim > 0
    gradient, hessian = objective.gradient(), sl.hessian(objective, compile=False)
    rtol = max(1e-9, TOLERANCE.get(name, 0.0))

    def close(found: Tensor, truth: Tensor) -> None:
        assert float((found - truth).norm()) <= rtol * float(truth.norm()) + 1e-14

    for seed in range(5):
        t, v = group.random(seed, scale=0.2 * (1 + seed)), randn(objective.size, seed=seed)
        twin, factors = group.apply(objective, t), group.factors(t)
        d = flatten({n: factors[n].expand(s) for n, s in objective.shapes.items()})
        close(twin.gradient(), gradient / d)
        close(sl.hessian(twin, compile=False) @ v, (hessian @ (v / d)) / d)


def test_pull_is_the_transpose() -> None:
    group = _encoder_group()
    x = {n: randn(*s, seed=k) for k, (n, s) in enumerate(group.shapes.items())}
    dense = torch.from_numpy(group.matrix().toarray())
    flat = torch.cat([v.reshape(-1) for v in x.values()])
    torch.testing.assert_close(group.pull(x), dense.T @ flat)
    t = group.random(2)
    log = torch.cat(
        [added(v).expand(group.shapes[n]).reshape(-1) for n, v in group.log_scales(t).items()]
    )
    torch.testing.assert_close(log, dense @ t)


def test_an_element_is_found_again_from_two_points() -> None:
    objective = objective_of(mlp(nn.ReLU), 64)
    group = sl.symmetries(objective)
    t = group.random(3)
    found = group.locate(objective.params, group.apply(objective, t).params)
    torch.testing.assert_close(found, t, rtol=1e-9, atol=1e-9)
    weight = objective.params["2.weight"].clone()
    weight[:, ::2] = 0.0  # says nothing about the scale that it would have
    sparse = objective.at({"2.weight": weight})
    found = group.locate(sparse.params, group.apply(sparse, t).params)
    torch.testing.assert_close(found, t, rtol=1e-9, atol=1e-9)


def test_large_matrices_are_scaled_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = objective_of(mlp(nn.ReLU), 64)
    group = sl.symmetries(objective)
    t = group.random(3)
    whole = group.act(objective.params, t)
    assert whole.keys() == objective.params.keys()
    for elements in (1, 25, 64 * 5):  # less than a row, some rows that do not divide all
        monkeypatch.setattr("spiritlevel.symmetry.group.CHUNK", elements)
        for name, tensor in group.act(objective.params, t).items():
            assert torch.equal(tensor, whole[name])


def test_parts_of_a_group() -> None:
    group = _encoder_group()
    part = group.restrict(["hidden", "dead"])
    assert part.kinds == {"dead": 4, "hidden": 3}
    with pytest.raises(sl.SpiritlevelError, match="no generator is of the kind 'gate'; there are"):
        group.restrict("gate")
    with pytest.raises(
        sl.SpiritlevelError, match=r"vector of \d+ finite log-scales; got shape \(3,"
    ):
        group.log_scales(torch.zeros(3))


def test_layerwise_is_the_alpha_scaling_of_the_paper() -> None:
    """alpha_k for every layer with prod alpha_k = 1; biases carry the product so far."""
    objective = objective_of(mlp(nn.ReLU), 64)
    layers = sl.symmetries(objective).layerwise()
    assert [g.name for g in layers.generators] == [
        "0 -> 2, 12 channels together",
        "2 -> 4, 10 channels together",
    ]
    factors = layers.factors(torch.tensor([0.3, -1.1], dtype=torch.float64))
    alphas = [factors[f"{k}.weight"] for k in (0, 2, 4)]
    assert all(len(a.unique()) == 1 for a in alphas)
    one, two, three = (float(a.flatten()[0]) for a in alphas)
    assert one * two * three == pytest.approx(1.0, rel=1e-14)
    assert float(factors["0.bias"][0]) == pytest.approx(one)
    assert float(factors["2.bias"][0]) == pytest.approx(one * two)
    assert float(factors["4.bias"][0]) == 1.0


def test_channels_of_a_transposed_convolution_are_one_layer() -> None:
    """Of its first channel the weight stays free, of others the bias: still one layer."""
    net = nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.ReLU())
    layers = sl.symmetries(nn.Sequential(net, nn.Conv2d(2, 1, 2)), randn(4, 2, 5, 5)).layerwise()
    assert [g.name.partition(", ")[2] for g in layers.generators] == [
        "3 channels together",
        "2 channels together",
    ]


# Certificates ---------------------------------------------------------------------------------


def test_certificates_tell_exact_from_approximate_from_wrong() -> None:
    objective = objective_of(ResNet((4, 8), 1, "B"), 3, 8, 8)
    exact = sl.symmetries(objective, statistics="free")
    proof = exact.verify(objective, exact.apply(objective, exact.random(0)))
    assert (proof.verdict, proof.holds) == ("exact", True)
    assert proof.relative <= ROUNDING
    rough = sl.symmetries(objective, statistics="free", eps="approximate")
    proof = rough.verify(objective, rough.apply(objective, rough.random(0)))
    assert proof.verdict == "approximate"
    assert 1e-9 < proof.relative < 1e-2
    assert "the eps of bn1" in proof.reason
    wrong = objective.at(objective.vector * (1 + 1e-6))
    proof = rough.verify(objective, wrong)
    assert (proof.verdict, proof.holds) == ("refuted", False)
    with pytest.raises(sl.SpiritlevelError, match="the predictions are not the same: refuted"):
        proof.require()


@pytest.mark.parametrize("make", [lambda: ViT(8, 2, 1, True), lambda: ViT(8, 2, 1, False)])
def test_eps_that_moves_along_makes_it_exact(make: Any) -> None:
    objective = objective_of(make(), 3, 8, 8)
    group = sl.symmetries(objective, eps="approximate")
    proof = group.verify(objective, group.apply(objective, group.random(0)))
    assert proof.verdict == "approximate"
    assert "with eps moved along it is" in proof.reason


def test_groups_of_channels_that_move_apart_are_proved_without_eps() -> None:
    """One eps cannot move along with two groups; without any, the networks are the same."""
    net = nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.ReLU(), nn.Linear(6, 3))
    objective = objective_of(net, 4, classes=3)
    group = sl.symmetries(objective, eps="approximate")
    twin = group.apply(objective, group.random(0))
    proof = group.verify(objective, twin)
    assert proof.verdict == "approximate"
    assert "the eps of 1 makes the difference: without eps it is" in proof.reason
    wrong = twin.at(twin.vector + 1e-3 * torch.eye(twin.size)[0])
    assert group.verify(objective, wrong).verdict == "refuted"


def test_norms_that_round_to_float32_are_seen() -> None:
    ids = tokens()
    model = randomized(llama().model)  # type: ignore[arg-type]
    objective = sl.Objective(model, {"input_ids": ids, "labels": ids})
    group = sl.symmetries(objective, eps="approximate")
    proof = group.verify(objective, group.apply(objective, group.random(0)))
    assert proof.verdict == "approximate"
    exact = sl.symmetries(objective)
    assert exact.verify(objective, exact.apply(objective, exact.random(0))).relative <= ROUNDING


def test_an_objective_is_compared_with_its_own_kind() -> None:
    one, two = objective_of(mlp(nn.ReLU), 64), objective_of(nn.Linear(4, 3), 4, classes=3)
    with pytest.raises(sl.SpiritlevelError, match="cannot be compared"):
        sl.verify(one, two)
    group = sl.symmetries(mlp(nn.ReLU), randn(2, 64).float())
    with pytest.raises(sl.SpiritlevelError, match=r"moves '0.weight', which the objective"):
        group.apply(two, group.identity())


def test_frozen_parameters_do_not_move() -> None:
    model = randomized(mlp(nn.ReLU))
    model[2].requires_grad_(False)  # type: ignore[index]
    objective = sl.Objective(model, (randn(6, 64), labels(6, classes=10)), F.cross_entropy)
    assert sl.symmetries(objective).dim == 0  # each hidden layer has a frozen side
    assert sl.symmetries(model, randn(2, 64)).dim == 22


# Refusals -------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        return out if out.sum() > 0 else 2 * out


@torch.library.custom_op("spiritlevel_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return 2 * x


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(doubled(x))


@pytest.mark.parametrize("make", [Branching, Foreign])
def test_models_that_cannot_be_traced_say_so_and_can_be_measured(
    make: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    model = make()
    with pytest.raises(sl.SpiritlevelError, match=r"could not trace this model \(.*still work"):
        sl.symmetries(model, randn(2, 4).float())
    assert capfd.readouterr() == ("", "")  # torch prints whole graphs
    objective = sl.Objective(model, (randn(8, 4), labels(8)), F.cross_entropy)
    rows = sl.measure(objective, ["hessian_trace"])
    assert rows["hessian_trace"].value > 0


def test_bad_arguments() -> None:
    model = mlp(nn.ReLU)
    with pytest.raises(sl.SpiritlevelError, match=r"statistics='loose' is not known; choose"):
        sl.symmetries(model, randn(2, 64).float(), statistics="loose")  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="choose one of 'exact', 'approximate'"):
        sl.symmetries(model, randn(2, 64).float(), eps="some")  # type: ignore[arg-type]
    with pytest.raises(sl.SpiritlevelError, match="an Objective brings its own data"):
        sl.symmetries(objective_of(model, 64), randn(2, 64))
    with pytest.raises(sl.SpiritlevelError, match=r"none could be guessed.*pass example="):
        sl.symmetries(nn.Bilinear(2, 3, 4))
