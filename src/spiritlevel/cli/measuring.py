"""spiritlevel measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.loading import check_writable, objective_from
from spiritlevel.cli.options import (
    DataOption,
    DeviceOption,
    DtypeOption,
    LossOption,
    Mode,
    ModelOption,
    OnlyOption,
    SeedOption,
    WeightsOption,
    names,
)


@app.command()
def measure(
    model: ModelOption = None,
    data: DataOption = None,
    weights: WeightsOption = None,
    loss: LossOption = None,
    only: OnlyOption = None,
    params: Annotated[
        str | None, typer.Option(help='Parameters by pattern, such as "layer1.*,head.*".')
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="The mode of BatchNorm and dropout; eval if left out.")
    ] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    tol: Annotated[float, typer.Option(help="Relative residual of eigenvalues.")] = 1e-3,
    rtol: Annotated[float, typer.Option(help="Relative standard error of traces.")] = 0.05,
    budget: Annotated[int, typer.Option(help="The most products for one measure.")] = 200,
    json: Annotated[Path | None, typer.Option(help="Also write the table as JSON here.")] = None,
) -> None:
    """Curvature of a model at its parameters: value, error, cost.

    Without --model it runs on a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.measures import measure as fill

        check_writable(json=json)
        given = {"data": data, "weights": weights, "loss": loss, "params": params}
        given |= {"mode": mode and mode.value, "dtype": dtype and dtype.value, "device": device}
        objective = objective_from(model, {k: v for k, v in given.items() if v is not None}, seed)
        table = fill(objective, names(only), seed=seed, tol=tol, rtol=rtol, budget=budget)
        console.print(table)
        if json is not None:
            table.to_json(json)
