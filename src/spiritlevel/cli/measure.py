"""spiritlevel measure."""

from __future__ import annotations

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
def measure(
    model: ModelOption = None,
    data: DataOption = None,
    weights: WeightsOption = None,
    loss: LossOption = None,
    only: OnlyOption = None,
    params: ParamsOption = None,
    heads: HeadsOption = None,
    mode: ModeOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    tol: TolOption = 1e-3,
    rtol: RtolOption = 0.05,
    budget: BudgetOption = 200,
    out: OutOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
) -> None:
    """Curvature of a model at its parameters: value, error, cost.

    Without --model it runs on a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.measures import measure as fill

        check_writable(out=out, json=json, csv=csv)
        options = given(data=data, weights=weights, loss=loss, params=params, heads=heads)
        options |= given(mode=mode, dtype=dtype, device=device)
        objective = objective_from(model, options, seed)
        table = fill(objective, names(only), seed=seed, tol=tol, rtol=rtol, budget=budget)
        console.print(table)
        write(table, console, out=out, json=json, csv=csv)
