"""Weights of +1 and -1: learning by search, and how many solutions lie around a solution."""

from spiritlevel.training.discrete.annealing import anneal, replicated_anneal
from spiritlevel.training.discrete.density import count_within, local_entropy, solutions
from spiritlevel.training.discrete.instances import (
    Instance,
    Searched,
    committee,
    energies,
    perceptron,
)
from spiritlevel.training.discrete.messages import rbp, sbpi

__all__ = [
    "Instance",
    "Searched",
    "anneal",
    "committee",
    "count_within",
    "energies",
    "local_entropy",
    "perceptron",
    "rbp",
    "replicated_anneal",
    "sbpi",
    "solutions",
]
