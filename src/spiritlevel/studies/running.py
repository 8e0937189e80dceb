"""One job: networks are trained, then measured; what is done is handed over at once."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from spiritlevel.base.doors import shown
from spiritlevel.base.errors import SpiritlevelError, in_one_line, writable
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.interrupts import parts
from spiritlevel.base.scope import fixed_rng
from spiritlevel.measures.given import before_training, refuse_given
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.orbit import representative
from spiritlevel.results.history import History
from spiritlevel.studies.messages import Ask, Died, Ended, Finished, Measured, Message, Task
from spiritlevel.studies.study import Study, Trained, Wanted

NOTHING = Estimate(math.nan)
NOT_ASKED = SpiritlevelError("nothing is asked of this network")
ROUNDING = 1e-3  # of each number, where a training is repeated on a GPU or with other threads


def work(study: Study, task: Task) -> Iterator[Message]:
    """Train what has to be, and say what came of it; then measure it."""
    try:
        yield from _worked(study, task)
    except torch.OutOfMemoryError as error:  # others are at work on this GPU: later, again
        yield Died(_reason(error))
        return
    yield Ended()


def _worked(study: Study, task: Task) -> Iterator[Message]:
    begin = time.perf_counter()
    with undisturbed(task[0].run.seed):
        trained = _stored(study, task) or _again(study, task)
    took, failed = (time.perf_counter() - begin) / len(task), set()
    for ask, found in zip(task, trained, strict=True):
        if ask.missing:
            done = _finished(study, ask, found, took)
            failed |= {ask.run.key} if done.error else set()
            yield done
    for ask, found in zip(task, trained, strict=True):
        if isinstance(found, Trained):
            yield from () if ask.run.key in failed else _measured(study, ask, found)
        elif not ask.missing:  # it had been trained before
            yield from (_lost(ask, label, found) for label in ask.labels)


@contextlib.contextmanager
def undisturbed(seed: int) -> Iterator[None]:
    """What is done inside depends on its seed, not on what was done in this process before."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    device, precision = torch.get_default_device(), torch.get_float32_matmul_precision()
    try:
        with fixed_rng(seed), parts():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(strict, warn_only=lenient)
        torch.set_float32_matmul_precision(precision)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _freed() -> None:
    """Give back what this process only keeps of the GPU for later: others are at work on it too."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# Training ---------------------------------------------------------------------------------------


def _again(study: Study, task: Task) -> list[Trained | BaseException]:
    """Where a training is repeated for measures, what comes out must be the network of the row."""
    found = _trained(study, task)
    pairs = zip(task, found, strict=True)
    return [_other(ask, one) or one if isinstance(one, Trained) else one for ask, one in pairs]


def _other(ask: Ask, found: Trained) -> SpiritlevelError | None:
    """Each number is measured by itself: nobody knows what is little of a loss or of a share."""
    for name, before in (ask.numbers or {}).items():
        now = found.numbers.get(name, math.nan)
        same = math.isclose(now, before, rel_tol=ROUNDING)
        if not same and not (math.isnan(now) and math.isnan(before)):
            return SpiritlevelError(
                f"the training was repeated for this measure, and {name} is {now:.6g}, not "
                f"{before:.6g} as before: give objective and keep_weights=True, or a train that "
                "comes out the same"
            )
    return None


def _trained(study: Study, task: Task) -> list[Trained | BaseException]:
    """One answer for every run; an error is an answer."""
    pairs = [(dict(ask.run.config), ask.run.seed) for ask in task]
    try:
        if study.train_many is None:
            found: list[Any] = [study.train(*pair) for pair in pairs]
        else:
            found = list(study.train_many(pairs))
        if len(found) != len(pairs):
            raise SpiritlevelError(
                f"train_many returned {len(found)} networks of {len(pairs)}: return one for each"
            )
    except (torch.OutOfMemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # asyncio and trio cancel by errors that are no Exception
        return [error] * len(pairs)
    return [_checked(study, one) for one in found]


def _checked(study: Study, found: Any) -> Trained | BaseException:
    if isinstance(found, BaseException):
        return found
    name = "train" if study.train_many is None else "train_many"
    try:
        if not isinstance(found, Trained) or not isinstance(found.objective, Objective):
            raise SpiritlevelError(f"{name} returned {shown(found)}: return Trained(objective, ..)")
        numbers = _numbers(name, found.numbers)
        if study.outcome not in numbers:
            there = ", ".join(numbers) or "none"
            raise SpiritlevelError(
                f"the numbers of {name} have no {study.outcome!r}, the outcome of the study; there "
                f"are: {there}"
            )
        refuse_given(found.objective, found.init, found.losses)
        if found.history is not None and not isinstance(found.history, History):
            raise SpiritlevelError(
                f"{name} returned history={shown(found.history)}: give a History"
            )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of what was handed over, which may be anything
        return error
    return replace(found, numbers=numbers)


def _numbers(name: str, given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise SpiritlevelError(f"{name} returned numbers={shown(given)}: give a dict of numbers")
    try:
        return {writable(str(key)): _number(value) for key, value in given.items()}
    except (TypeError, ValueError, OverflowError):
        raise SpiritlevelError(f"{name} returned numbers={shown(given)}: give numbers") from None


def _number(value: Any) -> float:
    if isinstance(value, str):
        raise ValueError(value)
    return float(value)


def _finished(study: Study, ask: Ask, found: Trained | BaseException, took: float) -> Finished:
    host = platform.node()
    if not isinstance(found, Trained):
        return Finished(ask.run, _reason(found), seconds=took, host=host)
    try:
        history = None if found.history is None else json.dumps(found.history.to_dict())
        weights = _packed(found) if study.keep_weights else None
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # what cannot be written down is lost
        return Finished(ask.run, _reason(error), seconds=took, host=host)
    return Finished(ask.run, "", found.numbers, history, weights, took, host)


def _reason(error: BaseException) -> str:
    """In one line, and where it was raised if it is not ours."""
    last = (traceback.extract_tb(error.__traceback__) or [None])[-1]
    if last is None or isinstance(error, SpiritlevelError):
        return in_one_line(error)
    return writable(f"{in_one_line(error)} ({Path(last.filename).name}, line {last.lineno})")


# Weights ----------------------------------------------------------------------------------------


def _packed(found: Trained) -> bytes:
    """Parameters, buffers, those before training and the losses: all that measures ask for."""
    objective = found.objective
    held = {f"params.{name}": tensor for name, tensor in objective.params.items()}
    held |= {f"buffers.{name}": tensor for name, tensor in objective.buffers.items()}
    if found.init is not None:
        held["init"] = before_training(objective, found.init)
    if found.losses is not None:
        held["losses"] = torch.as_tensor(found.losses, dtype=torch.float64)
    apart = {name: t.detach().cpu().contiguous().clone() for name, t in held.items()}
    return save(apart, {"loss": repr(objective.value())})


def _stored(study: Study, task: Task) -> list[Trained | BaseException] | None:
    """The networks at the stored weights; None where the training has to be repeated."""
    if study.objective is None or any(ask.missing for ask in task):
        return None
    found: list[Trained | BaseException] = []
    for ask in task:
        one = _at_weights(study.objective, ask) if ask.labels else NOT_ASKED
        if one is None:
            return None
        found.append(one)
    return found


def _at_weights(make: Callable[..., Objective], ask: Ask) -> Trained | BaseException | None:
    try:
        with fixed_rng(ask.run.seed):
            objective = make(dict(ask.run.config), ask.run.seed)
        if not isinstance(objective, Objective):
            raise SpiritlevelError(
                f"objective returned {shown(objective)}: return the Objective of a configuration"
            )
    except (torch.OutOfMemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return error
    try:
        return None if ask.weights is None else _unpacked(objective, ask.weights)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # of another network, or a broken file: the training says what is wrong
        return None


def _unpacked(objective: Objective, weights: bytes) -> Trained | None:
    """Only if its loss is to the last bit the one that was stored: else it is another network."""
    held = load(weights)
    size = int.from_bytes(weights[:8], "little")
    told = json.loads(weights[8 : 8 + size])["__metadata__"]
    params, buffers = (
        {n.removeprefix(k): t for n, t in held.items() if n.startswith(k)}
        for k in ("params.", "buffers.")
    )
    if params.keys() != objective.params.keys():
        return None
    there = objective.at(params, buffers=buffers)
    losses = held["losses"].tolist() if "losses" in held else None
    init = held["init"].to(there.vector) if "init" in held else None
    return Trained(there, {}, init, losses) if repr(there.value()) == told["loss"] else None


# Measures ---------------------------------------------------------------------------------------


def _measured(study: Study, ask: Ask, found: Trained) -> Iterator[Measured]:
    """Every measure that is missing; those that lacked memory once more after all others."""
    points = _Points(found, {"compile": False, **study.settings})
    lacking = []
    for label in ask.labels:
        try:
            yield _one(study, ask, label, points)
        except torch.OutOfMemoryError:
            lacking.append(label)
            _freed()
    for label in lacking:
        try:
            yield _one(study, ask, label, points)
        except torch.OutOfMemoryError as error:
            yield _lost(ask, label, error)
    _freed()


class _Points:
    """Where a network is measured: as it was trained, and at the representative of its orbit."""

    def __init__(self, found: Trained, settings: dict[str, Any]) -> None:
        self.here = found.objective
        self.given = {**settings, "init": found.init, "losses": found.losses}
        self.common: dict[bool, dict[str, Any]] = {False: {}, True: {}}

    @functools.cached_property
    def there(self) -> Objective:
        return representative(self.here).objective

    def instruments(self, moved: bool) -> Apart:
        return Apart(self.there if moved else self.here, self.common[moved], self.given)


def _one(study: Study, ask: Ask, label: str, points: _Points) -> Measured:
    wanted, begin = study.wanted[label], time.perf_counter()
    try:
        with undisturbed(ask.run.seed):
            tools = points.instruments(wanted.moved)
            rows = _rows(wanted, wanted.asked.entry.function(tools, **wanted.asked.parameters))
    except (torch.OutOfMemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return _lost(ask, label, error, time.perf_counter() - begin)
    took, (first, *_) = time.perf_counter() - begin, rows
    rows = {k: replace(e, seconds=took * (k == first)) for k, e in rows.items()}
    return Measured(ask.run.key, label, rows)


def _rows(wanted: Wanted, found: Any) -> dict[str, Estimate]:
    if isinstance(found, Estimate):
        return {wanted.label: found}
    name, far = wanted.asked.label, wanted.label.removeprefix(wanted.asked.label)
    if not found:
        raise SpiritlevelError(f"{name} has no numbers for this network")
    return {f"{name}.{part}{far}": estimate for part, estimate in found.items()}


def _lost(ask: Ask, label: str, error: BaseException, took: float = 0.0) -> Measured:
    ours = isinstance(error, SpiritlevelError)
    nothing = {label: replace(NOTHING, seconds=took)}
    return Measured(ask.run.key, label, nothing, _reason(error), failed=not ours)


def _once(name: str) -> Any:
    """A computation of Instruments, made by an instrument of its own and shared by all."""

    def made(self: Apart) -> Any:
        if name not in self.common:
            fresh = Apart(self.objective, self.common, self.given)
            self.common[name] = getattr(Instruments, name).func(fresh)
        return self.common[name]

    return functools.cached_property(made)


class Apart(Instruments):
    """Instruments whose results do not depend on what was measured before.

    An operator records its products, and the next ones may be rounded otherwise. So every measure
    has its own, and what several share is made by one that made nothing else: a study that is
    resumed, or to which a measure is added, has the same numbers to the last bit.
    """

    def __init__(
        self, objective: Objective, common: dict[str, Any], given: Mapping[str, Any]
    ) -> None:
        super().__init__(objective, **given)
        self.common, self.given = common, given

    group = _once("group")
    diagonal = _once("diagonal")
    whole = _once("whole")
    gradient = _once("gradient")
    extremes = _once("extremes")
    probes = _once("probes")
    least_norm = _once("least_norm")
    least_trace = _once("least_trace")
