"""Values over a line or a plane as files: numpy's, ParaView's."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spiritlevel.base.doors import file

if TYPE_CHECKING:
    from spiritlevel.results.landscape import Surface

Values = Sequence[float | None]


def ends(values: Values) -> tuple[float | None, float | None]:
    """The least and the largest of the finite values; None if there is none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (None, None)


def array(values: Values) -> list[float]:
    """Numbers, nan for those that were not evaluated."""
    return [math.nan if value is None else value for value in values]


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Arrays in float64 as one .npz file."""
    import numpy as np

    held: dict[str, Any] = {name: np.asarray(a, dtype=np.float64) for name, a in arrays.items()}
    with file(path).open("wb") as out:  # numpy would add a suffix to a name
        np.savez(out, **held)


def vtk(surface: Surface) -> str:
    """A rectilinear grid in VTK's legacy format: heights are data, not coordinates."""
    sheet, points = surface.sheets[0], len(surface.x) * len(surface.y)
    lines = [
        "# vtk DataFile Version 3.0",
        f"spiritlevel: {surface.quantity} over a plane",
        "ASCII",
        "DATASET RECTILINEAR_GRID",
        f"DIMENSIONS {len(surface.x)} {len(surface.y)} 1",
        f"X_COORDINATES {len(surface.x)} double",
        _row(surface.x),
        f"Y_COORDINATES {len(surface.y)} double",
        _row(surface.y),
        "Z_COORDINATES 1 double",
        "0",
        f"POINT_DATA {points}",
    ]
    fields = {surface.quantity: sheet.values, "accuracy": sheet.accuracies}
    for name, rows in fields.items():
        if rows is not None:
            lines += [f"SCALARS {name} double 1", "LOOKUP_TABLE default", *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(values: Values) -> str:
    return " ".join(repr(float(value)) for value in array(values))
