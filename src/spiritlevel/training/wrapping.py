"""Any optimizer of torch inside of another one: the same groups, one state."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError, first_line

Closure = Callable[[], Any]
OWN = "spiritlevel"  # where the state_dict keeps what torch's optimizers do not have


class Wrapping(Optimizer):
    """An optimizer that hands its gradients to another one, the `base`.

    Both have the same param_groups, so a learning-rate scheduler on this one governs the base, and
    options of either may differ from group to group. Those that this one adds are in `own`, with
    their defaults; a subclass checks them in `check`, and names in `kept` the numbers and tensors
    of its own that belong into the state_dict.
    """

    kept: tuple[str, ...] = ()
    _built = False

    def __init__(
        self,
        params: Any,
        base: type[Optimizer],
        own: Mapping[str, Any],
        options: Mapping[str, Any],
        draws: torch.Generator | None = None,
    ) -> None:
        _only_bases(base, type(self).__name__)
        _known(base, options, [*own, *_arguments(type(self))], type(self).__name__)
        if "lr" in options and not isinstance(options["lr"], Tensor):
            doors.number("lr", options["lr"], 0)
        self.own = dict(own)
        groups = groups_of(params)
        for group in groups:
            self._complete(group)
        self.base = _made(base, groups, options)
        super().__init__(groups, {**self.own, **self.base.defaults})
        self._share(self.base.param_groups, self.base.state)
        self.draws = draws
        self._built = True

    def step(self, closure: Any = None) -> Any:
        """One step; a closure clears the gradients, calls backward() and returns the loss."""
        raise NotImplementedError

    def check(self, group: Mapping[str, Any]) -> None:
        """Refuse options of a group that cannot be used."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own, to the base too."""
        if not self._built:  # torch's constructor, for groups that the base has already
            return super().add_param_group(param_group)
        (group,) = groups_of([param_group])
        self._complete(group)
        return self.base.add_param_group(group)

    def _complete(self, group: dict[str, Any]) -> None:
        for name, default in self.own.items():
            group.setdefault(name, default)
        if "lr" in group and not isinstance(group["lr"], Tensor):
            doors.number("lr", group["lr"], 0)
        self.check(group)

    def _share(self, groups: list[dict[str, Any]], state: Any) -> None:
        """One list of groups and one state for both."""
        self.param_groups = self.base.param_groups = groups
        self.state = self.base.state = state

    # What is kept -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The base's state, the groups, and what is this optimizer's own."""
        own = {name: getattr(self, name) for name in self.kept}
        if self.draws is not None:
            own["draws"] = self.draws.get_state()
        return {**super().state_dict(), OWN: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another one of the same kind was."""
        doors.a("state_dict", state_dict, Mapping, "what state_dict() returned")
        wanted = {*self.kept, *(["draws"] if self.draws is not None else [])}
        own = state_dict.get(OWN)
        if not isinstance(own, Mapping) or set(own) != wanted:
            raise SpiritlevelError(
                f"state_dict is not that of {type(self).__name__}: its entry {OWN!r} should hold "
                f"{', '.join(sorted(wanted)) or 'nothing'}; give what its state_dict() returned"
            )
        super().load_state_dict(state_dict)
        self._share(self.param_groups, self.state)
        for name in self.kept:
            setattr(self, name, copy.deepcopy(own[name]))
        if self.draws is not None:
            self.draws.set_state(own["draws"].cpu())

    def __getstate__(self) -> dict[str, Any]:
        # hooks stay behind, as torch's do, and so does the step that a scheduler has counted
        return {
            name: value
            for name, value in self.__dict__.items()
            if name != "step" and not name.startswith("_optimizer_")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share(self.param_groups, self.state)

    # What subclasses share --------------------------------------------------------------------

    def weights(self) -> list[Tensor]:
        """All parameters, group by group."""
        return [p for group in self.param_groups for p in group["params"]]


def evaluated(closure: Closure) -> Any:
    """What a closure returns, with gradients, whatever the surroundings."""
    with torch.enable_grad():
        return closure()


def mean_loss(losses: Sequence[Any], shares: Sequence[float]) -> Any:
    """The mean of what closures returned; None where one returned nothing."""
    if any(loss is None for loss in losses):
        return None
    plain = [loss.detach() if isinstance(loss, Tensor) else loss for loss in losses]
    return sum(share * loss for share, loss in zip(shares, plain, strict=True))


def closures_of(closure: Any, count: int | None, name: str) -> list[Closure]:
    """One closure for each of `count` passes (None: as many as there are); one serves for all."""
    if callable(closure):
        return [closure] * (count or 1)
    if not isinstance(closure, Sequence) or not closure or not all(map(callable, closure)):
        raise SpiritlevelError(
            f"closure={doors.shown(closure)}: give a function that clears the gradients, "
            "calls backward() and returns the loss, or a list of such functions"
        )
    if count is not None and len(closure) != count:
        raise SpiritlevelError(
            f"closure has {len(closure)} functions; give one, or {count}, as {name} says"
        )
    return list(closure)


def groups_of(params: Any) -> list[dict[str, Any]]:
    """Parameters or groups of them, as groups that are our own."""
    if isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise SpiritlevelError(
            f"params is a {type(params).__name__}; give parameters, such as model.parameters(), or "
            "groups of them"
        )
    found: list[Any] = list(params)
    if not found:
        raise SpiritlevelError("params is empty; give parameters, such as model.parameters()")
    if not isinstance(found[0], Mapping):
        found = [{"params": found}]
    groups = []
    for group in found:
        if not isinstance(group, Mapping) or "params" not in group:
            raise SpiritlevelError(
                f'params holds {doors.shown(group)}; give groups such as {{"params": [...]}}'
            )
        inside = group["params"]
        groups.append({**group, "params": [inside] if isinstance(inside, Tensor) else list(inside)})
    return groups


def _only_bases(base: Any, name: str) -> None:
    """Refuse what is no class of optimizers, or one that calls closures itself."""
    if isinstance(base, Optimizer):
        kind = type(base).__name__
        raise SpiritlevelError(
            f"base is an instance of {kind}; give the class and its options: "
            f"{name}(params, torch.optim.{kind}, lr=...)"
        )
    if not isinstance(base, type) or not issubclass(base, Optimizer):
        raise SpiritlevelError(
            f"base={doors.shown(base)}: give a class of optimizers, such as torch.optim.SGD"
        )
    closure = inspect.signature(base.step).parameters.get("closure")
    if issubclass(base, Wrapping) or (closure and closure.default is inspect.Parameter.empty):
        raise SpiritlevelError(
            f"base={base.__name__} calls closures itself; give one that steps along the gradients "
            "there are, such as torch.optim.SGD"
        )


def _arguments(kind: type) -> list[str]:
    """The names that a constructor takes, but for those of any other."""
    found = inspect.signature(kind).parameters.values()
    return [p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _known(base: type[Optimizer], options: Mapping[str, Any], own: list[str], name: str) -> None:
    """Refuse options that neither has."""
    parameters = inspect.signature(base).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    theirs = [option for option in parameters if option != "params"]
    unknown = [option for option in options if option not in theirs]
    if unknown:
        there = ", ".join(dict.fromkeys(o for o in [*own, *theirs] if o not in ("params", "base")))
        raise SpiritlevelError(
            f"{', '.join(unknown)}: no option of {name} or {base.__name__}; there are: {there}"
        )


def _made(base: type[Optimizer], groups: list[Any], options: Mapping[str, Any]) -> Optimizer:
    """The base; what it refuses, in one line."""
    try:
        return base(groups, **options)
    except (TypeError, ValueError) as error:
        if isinstance(error, SpiritlevelError):
            raise
        raise SpiritlevelError(
            f"{base.__name__} refuses its params or options: {first_line(error)}"
        ) from None
