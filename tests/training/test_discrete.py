"""Binary weights: energies, searches and local entropies against counting by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from spiritlevel import SpiritlevelError, Status
from spiritlevel.training import discrete
from spiritlevel.training.discrete import (
    Instance,
    anneal,
    committee,
    count_within,
    energies,
    local_entropy,
    perceptron,
    rbp,
    replicated_anneal,
    sbpi,
    solutions,
)
from spiritlevel.training.discrete.annealing import Chains, acceptance, drawn_centre
from spiritlevel.training.discrete.density import configurations, distances
from spiritlevel.training.discrete.messages import messages


def sign(number: int) -> int:
    return (number > 0) - (number < 0)


def violated(instance: Instance, weights: tuple[int, ...]) -> int:
    """In plain Python: patterns without a majority of units."""
    wrong = 0
    for xi in instance.patterns.tolist():
        vote = 0
        for k in range(instance.hidden):
            unit = weights[k * instance.inputs : (k + 1) * instance.inputs]
            vote += sign(sum(w * x for w, x in zip(unit, xi, strict=True)))
        wrong += vote <= 0
    return wrong


SMALL = [perceptron(7, 0.6, seed=0), perceptron(10, 0.4, seed=1), committee(3, 3, 0.4, seed=5)]


@pytest.mark.parametrize("instance", SMALL, ids=repr)
def test_energies_and_solutions_are_those_of_plain_python(instance: Instance) -> None:
    rows = list(product((-1, 1), repeat=instance.size))
    counted = [violated(instance, row) for row in rows]
    assert energies(instance, np.array(rows)).tolist() == counted
    expected = {row for row, wrong in zip(rows, counted, strict=True) if wrong == 0}
    found = solutions(instance)
    assert len(found) == len(expected) > 0
    assert {tuple(row) for row in found.tolist()} == expected


def test_more_weights_than_one_table_holds() -> None:
    """14 = 12 + 2: the two parts are put together in the right places."""
    for instance in (perceptron(14, 0.5, seed=3), committee(5, 3, 0.4, seed=0)):
        everything = configurations(instance.size)
        right = everything[energies(instance, everything) == 0]
        assert len(right) > 0
        assert sorted(map(tuple, solutions(instance))) == sorted(map(tuple, right))


def test_an_instance_is_what_it_says() -> None:
    one = committee(5, 3, 0.8, seed=4)
    assert (one.patterns.shape, one.size, one.load) == ((12, 5), 15, 0.8)
    assert repr(one) == "Instance(committee of 3, 15 weights, 12 patterns)"
    assert np.array_equal(one.patterns, committee(5, 3, 0.8, seed=4).patterns)
    assert not np.array_equal(one.patterns, committee(5, 3, 0.8, seed=5).patterns)
    with pytest.raises(ValueError, match="read-only"):
        one.patterns[0, 0] = 1
    many = perceptron(201, 50.0, seed=0).patterns
    assert abs(many.mean()) < 4 / many.size**0.5


# Annealing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", SMALL, ids=repr)
def test_the_change_of_a_flip_is_the_difference_of_energies(instance: Instance) -> None:
    draws = np.random.default_rng(0)
    rows = 2 * draws.integers(0, 2, (20, instance.size)) - 1
    sites = draws.integers(0, instance.size, 20)
    flipped = rows.copy()
    flipped[np.arange(20), sites] *= -1
    change = energies(instance, flipped) - energies(instance, rows)
    assert change.any()
    chains = Chains(instance, rows)
    assert np.array_equal(chains.proposed(sites)[2], change)
    chains.step(sites, np.zeros(20), beta=0.0)  # everything is taken
    assert np.array_equal(chains.weights, flipped)
    assert np.array_equal(chains.energies, energies(instance, flipped))


def test_one_step_is_taken_below_its_acceptance_and_not_above() -> None:
    """min(1, exp(-beta (dE + gamma W_i centre_i))), by the formula."""
    instance, beta, gamma = SMALL[0], 0.7, 0.3
    rows = configurations(7)[::3].astype(int)
    draws = np.random.default_rng(1)
    sites, centre = draws.integers(0, 7, len(rows)), 2 * draws.integers(0, 2, 7) - 1
    flipped = rows.copy()
    flipped[np.arange(len(rows)), sites] *= -1
    cost = energies(instance, flipped) + gamma * (flipped != centre).sum(1)
    cost = cost - energies(instance, rows) - gamma * (rows != centre).sum(1)
    chance = np.minimum(1, np.exp(-beta * cost))
    assert 0 < (chance < 1).sum() < len(rows)
    for nudge, taken in ((-1e-9, True), (1e-9, False)):
        chains = Chains(instance, rows)
        chains.step(sites, chance + nudge, beta, (centre, gamma))
        expected = flipped if taken else np.where((chance == 1)[:, None] & taken, flipped, rows)
        assert np.array_equal(chains.weights, expected)


@given(beta=st.floats(0, 10), seed=st.integers(0, 100))
@settings(max_examples=20)
def test_detailed_balance(beta: float, seed: int) -> None:
    """exp(-beta E) P(a -> b) is symmetric, with all flips proposed alike."""
    instance = perceptron(5, 1.0, seed=seed)
    rows = configurations(5).astype(int)
    energy = energies(instance, rows)
    flow = np.zeros((32, 32))
    for site in range(5):
        change = Chains(instance, rows).proposed(np.full(32, site))[2]
        there = np.arange(32) ^ (1 << site)
        flow[np.arange(32), there] = np.exp(-beta * energy) * acceptance(change, beta) / 5
    assert np.allclose(flow, flow.T, rtol=1e-12, atol=0)


def test_a_long_chain_visits_by_boltzmann() -> None:
    """Mean energy of independent chains after many sweeps, within 4 standard errors."""
    instance, beta, draws = perceptron(5, 1.4, seed=2), 0.8, np.random.default_rng(3)
    energy = energies(instance, configurations(5))
    weight = np.exp(-beta * energy)
    chains = Chains(instance, 2 * draws.integers(0, 2, (4000, 5)) - 1)
    for _ in range(20):
        chains.sweep(draws, beta)
    found = chains.energies
    mean = float(weight @ energy / weight.sum())
    assert abs(found.mean() - mean) < 4 * found.std() / 4000**0.5
    assert abs(energy.mean() - mean) > 10 * found.std() / 4000**0.5  # it is not uniform


def test_the_centre_is_drawn_by_its_own_distribution() -> None:
    weights, draws = np.array([[1, 1, -1], [1, -1, -1], [1, -1, 1]]), np.random.default_rng(0)
    pull, n = 0.4, 4000
    mean = np.mean([drawn_centre(weights, pull, draws) for _ in range(n)], axis=0)
    expected = np.tanh(pull * weights.sum(0) / 2)
    assert (np.abs(mean - expected) < 4 * np.sqrt((1 - expected**2) / n)).all()


def test_annealing_finds_solutions_where_patterns_are_few() -> None:
    ends = [anneal(perceptron(31, 0.3, seed=s), seed=s, sweeps=200) for s in range(8)]
    assert sum(end.found for end in ends) >= 7
    for seed, end in enumerate(ends):
        assert end.energy == energies(perceptron(31, 0.3, seed=seed), end.weights)
        assert end.found == (end.energy == 0)
        assert end.steps % 31 == 0


def test_replicas_find_solutions_of_a_committee_too() -> None:
    small, many = perceptron(15, 0.3, seed=0), committee(7, 3, 0.3, seed=1)
    for instance in (small, many):
        ends = [replicated_anneal(instance, seed=s, replicas=3, sweeps=60) for s in range(3)]
        assert sum(end.found for end in ends) >= 2
        assert all(end.energy == energies(instance, end.weights) for end in ends)
        assert {end.steps for end in ends} == {60 * 3 * instance.size}
    assert anneal(many, seed=0, chains=4).found


def test_replicas_come_together_where_they_are_pulled() -> None:
    """At a large gamma all replicas are one; at gamma = 0 they are not."""
    instance, draws = perceptron(15, 0.3, seed=0), np.random.default_rng(0)
    spread = {}
    for gamma in (0.0, 5.0):
        chains = Chains(instance, 2 * draws.integers(0, 2, (6, 15)) - 1)
        for _ in range(30):
            centre = drawn_centre(chains.weights, 2.0 * gamma, draws)
            chains.sweep(draws, 2.0, (centre, gamma))
        spread[gamma] = np.abs(chains.weights.sum(0)).mean() / 6
    assert spread[5.0] == 1
    assert spread[0.0] < 0.9


def test_what_has_no_solution_is_not_found() -> None:
    """A pattern and its negative cannot both be answered with +1."""
    xi = np.array([[1, 1, -1, 1, 1], [-1, -1, 1, -1, -1]])
    instance = Instance(xi)
    assert len(solutions(instance)) == 0
    ends = (
        anneal(instance, seed=0, sweeps=5),
        replicated_anneal(instance, seed=0, sweeps=5),
        sbpi(instance, seed=0, epochs=5),
        rbp(instance, seed=0, iterations=5),
    )
    for end in ends:
        assert not end.found
        assert end.energy == 1


# Messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [sbpi, rbp], ids=["sbpi", "rbp"])
def test_rules_solve_two_hundred_weights(rule: object) -> None:
    run = {sbpi: sbpi, rbp: rbp}[rule]  # type: ignore[index]
    ends = [run(perceptron(201, 0.4, seed=s), seed=s) for s in range(5)]
    assert sum(end.found for end in ends) >= 4
    for seed, end in enumerate(ends):
        patterns = perceptron(201, 0.4, seed=seed).patterns.astype(int)
        assert end.found == bool((patterns @ end.weights > 0).all())


def test_a_message_is_the_ratio_of_two_tails() -> None:
    """By the normal distribution, one entry at a time."""
    draws = np.random.default_rng(0)
    xi = 2.0 * draws.integers(0, 2, (3, 6)) - 1
    means = draws.uniform(-0.9, 0.9, (3, 6))
    found = messages(xi, means)
    for mu, i in product(range(3), range(6)):
        others = [j for j in range(6) if j != i]
        mean = sum(xi[mu, j] * means[mu, j] for j in others)
        spread = math.sqrt(sum(1 - means[mu, j] ** 2 for j in others))
        up, down = (1 - norm.cdf(0, mean + w * xi[mu, i], spread) for w in (1, -1))
        assert found[mu, i] == pytest.approx(math.log(up / down) / 2, rel=1e-9)


def test_marginals_of_belief_propagation_are_near_the_true_ones() -> None:
    """Without reinforcement, where patterns are few: against all solutions."""
    instance = perceptron(15, 0.2, seed=0)
    truth = solutions(instance).mean(0)
    xi = instance.patterns.astype(float)
    u, h = np.zeros_like(xi), np.zeros(15)
    for _ in range(50):
        u = messages(xi, np.tanh(h - u))
        h = u.sum(0)
    assert np.abs(np.tanh(h) - truth).max() < 0.08
    assert np.abs(truth).max() > 0.2


# Local entropy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", SMALL, ids=repr)
def test_local_entropy_by_plain_counting(instance: Instance) -> None:
    everything = [tuple(row) for row in solutions(instance).tolist()]
    for here in everything[:3]:
        for reach in (0, 1, 3, instance.size):
            count = sum(
                sum(a != b for a, b in zip(here, there, strict=True)) <= reach
                for there in everything
            )
            assert count_within(instance, np.array(here), reach).value == count
            found = local_entropy(instance, np.array(here), reach)
            assert found.value == pytest.approx(math.log(count) / instance.size)
            assert found.status is Status.EXACT
            assert found.stderr is None


def test_distances_are_numbers_of_other_weights() -> None:
    rows = configurations(6)
    codes = np.arange(64)
    expected = [[bin(a ^ b).count("1") for b in codes] for a in codes]
    assert distances(rows, rows).tolist() == expected


def test_sampling_agrees_with_enumeration() -> None:
    """No bias and a right error: the mean over many seeds, within 4 standard errors."""
    instance, reach = perceptron(17, 0.4, seed=1), 4
    here = solutions(instance)[0]
    truth = count_within(instance, here, reach).value
    found = [count_within(instance, here, reach, samples=1000, seed=s) for s in range(100)]
    values = np.array([e.value for e in found])
    errors = np.array([e.stderr for e in found])
    assert abs(values.mean() - truth) < 4 * values.std() / 10
    assert errors.mean() == pytest.approx(values.std(), rel=0.3)
    assert (np.abs(values - truth) < 2 * errors).mean() > 0.85
    entropy = local_entropy(instance, here, reach, samples=20_000)
    exact = local_entropy(instance, here, reach).value
    assert entropy.stderr == 0  # so many samples look at every configuration
    assert entropy.value == pytest.approx(exact)


def test_sampling_says_where_it_saw_too_little() -> None:
    instance = perceptron(21, 0.7, seed=0)
    here = solutions(instance)[0]
    found = count_within(instance, here, 8, samples=300)
    assert found.status is Status.BUDGET
    assert "none was hit at distance" in found.remedy
    truth = count_within(instance, here, 8).value
    assert abs(found.value - truth) < 4 * found.error


# Mistakes -----------------------------------------------------------------------------------------


def test_mistakes_are_told_in_one_line() -> None:
    instance, large = SMALL[0], perceptron(25, 0.2, seed=0)
    weights = np.ones(7)
    for make, words in (
        (lambda: perceptron(0, 0.4, seed=0), "inputs=0: give a whole number of at least 1"),
        (lambda: perceptron(5, -1.0, seed=0), "load=-1.0: give a positive number"),
        (lambda: perceptron(5, 0.5, seed=2**70), "give a whole number of 64 bits"),
        (lambda: Instance(np.zeros((2, 3))), "patterns=.*give an array with 2 dimensions"),
        (lambda: energies(instance, np.ones(6)), "weights has the shape .6,.; give rows of 7"),
        (lambda: energies(instance, 0.5 * weights), "weights=.*that are .1 or -1"),
        (lambda: energies("xor", weights), "instance is a str; give an Instance"),  # type: ignore[arg-type]
        (lambda: solutions(large), "instance has 25 weights; .* up to 21: take count_within"),
        (lambda: count_within(instance, np.ones((2, 7)), 1), "solution has the shape"),
        (lambda: count_within(instance, weights, -1), "distance=-1"),
        (lambda: count_within(instance, weights, 1, samples=1), "samples=1"),
        (lambda: anneal(instance, seed=0, beta=(1.0,)), "the length of beta=1"),  # type: ignore[arg-type]
        (lambda: anneal(instance, seed=0, sweeps=0), "sweeps=0"),
        (lambda: replicated_anneal(instance, seed=0, replicas=1), "replicas=1"),
        (lambda: rbp(instance, seed=0, reinforcement=1.5), "reinforcement=1.5: .* at most 1"),
        (lambda: sbpi(SMALL[2], seed=0), "instance has 3 hidden units; .* take anneal"),
    ):
        with pytest.raises(SpiritlevelError, match=words):
            make()


def test_no_logarithm_of_nothing() -> None:
    instance = SMALL[1]
    everything = configurations(10)
    wrong = everything[energies(instance, everything).argmax()]
    with pytest.raises(SpiritlevelError, match="no solution was seen within a distance of 0"):
        local_entropy(instance, wrong, 0)


def test_the_global_generator_is_left_alone() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    instance = perceptron(9, 0.4, seed=0)
    one, other = (anneal(instance, seed=3, sweeps=5) for _ in range(2))
    assert np.array_equal(one.weights, other.weights)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002
    assert set(discrete.__all__) <= set(dir(discrete))
