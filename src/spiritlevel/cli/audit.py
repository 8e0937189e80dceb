"""spiritlevel audit."""

from __future__ import annotations

from typing import Annotated

import typer

from spiritlevel.cli.app import app, one_line_errors
from spiritlevel.cli.loading import objective_from
from spiritlevel.cli.options import (
    BudgetOption,
    CsvOption,
    DataOption,
    DeviceOption,
    DtypeOption,
    HeadsOption,
    JsonOption,
    LossOption,
    ModelOption,
    ModeOption,
    OnlyOption,
    OutOption,
    ParamsOption,
    RtolOption,
    SeedOption,
    TolOption,
    WeightsOption,
    given,
    names,
)
from spiritlevel.cli.writing import check_writable, write


@app.command()
def audit(
    model: ModelOption = None,
    data: DataOption = None,
    weights: WeightsOption = None,
    loss: LossOption = None,
    only: OnlyOption = None,
    strength: Annotated[float, typer.Option(help="Of the random rescaling, in log-scales.")] = 1.0,
    params: ParamsOption = None,
    heads: HeadsOption = None,
    mode: ModeOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    tol: TolOption = 1e-3,
    rtol: RtolOption = 0.1,
    budget: BudgetOption = 200,
    out: OutOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
) -> None:
    """Which flatness numbers mean something for this network: what moves, what does not.

    Without --model it runs on a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.audits.audit import DEFAULT
        from spiritlevel.audits.audit import audit as make

        check_writable(out=out, json=json, csv=csv)
        options = given(data=data, weights=weights, loss=loss, params=params, heads=heads)
        options |= given(mode=mode, dtype=dtype, device=device)
        found = make(
            objective_from(model, options, seed),
            DEFAULT if only is None else names(only) or [],
            strength=strength,
            seed=seed,
            tol=tol,
            rtol=rtol,
            budget=budget,
            way=out is not None or json is not None,
        )
        console.print(found)
        write(found, console, out=out, json=json, csv=csv)
