"""The options that commands share, in groups: a command takes a group as one argument."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from spiritlevel.objective import Objective

LOSSES = ("cross_entropy", "mse_loss", "binary_cross_entropy_with_logits", "l1_loss", "huber_loss")
OnlyOption = Annotated[
    str | None,
    typer.Option(
        "--only",
        help="Measures, separated by commas; the usual ones if left out (measure --list has all).",
    ),
]

ListOption = Annotated[bool, typer.Option("--list", help="Print the measures, and do no more.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every measure there is.")]
FamilyOption = Annotated[
    str | None, typer.Option("--family", help="Families of measures, separated by commas.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what it would take, and do no more.")
]


class Precision(str, Enum):
    float32 = "float32"
    float64 = "float64"


class Mode(str, Enum):
    eval = "eval"
    train = "train"


@dataclass(frozen=True)
class Network:
    """A network, its data and its loss."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="package.module:factory that returns a Module or an Objective."
        ),
    ] = None
    data: Annotated[
        str | None, typer.Option("--data", help="package.module:factory that returns the data.")
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            help=f"package.module:function, or one of {', '.join(LOSSES)}; the first if left out.",
        ),
    ] = None
    params: Annotated[
        str | None,
        typer.Option("--params", help='Parameters by pattern, such as "layer1.*,head.*".'),
    ] = None
    heads: Annotated[
        str | None,
        typer.Option("--heads", help="Which of several outputs count, by name; all if left out."),
    ] = None
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="The mode of BatchNorm and dropout; eval if left out."),
    ] = None
    dtype: Annotated[
        Precision | None, typer.Option("--dtype", help="The precision; the model's if left out.")
    ] = None
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, ...; the model's if left out.")
    ] = None
    seed: Annotated[int, typer.Option("--seed", help="The seed of all that is random.")] = 0

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, as plain values."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            name: value.value if isinstance(value, Enum) else value
            for name, value in found.items()
            if value is not None and name not in ("model", "seed")
        }

    def objective(self, **more: Any) -> Objective:
        """What they describe; `more` is given beside them."""
        from spiritlevel.cli.loading import objective_from

        return objective_from(self.model, {**self.given, **more}, self.seed)


@dataclass(frozen=True)
class Trained(Network):
    """A network with its weights in a file."""

    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="A .safetensors, .pt or .ckpt file with the parameters."),
    ] = None


@dataclass(frozen=True)
class Course:
    """How the network came to be, for measures that ask."""

    init: Annotated[
        Path | None,
        typer.Option("--init", help="A file with the weights before training."),
    ] = None
    losses: Annotated[
        Path | None,
        typer.Option("--losses", help="A file of numbers: the training loss of every step."),
    ] = None


@dataclass(frozen=True)
class Accuracy:
    """How well numbers are to be known."""

    tol: Annotated[
        float, typer.Option("--tol", help="Relative residual of eigenvalues.", min=0)
    ] = 1e-3
    rtol: Annotated[
        float, typer.Option("--rtol", help="Relative standard error of traces.", min=0)
    ] = 0.05
    budget: Annotated[
        int, typer.Option("--budget", help="The most products for one measure.", min=1)
    ] = 200


@dataclass(frozen=True)
class Files:
    """Where a result is written."""

    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the report, an HTML page, here.")
    ] = None
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the result as JSON here.")
    ] = None
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write the table as CSV here.")] = (
        None
    )


Command = Callable[..., None]


def expanded(command: Command) -> Command:
    """The command with an option for every field of the groups that it takes."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        n: kind for n, kind in hints.items() if dataclasses.is_dataclass(kind)
    }
    own = inspect.signature(command).parameters.values()
    shown = [p.replace(annotation=hints[p.name]) for p in own if p.name not in groups]
    shown += [p for kind in groups.values() for p in _options(kind)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: kind(**{f.name: values.pop(f.name) for f in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **values)

    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(text.split()) for text in paragraphs)
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in shown}
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(f.name, kind, default=f.default, annotation=hints[f.name])
        for f in dataclasses.fields(group)
    ]


def names(only: str | None) -> list[str] | None:
    """The names in a list separated by commas; those between brackets are parameters."""
    if only is None:
        return None
    return [name.strip() for name in re.split(r",(?![^(]*\))", only) if name.strip()]
