"""Reports as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spiritlevel.audits.comparison import Comparison
from spiritlevel.audits.result import Audit
from spiritlevel.audits.way import journey
from spiritlevel.base.doors import a, file
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.measures.table import Table
from spiritlevel.report.page import audit_page, claims_page, comparison_page, table_page
from spiritlevel.theorems import Claims


def write_report(
    result: Audit | Table | Comparison, path: str | Path, *, title: str | None = None
) -> Path:
    """An audit, a table of measures or a comparison as one HTML page that needs nothing else."""
    file(path)
    a("title", title, (str, type(None)), "a text")
    if isinstance(result, Audit):
        page = _audit(result, title)
    elif isinstance(result, Table):
        page = table_page(result.to_dict(), title=title or "Measures at one point")
    elif isinstance(result, Comparison):
        named = title or f"Comparison of {_listed(result.names)}"
        page = comparison_page(result.to_dict(), title=named)
    else:
        raise SpiritlevelError(
            f"write_report got a {type(result).__name__}; give what audit, measure or compare "
            "returned (claims have write_claims)"
        )
    return _written(page, path)


def _audit(audit: Audit, title: str | None) -> str:
    way = journey(audit)
    name = type(audit.objective.module).__name__
    return audit_page(
        audit.to_dict(),
        None if way is None else way.to_dict(),
        title=title or f"Audit of {name}",
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def write_claims(claims: Claims, path: str | Path) -> Path:
    """Claims with their figures as one HTML page that needs nothing else."""
    file(path)
    a("claims", claims, Claims, "what claims() returned")
    name = claims.network.partition(",")[0]
    page = claims_page(claims.to_dict(), claims.figures, title=f"Theorems on {name}")
    return _written(page, path)


def _written(page: str, path: str | Path) -> Path:
    path = Path(path)
    path.write_text(page, encoding="utf-8")
    return path
