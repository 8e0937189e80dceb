"""Bijections eta -> theta: the same function in coordinates of another geometry."""

from spiritlevel.reparam.law import HessianLaw, hessian_law
from spiritlevel.reparam.maps import Chain, Custom, Diagonal, Linear, Reparametrization
from spiritlevel.reparam.radial import Power, Radial
from spiritlevel.reparam.reranking import Reranked, rerank
from spiritlevel.reparam.weightnorm import WeightNorm, weight_norm

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
    "rerank",
    "weight_norm",
]
