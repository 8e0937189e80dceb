"""When products are compiled, and what happens when that goes wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spiritlevel as sl
from cases import BY_NAME, randn
from spiritlevel.curvature import engine as compiled


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A compiler that only notes that it was called."""
    seen: list[Any] = []

    def fake(function: Any, **_: Any) -> Any:
        seen.append(function)
        return function

    monkeypatch.setattr(torch, "compile", fake)
    return seen


def test_auto_compiles_once_the_work_has_paid_for_it(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = sl.hessian(BY_NAME["mlp"].objective(), compile="auto")
    v = randn(operator.size)
    before = [operator @ v, operator @ v, operator @ v]
    assert calls == []
    monkeypatch.setattr(compiled, "COMPILE_SECONDS", 0.0)
    monkeypatch.setattr(compiled, "COMPILE_PLAYED_SECONDS", 0.0)
    before.append(operator @ v)
    assert calls == [], "what is played is no faster on a CPU when it is compiled"
    monkeypatch.setattr(compiled, "COMPILED_FASTER", {"cpu"})
    after = [operator @ v, operator @ v]
    assert len(calls) == 1
    assert operator.remark is not None
    assert operator.remark() == "compiled (agrees with eager to 0e+00)"
    for product in (*before, *after):
        torch.testing.assert_close(product, before[0], rtol=0, atol=0)


def test_only_the_common_shape_is_compiled(calls: list[Any]) -> None:
    case = BY_NAME["mlp"]
    ragged = case.objective(microbatch=4)  # 10 examples: 4, 4 and 2
    plain = sl.hessian(ragged, compile=False)
    operator = sl.hessian(ragged, compile=True)
    for seed in range(3):
        v = randn(plain.size, seed=seed)
        torch.testing.assert_close(operator @ v, plain @ v)
    assert len(calls) == 1


@pytest.mark.parametrize("played", [True, False])
def test_a_compiler_that_fails_or_errs_is_not_used(
    played: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = BY_NAME["mlp"].objective()
    v = randn(objective.size)
    truth = sl.hessian(objective, compile=False) @ v

    def broken(function: Any, **_: Any) -> Any:
        raise RuntimeError("no compiler here")

    def wrong(function: Any, **_: Any) -> Any:
        return lambda *args: 2 * function(*args)

    if not played:
        monkeypatch.setattr(compiled, "record", _unrecordable)
    for compiler, remark in ((broken, "compiling failed (RuntimeError)"), (wrong, "differed by")):
        monkeypatch.setattr(torch, "compile", compiler)
        operator = sl.hessian(objective, compile=True)
        for _ in range(3):
            torch.testing.assert_close(operator @ v, truth, rtol=0, atol=0)
        assert operator.remark is not None
        assert remark in operator.remark()
        assert "products stayed eager" in operator.remark()


@pytest.mark.parametrize("played", [True, False])
def test_a_compiled_product_that_fails_later_is_left(
    played: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def once(function: Any, **_: Any) -> Any:
        def run(*args: Any) -> Any:
            calls.append(args)
            if len(calls) > 2:
                raise RuntimeError("compiled too often")
            return function(*args)

        return run

    monkeypatch.setattr(torch, "compile", once)
    if not played:
        monkeypatch.setattr(compiled, "record", _unrecordable)
    objective = BY_NAME["mlp"].objective()
    operator, plain = sl.hessian(objective, compile=True), sl.hessian(objective, compile=False)
    for seed in range(6):
        v = randn(objective.size, seed=seed)
        torch.testing.assert_close(operator @ v, plain @ v)
    assert len(calls) == 3
    assert operator.remark is not None
    assert "the compiled product failed (RuntimeError)" in operator.remark()


def test_columns_of_blocks_of_any_width_are_alike(calls: list[Any]) -> None:
    """To a compiler: strides are part of what it compiles for."""
    strides = []
    operator = sl.hessian(BY_NAME["mlp"].objective(), compile=True)
    for width in (1, 1, 1, 2, 5):
        operator @ torch.randn(operator.size, width, dtype=torch.float64)
    engine = operator.matvec.__self__  # type: ignore[attr-defined]
    for key, fast in engine.fast.items():
        engine.fast[key] = lambda v, *held, f=fast: strides.append(v.stride()) or f(v, *held)
    for width in (2, 5):
        operator @ torch.randn(operator.size, width, dtype=torch.float64)
    assert strides == [(1,)] * 7


def _unrecordable(*_: Any) -> Any:
    raise compiled.Unrecordable("for the sake of the test")


@pytest.mark.parametrize("played", [True, False])
@pytest.mark.parametrize("name", ["mlp", "cnn with BatchNorm", "GPT-2"])
def test_the_whole_product_is_one_graph(
    name: str, played: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.compile
    # the tracer alone: what it cannot see through would otherwise run eagerly, and silently
    monkeypatch.setattr(torch, "compile", lambda f, **kw: whole(f, **kw, backend="eager"))
    if not played:
        monkeypatch.setattr(compiled, "record", _unrecordable)
    objective = BY_NAME[name].objective()
    operator = sl.hessian(objective, compile=True)
    for seed in range(3):
        v = randn(objective.size, seed=seed)
        torch.testing.assert_close(operator @ v, sl.hessian(objective, compile=False) @ v)
    assert operator.remark is not None
    assert operator.remark().startswith("compiled (agrees with eager")
