"""spiritlevel compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    names,
)


@app.command()
def compare(
    checkpoints: Annotated[
        list[Path] | None, typer.Argument(help="The weights of two or more networks.")
    ] = None,
    model: ModelOption = None,
    data: DataOption = None,
    loss: LossOption = None,
    only: OnlyOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    json: Annotated[Path | None, typer.Option(help="Also write the comparison as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the comparison as CSV.")] = None,
) -> None:
    """Which of two checkpoints is flatter, and whether that survives their symmetries.

    Without --model it compares small nets trained on the 8x8 digits with batches of 16 and of 256.
    """
    with one_line_errors() as console:
        from spiritlevel.comparing import COMPARED
        from spiritlevel.comparing import compare as make

        check_writable(json=json, csv=csv)
        given = {"data": data, "loss": loss, "device": device, "dtype": dtype and dtype.value}
        given = {k: v for k, v in given.items() if v is not None}
        objectives = _objectives(checkpoints or [], model, given, seed)
        found = make(objectives, names(only) or COMPARED, seed=seed)
        console.print(found)
        if json is not None:
            found.to_json(json)
        if csv is not None:
            found.to_csv(csv)


def _objectives(
    checkpoints: list[Path], model: str | None, given: dict[str, Any], seed: int
) -> dict[str, Any]:
    """One objective per checkpoint, named as shortly as they can be told apart."""
    from spiritlevel.errors import SpiritlevelError

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
