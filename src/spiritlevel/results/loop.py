"""One loop for everything long: a bar, refusals that are kept, and Ctrl-C that loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from spiritlevel.base.errors import SpiritlevelError, in_one_line, without_locals
from spiritlevel.base.interrupts import heard_interrupts
from spiritlevel.base.progress import bar

T = TypeVar("T")
# one bad row is not the table, also where it is a measure of the user's own
FAILURES = (Exception,)


@dataclass
class Done(Generic[T]):
    """What was made, what was refused and why, and how far it came if it was interrupted."""

    found: dict[str, T] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    interrupted: str = ""
    first: Exception | None = None  # of the refusals

    def refuse(self, name: str, error: Exception) -> None:
        self.refused[name] = in_one_line(error)
        self.first = self.first or without_locals(error)

    def require(self) -> Done[T]:
        """Itself; where all that was asked for was refused the one refusal, or all of them.

        Of several each may be the one that can be mended.
        """
        if self.found or self.first is None:
            return self
        names: dict[str, list[str]] = {}
        for name, why in self.refused.items():
            names.setdefault(why, []).append(name)
        if len(names) == 1:
            raise self.first
        each = (f"{', '.join(who)}: {why}" for why, who in names.items())
        raise SpiritlevelError("; ".join(each)) from self.first


def one_by_one(
    names: Sequence[str],
    make: Callable[[str], T],
    *,
    label: str,
    noun: str = "measures",
    refuses: tuple[type[Exception], ...] = (),
    keeps_parts: bool = False,
    least: int = 1,
) -> Done[T]:
    """make(name) for every name. Errors of the kinds `refuses` are kept; others are raised.

    After Ctrl-C what is done is returned. What came while it was made is not done, unless
    `keeps_parts`: then it says so itself. Less than `least` raises KeyboardInterrupt.
    """
    done: Done[T] = Done()
    with bar(len(names), label) as progress, heard_interrupts() as heard:
        try:
            for name in names:
                progress.set_postfix_str(name)
                try:
                    made = make(name)
                except refuses as error:
                    if heard:
                        raise
                    done.refuse(name, error)
                    continue
                if not heard or keeps_parts:
                    done.found[name] = made
                if heard:
                    raise KeyboardInterrupt
                progress.update()
        except BaseException as error:
            # inside torch, Ctrl-C may come out as a RuntimeError
            if not heard and not isinstance(error, KeyboardInterrupt):
                raise
            if len(done.found) < least:
                raise KeyboardInterrupt from error
            done.interrupted = f"{len(done.found)} of {len(names)} {noun} were done"
    return done


def beside(done: Done[Any], more: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What is shown beside that which is done, by name; what of it fails costs no more than itself.

    Where something was interrupted, there is nothing beside it.
    """
    if done.interrupted:
        return {}
    found = one_by_one(list(more), lambda n: more[n](), label="beside", refuses=FAILURES, least=0)
    done.refused |= found.refused
    if found.interrupted:
        lost = [f"no {name}" for name in more if name not in {**found.found, **found.refused}]
        done.interrupted = f"all that was asked for is done, but {', '.join(lost)}"
    return found.found
