"""Densities of eigenvalues as data: at several points of an orbit, or layer by layer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spiritlevel.base.estimate import Estimate, format_value
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.grid import Column, Grid, cells, filled
from spiritlevel.results.landscape import OfLandscape, Picture, kept
from spiritlevel.results.places import write_npz
from spiritlevel.results.result import Result, by_name


@dataclass(frozen=True)
class Spectrum:
    """A density of eigenvalues with its band, and the eigenvalues that lie apart from the bulk."""

    name: str
    grid: tuple[float, ...]
    density: tuple[float, ...]
    stderr: tuple[float, ...]
    outliers: tuple[Estimate, ...]
    size: int
    sigma: float
    certificate: Certificate | None = None  # that this point predicts what the first one does


@dataclass(frozen=True, eq=False)
class Spectra(Picture, Result, kind="spectra", schema=1):
    """Densities of the Hessian's eigenvalues, several to be compared."""

    spectra: tuple[Spectrum, ...]
    provenance: OfLandscape

    title = "Eigenvalues of the Hessian"  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Spectrum:
        return by_name(self.spectra, name, "spectrum")

    def __iter__(self) -> Iterator[Spectrum]:
        return iter(self.spectra)

    def grid(self) -> Grid:
        columns = (
            Column("spectrum"),
            Column("eigenvalues", right=True),
            Column("from", right=True),
            Column("to", right=True),
            Column("apart from the bulk"),
            Column("predictions"),
        )
        rows = tuple(
            cells(
                one.name,
                f"{one.size:,}",
                f"{one.grid[0] + 4 * one.sigma:.4g}",
                f"{one.grid[-1] - 4 * one.sigma:.4g}",
                ", ".join(format_value(e.value, e.error) for e in one.outliers),
                kept(one.certificate),
            )
            for one in self.spectra
        )
        return Grid(*filled(columns, rows), (), self.below())

    def records(self) -> list[dict[str, Any]]:
        return [
            {"spectrum": one.name, "eigenvalue": at, "density": density, "stderr": error}
            for one in self.spectra
            for at, density, error in zip(one.grid, one.density, one.stderr, strict=True)
        ]

    def to_npz(self, path: str | os.PathLike[str]) -> None:
        """Arrays for numpy: grid_0, density_0, stderr_0, outliers_0 of the first, and so on."""
        arrays: dict[str, Any] = {}
        for number, one in enumerate(self.spectra):
            arrays |= {
                f"grid_{number}": one.grid,
                f"density_{number}": one.density,
                f"stderr_{number}": one.stderr,
                f"outliers_{number}": [e.value for e in one.outliers],
            }
        write_npz(path, arrays)
