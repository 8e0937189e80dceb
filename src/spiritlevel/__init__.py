"""spiritlevel: is that minimum flat, and does the answer mean anything?

>>> import torch, spiritlevel as sl
>>> x, y = torch.randn(50, 3), torch.randint(0, 2, (50,))
>>> objective = sl.Objective(torch.nn.Linear(3, 2), (x, y), torch.nn.functional.cross_entropy)
>>> sl.trace(sl.hessian(objective)).status
<Status.EXACT: 'exact'>
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from spiritlevel.version import __version__

# Torch takes a second and a half to import, so names are found when they are first used:
# `spiritlevel --help` and tab completion stay instant.
_HOMES = {
    "Objective": "objective",
    "Estimate": "estimate",
    "Status": "estimate",
    "SpiritlevelError": "errors",
    "Operator": "operators",
    "from_matrix": "operators",
    "restricted": "operators",
    "scaled": "operators",
    "hessian": "curvature",
    "ggn": "curvature",
    "fisher": "curvature",
    "output_gradients": "curvature",
    "eigenpairs": "spectral",
    "eigenvalues": "spectral",
    "density": "spectral",
    "negative_eigenvalues": "spectral",
    "trace": "spectral",
    "diagonal": "spectral",
    "frobenius": "spectral",
    "symmetries": "symmetry",
    "verify": "symmetry",
    "Group": "symmetry",
    "Certificate": "symmetry",
    "sharpen": "sharpening",
    "sharpen_many": "sharpening",
    "zero_in_ball": "sharpening",
    "audit": "auditing",
    "Audit": "audited",
    "compare": "comparing",
    "Comparison": "comparing",
    "write_report": "report",
    "write_claims": "report",
    "CLAIMS": "theorems",
    "claims": "theorems",
    "MEASURES": "measures",
    "measure": "measures",
    "register": "measures",
    "worst_in_ball": "measures",
    "default_objective": "default",
}
_MODULES = ("inputs", "orbit", "reparam", "symmetry", "volume")

__all__ = [
    "CLAIMS",
    "MEASURES",
    "Audit",
    "Certificate",
    "Comparison",
    "Estimate",
    "Group",
    "Objective",
    "Operator",
    "SpiritlevelError",
    "Status",
    "__version__",
    "audit",
    "claims",
    "compare",
    "default_objective",
    "density",
    "diagonal",
    "eigenpairs",
    "eigenvalues",
    "fisher",
    "frobenius",
    "from_matrix",
    "ggn",
    "hessian",
    "inputs",
    "measure",
    "negative_eigenvalues",
    "orbit",
    "output_gradients",
    "register",
    "reparam",
    "restricted",
    "scaled",
    "sharpen",
    "sharpen_many",
    "symmetries",
    "symmetry",
    "trace",
    "verify",
    "volume",
    "worst_in_ball",
    "write_claims",
    "write_report",
    "zero_in_ball",
]

if TYPE_CHECKING:
    from spiritlevel import inputs, orbit, reparam, symmetry, volume
    from spiritlevel.audited import Audit
    from spiritlevel.auditing import audit
    from spiritlevel.comparing import Comparison, compare
    from spiritlevel.curvature import fisher, ggn, hessian, output_gradients
    from spiritlevel.default import default_objective
    from spiritlevel.errors import SpiritlevelError
    from spiritlevel.estimate import Estimate, Status
    from spiritlevel.measures import MEASURES, measure, register, worst_in_ball
    from spiritlevel.objective import Objective
    from spiritlevel.operators import Operator, from_matrix, restricted, scaled
    from spiritlevel.report import write_claims, write_report
    from spiritlevel.sharpening import sharpen, sharpen_many, zero_in_ball
    from spiritlevel.spectral import (
        density,
        diagonal,
        eigenpairs,
        eigenvalues,
        frobenius,
        negative_eigenvalues,
        trace,
    )
    from spiritlevel.symmetry import Certificate, Group, symmetries, verify
    from spiritlevel.theorems import CLAIMS, claims


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"spiritlevel.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'spiritlevel' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spiritlevel.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
