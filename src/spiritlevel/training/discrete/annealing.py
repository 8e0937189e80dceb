"""Simulated annealing of binary weights, alone and as replicas that are held together."""

from __future__ import annotations

import numpy as np

from spiritlevel.base import doors
from spiritlevel.training.discrete.instances import (
    Instance,
    Searched,
    checked_instance,
    fields,
    generator,
    random_signs,
    searched,
)

Coupling = tuple[np.ndarray, float]  # the centre, and gamma


def acceptance(change: np.ndarray, beta: float) -> np.ndarray:
    """min(1, exp(-beta change)): Metropolis."""
    return np.exp(-beta * np.maximum(change, 0))


class Chains:
    """Weights of several chains of one instance, with their fields, flip by flip."""

    def __init__(self, instance: Instance, weights: np.ndarray) -> None:
        self.instance, self.weights = instance, weights.astype(np.int32)
        self.fields = fields(instance, self.weights)
        self.votes = np.sign(self.fields).sum(1)
        self.patterns = instance.patterns.T.astype(np.int32)
        self.rows = np.arange(len(weights))

    @property
    def energies(self) -> np.ndarray:
        return (self.votes <= 0).sum(1)

    def proposed(self, sites: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """After a flip in each chain: its unit's fields, the votes, and the change of energy."""
        unit, place = np.divmod(sites, self.instance.inputs)
        before = self.fields[self.rows, unit]
        after = before - 2 * self.weights[self.rows, sites][:, None] * self.patterns[place]
        votes = self.votes - np.sign(before) + np.sign(after)
        return after, votes, (votes <= 0).sum(1) - self.energies

    def step(
        self,
        sites: np.ndarray,
        uniform: np.ndarray,
        beta: float,
        coupling: Coupling | None = None,
    ) -> None:
        """One flip proposed in every chain, taken where uniform < acceptance."""
        after, votes, change = self.proposed(sites)
        if coupling is not None:
            centre, gamma = coupling
            apart = self.weights[self.rows, sites] * centre[sites]  # +1: the flip goes away
            change = change + gamma * apart
        taken = np.flatnonzero(uniform < acceptance(change, beta))
        self.weights[taken, sites[taken]] *= -1
        self.fields[taken, sites[taken] // self.instance.inputs] = after[taken]
        self.votes[taken] = votes[taken]

    def sweep(
        self, draws: np.random.Generator, beta: float, coupling: Coupling | None = None
    ) -> int:
        """As many proposals in every chain as there are weights; how many that were."""
        shape = (self.instance.size, len(self.rows))
        sites, uniform = draws.integers(0, shape[0], shape), draws.random(shape)
        for places, level in zip(sites, uniform, strict=True):
            self.step(places, level, beta, coupling)
        return shape[0] * shape[1]


def anneal(
    instance: Instance,
    *,
    seed: int,
    sweeps: int = 500,
    beta: tuple[float, float] = (0.5, 5.0),
    chains: int = 1,
) -> Searched:
    """Metropolis flips while beta rises evenly; stops after the sweep that found a solution.

    Several chains run side by side, each from random weights; the best one is returned.
    """
    checked_instance(instance)
    _checked_schedule(sweeps, beta)
    doors.number("chains", chains, 1, whole=True)
    draws, steps = generator(seed), 0
    state = Chains(instance, random_signs((chains, instance.size), draws))
    best, least = state.weights[0].copy(), len(instance.patterns) + 1
    for level in np.linspace(*beta, sweeps):
        steps += state.sweep(draws, level)
        found = state.energies
        if found.min() < least:
            best, least = state.weights[found.argmin()].copy(), int(found.min())
        if least == 0:
            break
    return searched(instance, best, steps)


def replicated_anneal(
    instance: Instance,
    *,
    seed: int,
    replicas: int = 5,
    sweeps: int = 500,
    beta: tuple[float, float] = (0.5, 5.0),
    gamma: tuple[float, float] = (0.0, 1.0),
) -> Searched:
    """Replicas W^a and a centre W at the energy sum_a E(W^a) + gamma sum_a d(W^a, W).

    d counts the weights that differ; beta and gamma rise evenly. The centre has no energy of its
    own and is drawn anew in each sweep, P(W_i = 1) = 1 / (1 + exp(-beta gamma sum_a W^a_i)). All
    sweeps are made, since the replicas come together at the end; the majority of the replicas is
    returned if no replica is better, or else the best replica. Baldassi et al. 2016, PNAS.
    """
    checked_instance(instance)
    _checked_schedule(sweeps, beta)
    doors.number("replicas", replicas, 2, whole=True)
    _checked_pair("gamma", gamma, 0.0)
    draws, steps = generator(seed), 0
    state = Chains(instance, random_signs((replicas, instance.size), draws))
    for level, pull in zip(np.linspace(*beta, sweeps), np.linspace(*gamma, sweeps), strict=True):
        centre = drawn_centre(state.weights, level * pull, draws)
        steps += state.sweep(draws, level, (centre, pull))
    total = state.weights.sum(0)
    majority = np.where(total == 0, state.weights[0], np.sign(total))
    ends = [searched(instance, row, steps) for row in (majority, *state.weights)]
    return min(ends, key=lambda end: end.energy)


def drawn_centre(weights: np.ndarray, pull: float, draws: np.random.Generator) -> np.ndarray:
    """The centre given its replicas, by its own distribution."""
    up = 1 / (1 + np.exp(-np.clip(pull * weights.sum(0), -500, 500)))
    return np.where(draws.random(weights.shape[1]) < up, 1, -1)


def _checked_schedule(sweeps: int, beta: tuple[float, float]) -> None:
    doors.number("sweeps", sweeps, 1, whole=True)
    _checked_pair("beta", beta, 0.0)


def _checked_pair(name: str, pair: tuple[float, float], least: float) -> None:
    """Refuse what is no pair of numbers, where a schedule begins and where it ends."""
    doors.a(name, pair, tuple, "a pair (first, last)")
    if len(pair) != 2:
        doors.one_of(f"the length of {name}", len(pair), (2,))
    for one in pair:
        doors.number(name, one, least)
