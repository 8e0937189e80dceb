"""Reports as files."""

from __future__ import annotations

from pathlib import Path

from spiritlevel.audited import Audit
from spiritlevel.journey import journey
from spiritlevel.report.page import audit_page, claims_page
from spiritlevel.theorems import Claims


def write_report(audit: Audit, path: str | Path, *, title: str | None = None) -> Path:
    """The report of an audit as one HTML page that needs nothing else."""
    way = journey(audit)
    name = type(audit.objective.module).__name__
    page = audit_page(
        audit.to_dict(),
        None if way is None else way.to_dict(),
        title=f"Audit of {name}" if title is None else title,
    )
    return _written(page, path)


def write_claims(claims: Claims, path: str | Path) -> Path:
    """Claims with their figures as one HTML page that needs nothing else."""
    name = claims.network.partition(",")[0]
    page = claims_page(claims.to_dict(), claims.figures, title=f"Theorems on {name}")
    return _written(page, path)


def _written(page: str, path: str | Path) -> Path:
    path = Path(path)
    path.write_text(page, encoding="utf-8")
    return path
