"""spiritlevel audit."""

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
    ModelOption,
    OnlyOption,
    SeedOption,
    WeightsOption,
    names,
)


@app.command()
def audit(
    model: ModelOption = None,
    data: DataOption = None,
    weights: WeightsOption = None,
    loss: LossOption = None,
    only: OnlyOption = None,
    strength: Annotated[float, typer.Option(help="Of the random rescaling, in log-scales.")] = 1.0,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the report, an HTML page, here.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the audit as JSON here.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV here.")] = None,
) -> None:
    """Which flatness numbers mean something for this network: what moves, what does not.

    Without --model it runs on a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.auditing import DEFAULT
        from spiritlevel.auditing import audit as make
        from spiritlevel.report import write_report

        check_writable(out=out, json=json, csv=csv)
        given = {"data": data, "weights": weights, "loss": loss, "device": device}
        given |= {"dtype": dtype and dtype.value}
        objective = objective_from(model, {k: v for k, v in given.items() if v is not None}, seed)
        found = make(objective, names(only) or DEFAULT, strength=strength, seed=seed)
        console.print(found)
        if json is not None:
            found.to_json(json)
        if csv is not None:
            found.to_csv(csv)
        if out is not None:
            write_report(found, out)
            console.print(f"written to  {out}", highlight=False)
