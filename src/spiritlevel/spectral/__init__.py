"""Eigenvalues, densities, traces and norms of matrices that are known by their products."""

from spiritlevel.spectral.density import Density, density, negative_eigenvalues
from spiritlevel.spectral.lanczos import Eigenpairs, eigenpairs, eigenvalues
from spiritlevel.spectral.probes import Diagonal, Probes, diagonal, frobenius, probe, trace
from spiritlevel.spectral.request import Which

__all__ = [
    "Density",
    "Diagonal",
    "Eigenpairs",
    "Probes",
    "Which",
    "density",
    "diagonal",
    "eigenpairs",
    "eigenvalues",
    "frobenius",
    "negative_eigenvalues",
    "probe",
    "trace",
]
