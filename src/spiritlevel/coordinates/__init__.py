"""Bijections eta -> theta: the same function in coordinates of another geometry."""

from spiritlevel.coordinates import inputs
from spiritlevel.coordinates.law import HessianLaw, hessian_law
from spiritlevel.coordinates.maps import Chain, Custom, Diagonal, Linear, Reparametrization
from spiritlevel.coordinates.radial import Power, Radial
from spiritlevel.coordinates.reranking import Reranked, rerank
from spiritlevel.coordinates.weightnorm import WeightNorm, weight_norm

__all__ = [
    "Chain",
    "Custom",
    "Diagonal",
    "HessianLaw",
    "Linear",
    "Power",
    "Radial",
    "Reparametrization",
    "Reranked",
    "WeightNorm",
    "hessian_law",
    "inputs",
    "rerank",
    "weight_norm",
]
