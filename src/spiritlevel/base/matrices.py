"""The matrices of second derivatives that results speak of."""

from __future__ import annotations

from typing import Literal

Kind = Literal["hessian", "ggn"]
CALLED: dict[Kind, str] = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix"}
SYMBOLS: dict[Kind, str] = {"hessian": "H", "ggn": "G"}
