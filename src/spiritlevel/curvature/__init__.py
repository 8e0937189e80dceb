"""Products with the Hessian, the Gauss-Newton matrix and the Fisher matrix, checked."""

from spiritlevel.curvature.diagonals import GaussNewtonDiagonal, ggn_diagonal
from spiritlevel.curvature.products import fisher, ggn, hessian, output_gradients

__all__ = ["GaussNewtonDiagonal", "fisher", "ggn", "ggn_diagonal", "hessian", "output_gradients"]
