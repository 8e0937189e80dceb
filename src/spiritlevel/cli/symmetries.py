"""spiritlevel symmetries and sharpen."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli.app import app, escaped, one_line_errors
from spiritlevel.cli.loading import module_from, objective_from, refuse
from spiritlevel.cli.options import (
    DataOption,
    DeviceOption,
    DtypeOption,
    HeadsOption,
    JsonOption,
    LossOption,
    ModelOption,
    ModeOption,
    ParamsOption,
    SeedOption,
    WeightsOption,
    given,
)
from spiritlevel.cli.writing import check_writable, say_written

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from spiritlevel.symmetry import Group
    from spiritlevel.witnesses.sharpened import Sharpened

SCHEMA = 1


class Statistics(str, Enum):
    fixed = "fixed"
    free = "free"


class Eps(str, Enum):
    exact = "exact"
    approximate = "approximate"


@app.command()
def symmetries(
    model: ModelOption = None,
    data: DataOption = None,
    weights: WeightsOption = None,
    loss: LossOption = None,
    shape: Annotated[
        str | None, typer.Option(help='The shape of one input, such as "3,32,32"; or --data.')
    ] = None,
    statistics: Annotated[
        Statistics, typer.Option(help="Whether BatchNorm's running statistics move along.")
    ] = Statistics.fixed,
    eps: Annotated[
        Eps, typer.Option(help="Whether the eps of norms may break a scale a little.")
    ] = Eps.exact,
    params: ParamsOption = None,
    heads: HeadsOption = None,
    mode: ModeOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    json: JsonOption = None,
) -> None:
    """Every rescaling of a model's parameters that changes no prediction, layer by layer.

    Needs no data and no weights: the graph says it all. Without --model it runs on a small net.
    """
    with one_line_errors() as console:
        from spiritlevel.symmetry import symmetries as find

        check_writable(json=json)
        options = given(
            data=data, weights=weights, loss=loss, params=params, heads=heads, mode=mode
        )
        options |= given(dtype=dtype, device=device)
        made, notes = _subject(model, options, seed)
        example = None if shape is None else _example(shape, made, model, seed)
        found = find(made, example, statistics=statistics.value, eps=eps.value)
        console.print(found)
        _say(notes, console)
        if json is not None:
            _write(_of_group(found, notes), json, console)


@app.command()
def sharpen(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="The parameters to start from; the factory's if left out.")
    ] = None,
    target: Annotated[float, typer.Option(help="The least largest Hessian eigenvalue.")] = 1e6,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the twin's checkpoint here.")
    ] = None,
    model: ModelOption = None,
    data: DataOption = None,
    loss: LossOption = None,
    params: ParamsOption = None,
    heads: HeadsOption = None,
    mode: ModeOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    json: JsonOption = None,
) -> None:
    """A checkpoint with the same predictions whose minimum is as sharp as you like.

    Prints the certificate. Without --model it sharpens a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.base.errors import SpiritlevelError
        from spiritlevel.objective.checkpoints import save_weights
        from spiritlevel.witnesses.sharpened import sharpen as make

        if out is not None and out.suffix != ".safetensors":
            raise SpiritlevelError(f"-o is {out}; the twin is written as a .safetensors file")
        check_writable(out=out, json=json)
        if checkpoint is not None and model is None:
            raise SpiritlevelError(f"{checkpoint} needs --model, the factory of its module")
        options = given(
            data=data, weights=checkpoint, loss=loss, params=params, heads=heads, mode=mode
        )
        options |= given(dtype=dtype, device=device)
        objective = objective_from(model, options, seed)
        found = make(objective, target=target)
        console.print(
            f"largest Hessian eigenvalue  [bold]{found.before}[/] -> at least "
            f"[bold]{found.reached:.4g}[/]\nby scaling  {escaped(found.generator)}\n"
            f"predictions  {escaped(str(found.certificate))}",
            highlight=False,
        )
        _say(objective.notes, console)
        if json is not None:
            _write(_of_twin(found, target, objective.notes), json, console)
        if out is not None:
            save_weights(found.objective.module, found.objective.params, out)
            say_written(out, console)


def _subject(model: str | None, options: dict[str, Any], seed: int) -> tuple[Any, Sequence[str]]:
    """An Objective where there are data, else the module; and what to know about its weights."""
    if model is None or "data" in options:
        objective = objective_from(model, options, seed)
        return objective, objective.notes
    refuse(options, ("loss", "params", "mode", "dtype", "device"), "needs --data")
    return module_from(model, options)


def _example(shape: str, made: Any, model: str | None, seed: int) -> Tensor:
    import torch

    from spiritlevel.base.errors import SpiritlevelError
    from spiritlevel.objective import Objective

    if model is None:
        raise SpiritlevelError("--shape needs --model")
    if isinstance(made, Objective):
        raise SpiritlevelError("--shape does not apply: the data say what the model takes")
    try:
        sizes = [int(n) for n in shape.split(",")]
    except ValueError:
        raise SpiritlevelError(f'--shape is {shape!r}; write it as "3,32,32"') from None
    if min(sizes) < 1:
        raise SpiritlevelError(f"--shape is {shape!r}; sizes are positive")
    return torch.randn(2, *sizes, generator=torch.Generator().manual_seed(seed))


def _of_group(group: Group, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "dim": group.dim,
        "kinds": group.kinds,
        "generators": [{"name": g.name, "kind": g.kind} for g in group.generators],
        "blocked": [{"by": str(b), "parameters": list(b.parameters)} for b in group.blocks],
        "notes": list(notes),
    }


def _of_twin(found: Sharpened, target: float, notes: Sequence[str]) -> dict[str, Any]:
    certificate = found.certificate
    return {
        "schema": SCHEMA,
        "target": target,
        "before": found.before.to_dict(),
        "reached": found.reached,
        "generator": found.generator,
        "certificate": {
            "verdict": certificate.verdict,
            "relative": certificate.relative,
            "absolute": certificate.absolute,
        },
        "notes": list(notes),
    }


def _write(data: dict[str, Any], path: Path, console: Console) -> None:
    from spiritlevel.results.files import json_text, written

    written(json_text(data), path)
    say_written(path, console)


def _say(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.print(f"note: {note}", highlight=False, markup=False)
