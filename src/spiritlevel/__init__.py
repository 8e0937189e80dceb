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

from spiritlevel.base.version import __version__

# Torch takes a second and a half to import, so names are found when they are first used:
# `spiritlevel --help` and tab completion stay instant.
_HOMES = {
    "Objective": "objective",
    "Estimate": "base.estimate",
    "Status": "base.estimate",
    "SpiritlevelError": "base.errors",
    "Operator": "base.operator",
    "from_matrix": "base.operator",
    "restricted": "base.operator",
    "scaled": "base.operator",
    "hessian": "curvature",
    "ggn": "curvature",
    "fisher": "curvature",
    "ggn_diagonal": "curvature",
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
    "Certificate": "results",
    "sharpen": "witnesses.sharpened",
    "sharpen_many": "witnesses.sharpened",
    "zero_in_ball": "witnesses.sharpened",
    "audit": "audits.audit",
    "Audit": "results",
    "Bound": "results",
    "Bounds": "results",
    "Claims": "results",
    "Result": "results",
    "Table": "results",
    "load": "results",
    "compare": "audits.comparison",
    "estimate": "audits.forecast",
    "Findings": "results",
    "Forecast": "results",
    "History": "results",
    "Line": "results",
    "Spectra": "results",
    "Surface": "results",
    "Comparison": "results",
    "write_report": "report",
    "CLAIMS": "theorems",
    "Claim": "theorems",
    "Finding": "theorems",
    "claims": "theorems",
    "MEASURES": "measures",
    "measure": "measures",
    "register": "measures",
    "worst_in_ball": "witnesses.worst",
    "default_objective": "objective.default",
}
_MODULES = (
    *("bounds", "coordinates", "landscape", "orbit", "studies", "symmetry", "training"),
    "witnesses",
)

__all__ = [
    "CLAIMS",
    "MEASURES",
    "Audit",
    "Bound",
    "Bounds",
    "Certificate",
    "Claim",
    "Claims",
    "Comparison",
    "Estimate",
    "Finding",
    "Findings",
    "Forecast",
    "Group",
    "History",
    "Line",
    "Objective",
    "Operator",
    "Result",
    "Spectra",
    "SpiritlevelError",
    "Status",
    "Surface",
    "Table",
    "__version__",
    "audit",
    "bounds",
    "claims",
    "compare",
    "coordinates",
    "default_objective",
    "density",
    "diagonal",
    "eigenpairs",
    "eigenvalues",
    "estimate",
    "fisher",
    "frobenius",
    "from_matrix",
    "ggn",
    "ggn_diagonal",
    "hessian",
    "landscape",
    "load",
    "measure",
    "negative_eigenvalues",
    "orbit",
    "output_gradients",
    "register",
    "restricted",
    "scaled",
    "sharpen",
    "sharpen_many",
    "studies",
    "symmetries",
    "symmetry",
    "trace",
    "training",
    "verify",
    "witnesses",
    "worst_in_ball",
    "write_report",
    "zero_in_ball",
]

if TYPE_CHECKING:
    from spiritlevel import (
        bounds,
        coordinates,
        landscape,
        orbit,
        studies,
        symmetry,
        training,
        witnesses,
    )
    from spiritlevel.audits.audit import audit
    from spiritlevel.audits.comparison import compare
    from spiritlevel.audits.forecast import estimate
    from spiritlevel.base.errors import SpiritlevelError
    from spiritlevel.base.estimate import Estimate, Status
    from spiritlevel.base.operator import Operator, from_matrix, restricted, scaled
    from spiritlevel.curvature import fisher, ggn, ggn_diagonal, hessian, output_gradients
    from spiritlevel.measures import MEASURES, measure, register, worst_in_ball
    from spiritlevel.objective import Objective
    from spiritlevel.objective.default import default_objective
    from spiritlevel.report import write_report
    from spiritlevel.results import (
        Audit,
        Bound,
        Bounds,
        Certificate,
        Claims,
        Comparison,
        Findings,
        Forecast,
        History,
        Line,
        Result,
        Spectra,
        Surface,
        Table,
        load,
    )
    from spiritlevel.spectral import (
        density,
        diagonal,
        eigenpairs,
        eigenvalues,
        frobenius,
        negative_eigenvalues,
        trace,
    )
    from spiritlevel.symmetry import Group, symmetries, verify
    from spiritlevel.theorems import CLAIMS, Claim, Finding, claims
    from spiritlevel.witnesses.sharpened import sharpen, sharpen_many, zero_in_ball


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"spiritlevel.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'spiritlevel' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spiritlevel.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
