"""spiritlevel symmetries and sharpen."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from spiritlevel.cli.app import app, escaped, one_line_errors
from spiritlevel.cli.loading import load, objective_from, refuse
from spiritlevel.cli.options import DataOption, DeviceOption, LossOption, ModelOption, SeedOption


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
    shape: Annotated[
        str | None, typer.Option(help='The shape of one input, such as "3,32,32"; or --data.')
    ] = None,
    statistics: Annotated[
        Statistics, typer.Option(help="Whether BatchNorm's running statistics move along.")
    ] = Statistics.fixed,
    eps: Annotated[
        Eps, typer.Option(help="Whether the eps of norms may break a scale a little.")
    ] = Eps.exact,
    seed: SeedOption = 0,
) -> None:
    """Every rescaling of a model's parameters that changes no prediction, layer by layer.

    Needs no data and no weights: the graph says it all. Without --model it runs on a small net.
    """
    with one_line_errors() as console:
        import torch

        from spiritlevel.errors import SpiritlevelError
        from spiritlevel.objective import Objective
        from spiritlevel.symmetry import symmetries as find

        example = None
        if model is None:
            refuse(
                {k: v for k, v in (("data", data), ("shape", shape)) if v},
                ("data", "shape"),
                "needs --model",
            )
            from spiritlevel.default import default_objective

            made: Any = default_objective(seed=seed)
        elif data is not None:
            made = objective_from(model, {"data": data}, seed)
        else:
            made = load(model, "--model")
        if shape is not None:
            if data is not None or isinstance(made, Objective):
                raise SpiritlevelError("--shape does not apply: the data say what the model takes")
            try:
                sizes = [int(n) for n in shape.split(",")]
            except ValueError:
                raise SpiritlevelError(f'--shape is {shape!r}; write it as "3,32,32"') from None
            example = torch.randn(2, *sizes, generator=torch.Generator().manual_seed(seed))
        console.print(find(made, example, statistics=statistics.value, eps=eps.value))


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
    device: DeviceOption = None,
    seed: SeedOption = 0,
) -> None:
    """A checkpoint with the same predictions whose minimum is as sharp as you like.

    Prints the certificate. Without --model it sharpens a small net trained on the 8x8 digits.
    """
    with one_line_errors() as console:
        from spiritlevel.checkpoints import save_weights
        from spiritlevel.errors import SpiritlevelError
        from spiritlevel.sharpening import sharpen as make

        if out is not None and out.suffix != ".safetensors":
            raise SpiritlevelError(f"-o is {out}; the twin is written as a .safetensors file")
        if out is not None and not out.resolve().parent.is_dir():
            raise SpiritlevelError(f"-o is {out}; there is no folder {out.resolve().parent}")
        if checkpoint is not None and model is None:
            raise SpiritlevelError(f"{checkpoint} needs --model, the factory of its module")
        given = {"data": data, "weights": checkpoint, "loss": loss, "device": device}
        objective = objective_from(model, {k: v for k, v in given.items() if v is not None}, seed)
        found = make(objective, target=target)
        console.print(
            f"largest Hessian eigenvalue  [bold]{found.before}[/] -> at least "
            f"[bold]{found.reached:.4g}[/]\nby scaling  {escaped(found.generator)}\n"
            f"predictions  {escaped(str(found.certificate))}",
            highlight=False,
        )
        if out is not None:
            save_weights(found.objective.module, found.objective.params, out)
            console.print(f"written to  {out}", highlight=False)
