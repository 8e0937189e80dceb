"""Results as pages that explain themselves."""

from spiritlevel.report.page import audit_page

__all__ = ["audit_page"]
