"""Representations of the inputs: what they re-rank and what they cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Independent, LogNormal, MultivariateNormal

import spiritlevel as sl
from cases import BY_NAME, randn
from spiritlevel import Objective, SpiritlevelError
from spiritlevel.coordinates.inputs import (
    FIXED,
    MOVING,
    Laws,
    Representation,
    affine,
    input_gradient_norm,
    input_gradients,
    opposing,
    ranked,
    represent,
    standardization,
    whitening,
)

ONE = torch.eye(2, dtype=torch.float64)
TRUTH = MultivariateNormal(0 * ONE[0], ONE)
MODELS = {"A": MultivariateNormal(0.9 * ONE[0], ONE), "B": MultivariateNormal(0.6 * ONE[1], ONE)}
BENT = Representation(torch.sinh, torch.asinh, "sinh")


def nets() -> tuple[Objective, Objective]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = [
            nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double() for _ in range(2)
        ]
    data = randn(30, 4) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + 1, torch.arange(30) % 3
    return Objective(made[0], data, F.cross_entropy), Objective(made[1], data, F.cross_entropy)


@pytest.mark.parametrize("make", [standardization, whitening, lambda o: BENT])
@pytest.mark.parametrize("name", ["relu mlp", "cnn with BatchNorm", "LSTM"])
def test_the_same_network(name: str, make: Callable[[Objective], Representation]) -> None:
    objective = BY_NAME[name].objective()
    seen = represent(objective, make(objective))
    torch.testing.assert_close(seen.predictions(), objective.predictions(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(seen.gradient(), objective.gradient(), rtol=1e-6, atol=1e-8)
    assert seen.value() == pytest.approx(objective.value())
    assert not torch.equal(seen.batches[0][0], objective.batches[0][0])


def test_standard_and_white_inputs() -> None:
    objective, _ = nets()
    plain = represent(objective, standardization(objective)).batches[0][0]
    torch.testing.assert_close(plain.mean(0), torch.zeros(4).double())
    torch.testing.assert_close(plain.std(0), torch.ones(4).double())
    white = represent(objective, whitening(objective)).batches[0][0]
    torch.testing.assert_close(torch.cov(white.T), torch.eye(4).double())


def test_gradients_by_the_chain_rule() -> None:
    """dl/du = A^-T dl/dx; and dl/dx against finite differences."""
    objective, _ = nets()
    matrix = torch.eye(4).double() + 0.3 * randn(4, 4)
    seen = represent(objective, affine(torch.zeros(4), matrix))
    expected = torch.linalg.solve(matrix.T, input_gradients(objective).T).T
    torch.testing.assert_close(input_gradients(seen), expected)
    x, y = objective.batches[0]
    step = torch.zeros_like(x)
    step[2, 1] = 1e-6
    ahead, behind = (objective.on([(x + s * step, y)]).value() * 30 for s in (1, -1))
    slope = (ahead - behind) / 2e-6
    assert float(input_gradients(objective)[2, 1]) == pytest.approx(slope, rel=1e-6)


def test_a_pair_is_ranked_either_way_by_input_gradients_but_not_by_loss() -> None:
    one, other = nets()
    for place, xi in enumerate(opposing(one, other)):
        seen = [represent(net, xi) for net in (one, other)]
        norms = [input_gradient_norm(net) for net in seen]
        assert norms[place] < norms[1 - place]
        assert [net.value() for net in seen] == pytest.approx([one.value(), other.value()])


def test_a_pair_that_no_linear_representation_turns() -> None:
    one, _ = nets()
    twice = one.at({"2.weight": 1e3 * one.params["2.weight"]})
    flat = one.at({"2.weight": 0 * one.params["2.weight"]})
    with pytest.raises(SpiritlevelError, match="no linear representation re-ranks"):
        opposing(twice, flat)


@pytest.mark.parametrize("xi", [affine(0 * ONE[0], torch.tensor([0.5, 1.6]).double()), BENT])
def test_likelihoods_and_divergences_stay(xi: Representation) -> None:
    found = ranked(TRUTH, MODELS, xi, draws=200)
    for criterion in FIXED:
        assert found.shift(criterion) < 1e-10
    for criterion in MOVING:
        assert found.shift(criterion) > 1e-2
    for criterion in FIXED[1:]:  # divergences themselves, not only their differences
        for model in MODELS:
            assert found.after[criterion][model] == pytest.approx(found.before[criterion][model])


def test_distances_turn_with_the_scale() -> None:
    xi = affine(0 * ONE[0], torch.tensor([0.5, 1.6]).double())
    found = ranked(TRUTH, MODELS, xi)
    assert found.turned == MOVING
    assert found.best("log-likelihood", represented=False) == "B"
    assert found.best("log-likelihood", represented=True) == "B"
    # E|x - m|^2 = 2 + |m|^2 in x, and sum_i s_i^2 (1 + m_i^2) in u
    before, after = found.before["mean squared error"], found.after["mean squared error"]
    assert before["A"] == pytest.approx(2 + 0.81, rel=0.1)
    assert after["A"] == pytest.approx(0.25 * 1.81 + 2.56, rel=0.15)
    # log-likelihoods differ by log |det| = log 0.8
    shift = found.after["log-likelihood"]["A"] - found.before["log-likelihood"]["A"]
    assert shift == pytest.approx(-torch.tensor(0.8).log().item())
    # KL of two unit Gaussians at distance m is m^2 / 2
    assert found.before["KL divergence"]["A"] == pytest.approx(0.405, abs=0.1)


def test_densities_of_laws_that_are_known() -> None:
    """Log-normal densities of exp(x), which no |det| of ours enters; wrong laws are seen."""
    xi = Representation(torch.exp, torch.log, "exponential")
    laws = {n: Independent(LogNormal(m.mean, torch.ones(2)), 1) for n, m in MODELS.items()}
    truth = Independent(LogNormal(TRUTH.mean, torch.ones(2)), 1)
    found = ranked(TRUTH, MODELS, xi, seen=Laws(truth, laws))
    assert max(found.shift(criterion) for criterion in FIXED) < 1e-10
    rule = ranked(TRUTH, MODELS, xi)
    for criterion in FIXED:
        for model in MODELS:
            assert found.after[criterion][model] == pytest.approx(rule.after[criterion][model])
    swapped = ranked(TRUTH, MODELS, xi, seen=Laws(truth, {"A": laws["B"], "B": laws["A"]}))
    assert min(swapped.shift(criterion) for criterion in FIXED) > 1e-2
    with pytest.raises(SpiritlevelError, match="`seen` has the models A"):
        ranked(TRUTH, MODELS, xi, seen=Laws(truth, {"A": laws["A"]}))


def test_a_loss_that_reads_the_inputs_itself_has_no_representation() -> None:
    """An auto-encoder: x is its target too, and the loss would become another one."""

    def of_inputs(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[0]).square().mean()

    net = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 4)).double()
    objective = Objective(net, (randn(20, 4), randn(20, 4)), of_inputs)
    with pytest.raises(SpiritlevelError, match="reads the inputs itself"):
        represent(objective, affine(torch.zeros(4), torch.full((4,), 3.0)))


def test_joined_examples_have_no_gradients_of_their_own() -> None:
    objective = BY_NAME["cnn with BatchNorm in train mode"].objective()
    with pytest.raises(SpiritlevelError, match="no sum over its examples"):
        input_gradients(objective)


def test_bad_input() -> None:
    objective, _ = nets()
    with pytest.raises(SpiritlevelError, match="not invertible on these inputs"):
        represent(objective, Representation(torch.relu, torch.relu, "relu"))
    with pytest.raises(SpiritlevelError, match="tensor x of real numbers"):
        represent(BY_NAME["embedding"].objective(), BENT)
    with pytest.raises(SpiritlevelError, match="with an inverse"):
        affine(torch.zeros(2), torch.zeros(2, 2))
    with pytest.raises(SpiritlevelError, match="3 x 3 matrix"):
        affine(torch.zeros(3), torch.eye(2))
    with pytest.raises(SpiritlevelError, match="models is empty; give one or more"):
        ranked(TRUTH, {}, BENT)


def test_random_states_and_the_model_stay() -> None:
    objective, _ = nets()
    before = torch.get_rng_state()
    ranked(TRUTH, MODELS, BENT, draws=10)
    represent(objective, BENT)
    assert torch.equal(before, torch.get_rng_state())
    assert not objective.module._forward_pre_hooks
    assert sl.symmetries(represent(objective, standardization(objective))).dim == 0
