"""spiritlevel compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    given,
    names,
)
from spiritlevel.cli.writing import check_writable, write


@app.command()
def compare(
    checkpoints: Annotated[
        list[Path] | None, typer.Argument(help="The weights of two or more networks.")
    ] = None,
    model: ModelOption = None,
    data: DataOption = None,
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
    """Which of two checkpoints is flatter, and whether that survives their symmetries.

    Without --model it compares small nets trained on the 8x8 digits with batches of 16 and of 256.
    """
    with one_line_errors() as console:
        from spiritlevel.audits.comparison import COMPARED
        from spiritlevel.audits.comparison import compare as make

        check_writable(out=out, json=json, csv=csv)
        options = given(
            data=data, loss=loss, params=params, heads=heads, mode=mode, dtype=dtype, device=device
        )
        found = make(
            _objectives(checkpoints or [], model, options, seed),
            COMPARED if only is None else names(only) or [],
            seed=seed,
            tol=tol,
            rtol=rtol,
            budget=budget,
        )
        console.print(found)
        write(found, console, out=out, json=json, csv=csv)


def _objectives(
    checkpoints: list[Path], model: str | None, given: dict[str, Any], seed: int
) -> dict[str, Any]:
    """One objective per checkpoint, named as shortly as they can be told apart."""
    from spiritlevel.base.errors import SpiritlevelError

    if model is None:
        if checkpoints:
            raise SpiritlevelError(f"{checkpoints[0]} needs --model, the factory of its module")
        return {
            f"batch {size}": objective_from(None, {**given, "batch": size}, seed)
            for size in (16, 256)
        }
    if len(checkpoints) < 2:
        raise SpiritlevelError("compare needs at least two checkpoints: compare a.pt b.pt --model")
    short = [path.stem for path in checkpoints]
    labels = short if len(set(short)) == len(short) else [str(path) for path in checkpoints]
    if len(set(labels)) < len(labels):
        raise SpiritlevelError("compare got the same checkpoint twice")
    return {
        label: objective_from(model, {**given, "weights": path}, seed)
        for label, path in zip(labels, checkpoints, strict=True)
    }
