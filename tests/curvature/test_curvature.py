"""Hessian, Gauss-Newton and Fisher against closed forms, dense matrices and each other."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import spiritlevel as sl
from cases import BY_NAME, CASES, SPLITS, TOLERANCE, Case, labels, mlp, randn, splits, tokens

close = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-10)


def linear(inputs: int = 4, outputs: int = 3, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias).double()


# Closed forms ---------------------------------------------------------------------------------


def test_linear_regression_has_hessian_2_over_n_d_xx() -> None:
    x, y = randn(7, 4), randn(7, 3)
    objective = sl.Objective(linear(), (x, y), F.mse_loss)
    exact = torch.kron(torch.eye(3, dtype=torch.float64), 2 / (7 * 3) * x.T @ x)
    for operator in (sl.hessian(objective), sl.ggn(objective), sl.fisher(objective)):
        close(operator.dense(), exact)
    top = sl.eigenvalues(sl.hessian(objective), k=2, tol=1e-10)
    assert [float(e) for e in top] == pytest.approx(_top(exact, 2), rel=1e-8)  # the same one, twice
    assert float(sl.trace(sl.hessian(objective))) == pytest.approx(float(exact.trace()), rel=1e-8)


def _top(matrix: Tensor, k: int) -> list[float]:
    return torch.linalg.eigvalsh(matrix).flip(0)[:k].tolist()


def test_logistic_regression_has_hessian_x_diag_p_x() -> None:
    x, y = randn(9, 4), labels(9, 1, classes=2).double()
    model = linear(4, 1)
    objective = sl.Objective(model, (x, y), F.binary_cross_entropy_with_logits)
    p = torch.sigmoid(model(x)).detach()
    exact = (x * p * (1 - p)).T @ x / 9
    for operator in (sl.hessian(objective), sl.ggn(objective), sl.fisher(objective)):
        close(operator.dense(), exact)
    assert float(sl.trace(sl.hessian(objective))) == pytest.approx(float(exact.trace()), rel=1e-8)


def test_softmax_regression_has_hessian_of_kronecker_products() -> None:
    x, y = randn(9, 4), labels(9)
    model = linear()
    objective = sl.Objective(model, (x, y), F.cross_entropy)
    p = model(x).softmax(1).detach()
    exact = sum(
        torch.kron(torch.diag(pi) - torch.outer(pi, pi), torch.outer(xi, xi))
        for pi, xi in zip(p, x, strict=True)
    )
    exact = torch.as_tensor(exact) / 9
    for operator in (sl.hessian(objective), sl.ggn(objective), sl.fisher(objective)):
        close(operator.dense(), exact)
    ends = sl.eigenvalues(sl.hessian(objective), which="both", tol=1e-10, relative_to="norm")
    assert float(ends[0]) == pytest.approx(_top(exact, 1)[0], rel=1e-8)
    scores = p - F.one_hot(y, 3)
    rows = torch.einsum("ni,nj->nij", scores, x).reshape(9, -1)
    close(sl.fisher(objective, "empirical").dense(), rows.T @ rows / 9)


# Dense oracles --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hessian_equals_dense(case: Case) -> None:
    tolerance = TOLERANCE.get(case.name, 1e-8)
    operator = sl.hessian(case.objective())
    exact = case.dense_hessian()
    torch.testing.assert_close(
        operator.dense(), exact, rtol=0, atol=tolerance * float(exact.norm())
    )
    assert operator.check is not None
    assert operator.check < 1e-3


@pytest.mark.parametrize("rung", ["jvp of gradient", "double backward", "difference of gradients"])
def test_every_rung_gives_the_same_hessian(rung: str) -> None:
    case = BY_NAME["mlp"]
    operator = sl.hessian(case.objective(), rung=rung)
    torch.testing.assert_close(operator.dense(), case.dense_hessian(), rtol=0, atol=1e-6)
    assert operator.how == rung


def test_the_ladder_falls_where_jvp_fails() -> None:
    for name in ("LSTM", "mean squared error"):
        operator = sl.hessian(BY_NAME[name].objective(dtype=torch.float32))
        fell = "double backward; not jvp of gradient: it does not run here ("
        assert operator.how.startswith(fell)
    # of what torch says the first sentence
    assert operator.how.endswith("(ZeroTensors are immutable)")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ggn_is_positive_and_equals_jacobian_form(case: Case) -> None:
    objective = case.objective()
    found = sl.ggn(objective).dense()
    exact = torch.zeros_like(found)
    with objective.smooth():
        for batch in objective.batches:
            out = objective.outputs(objective.params, batch).detach()
            rows = _jacobian(objective, batch)
            bend = torch.autograd.functional.hessian(
                lambda z, b=batch: objective.loss.on_outputs(z, b)[0],  # type: ignore[misc]
                out,
            )
            bend = torch.as_tensor(bend).reshape(out.numel(), out.numel())
            exact += rows.T @ bend @ rows / objective.count
    tolerance = TOLERANCE.get(case.name, 1e-8) * float(exact.norm())
    torch.testing.assert_close(found, exact, rtol=0, atol=tolerance)
    assert torch.linalg.eigvalsh((found + found.T) / 2)[0] > -1e-8 * found.norm()


def _jacobian(objective: sl.Objective, batch: object) -> Tensor:
    """d outputs / d parameters by plain reverse mode, one output at a time."""
    point = {k: v.clone().requires_grad_() for k, v in objective.params.items()}
    out = objective.outputs(point, batch).reshape(-1)
    rows = [
        torch.autograd.grad(o, list(point.values()), retain_graph=True, materialize_grads=True)
        for o in out
    ]
    return torch.stack([torch.cat([piece.reshape(-1) for piece in row]) for row in rows])


def test_output_gradients_are_the_jacobian_gram() -> None:
    objective = BY_NAME["mlp"].objective()
    rows = torch.cat([_jacobian(objective, batch) for batch in objective.batches])
    close(sl.output_gradients(objective).dense(), rows.T @ rows / objective.examples)


# Fisher ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "mean squared error", "GPT-2"])
def test_true_fisher_is_ggn_for_log_likelihoods(name: str) -> None:
    objective = BY_NAME[name].objective()
    v = randn(objective.size, 6, seed=6)  # matrices that differ differ on random vectors
    close(sl.fisher(objective) @ v, sl.ggn(objective) @ v)


def test_empirical_fisher_is_the_gram_of_per_example_gradients() -> None:
    objective = BY_NAME["mlp"].objective()
    rows = objective.per_example_gradients()
    close(sl.fisher(objective, "empirical").dense(), rows.T @ rows / objective.examples)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.mse_loss, F.binary_cross_entropy_with_logits])
def test_sampled_fisher_averages_to_the_true_one(loss: object) -> None:
    y = {F.cross_entropy: labels(6), F.mse_loss: randn(6, 3)}.get(loss, labels(6, 3).clamp(max=1))  # type: ignore[call-overload]
    y = y if loss is F.cross_entropy else y.double()
    objective = sl.Objective(linear(), (randn(6, 4), y), loss)  # type: ignore[arg-type]
    v = randn(objective.size, seed=5)
    truth = v @ (sl.fisher(objective) @ v)
    draws = torch.stack([v @ (sl.fisher(objective, "sampled", seed=s) @ v) for s in range(300)])
    assert abs(draws.mean() - truth) < 4 * draws.std() / 300**0.5
    assert draws.std() > 0


def test_weights_count_once_in_fisher_and_ggn() -> None:
    """A weight of 2 is the example twice."""
    x, y = randn(5, 4), labels(5)
    w = torch.tensor([1, 2, 1, 0, 1]).double()
    twice = torch.repeat_interleave(torch.arange(5), w.long())
    weighted = sl.Objective(mlp().double(), (x, y, w), F.cross_entropy)
    repeated = sl.Objective(mlp().double(), (x[twice], y[twice]), F.cross_entropy)
    repeated = repeated.at(weighted.params)
    for make in (sl.hessian, sl.ggn, sl.fisher, partial(sl.fisher, kind="empirical")):
        close(make(weighted).dense(), make(repeated).dense())


def test_fisher_follows_the_reduction_and_refuses_what_is_no_likelihood() -> None:
    x, y = randn(6, 4), randn(6, 3)
    summed = sl.Objective(linear(), (x, y), nn.MSELoss(reduction="sum"))
    close(sl.fisher(summed).dense(), sl.ggn(summed).dense())
    v = randn(summed.size, seed=5)
    draws = torch.stack([v @ (sl.fisher(summed, "sampled", seed=s) @ v) for s in range(300)])
    truth = v @ (sl.fisher(summed) @ v)
    assert abs(draws.mean() - truth) < 4 * draws.std() / 300**0.5
    smooth = partial(F.cross_entropy, label_smoothing=0.1)
    with pytest.raises(sl.SpiritlevelError, match="no meaning with label_smoothing"):
        sl.fisher(sl.Objective(linear(), (x, labels(6)), smooth))


def test_ggn_where_functions_know_no_transforms() -> None:
    class Activation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return OldTanh.apply(x)  # type: ignore[return-value]

    case = BY_NAME["mlp"]
    model = mlp(Activation).double()
    model.load_state_dict(case.model().state_dict())
    found = sl.ggn(sl.Objective(model, case.data(), F.cross_entropy))
    assert found.how.startswith("double vjp; not forward mode:")
    close(found.dense(), sl.ggn(case.objective()).dense())


class OldTanh(torch.autograd.Function):
    """tanh without setup_context, twice differentiable."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        out = x.tanh()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, slope):  # type: ignore[no-untyped-def]
        (out,) = ctx.saved_tensors
        return slope * (1 - out**2)


# Laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("make", [sl.hessian, sl.ggn, sl.fisher], ids=lambda m: m.__name__)
def test_batch_splits_change_nothing(make: object, sizes: list[int]) -> None:
    case = BY_NAME["mlp"]
    whole = make(case.objective()).dense()  # type: ignore[operator]
    split = sl.Objective(case.model(), list(splits(case.data(), sizes)), case.loss, microbatch=10)
    torch.testing.assert_close(make(split).dense(), whole, rtol=0, atol=1e-12)  # type: ignore[operator]


@pytest.mark.parametrize("sizes", [[4], [2, 2], [3, 1], [1] * 4], ids=str)
def test_batch_splits_of_text_are_weighted_by_tokens(sizes: list[int]) -> None:
    case = BY_NAME["GPT-2"]
    data = list(splits(tokens(), sizes))
    split = sl.Objective(case.model(), data, microbatch=max(sizes))
    v = randn(split.size, 6, seed=6)  # matrices that differ differ on random vectors
    torch.testing.assert_close(sl.hessian(split) @ v, case.dense_hessian() @ v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("make", [sl.hessian, sl.ggn, sl.fisher, sl.output_gradients])
def test_operators_are_symmetric(case: Case, make: object) -> None:
    operator = make(case.objective())  # type: ignore[operator]
    block = operator @ randn(operator.size, 4, seed=6)
    u = randn(operator.size, 4, seed=6)
    gram = u.T @ block
    tolerance = TOLERANCE.get(case.name, 1e-10)
    torch.testing.assert_close(gram, gram.T, rtol=0, atol=tolerance * float(gram.norm()))


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_products_are_linear_and_blocks_are_columns(seed: int, a: float, b: float) -> None:
    operator = sl.hessian(BY_NAME["relu mlp"].objective())
    u, v = randn(operator.size, 2, seed=seed).unbind(1)
    together = operator @ (a * u + b * v)
    close(together, a * (operator @ u) + b * (operator @ v), atol=1e-9)
    close(operator @ torch.stack([u, v], 1), torch.stack([operator @ u, operator @ v], 1))


def test_restricted_is_the_block_and_scaled_is_congruent() -> None:
    objective = BY_NAME["mlp"].objective()
    operator = sl.hessian(objective)
    dense = operator.dense()
    span = objective.spans["2.weight"]
    block = sl.restricted(operator, "2.weight")
    close(block.dense(), dense[span, span])
    assert block.spans == {"2.weight": slice(0, span.stop - span.start)}
    assert sl.restricted(operator, ["0.*"]).size == objective.spans["0.bias"].stop
    d = randn(operator.size, seed=7).exp()
    close(sl.scaled(operator, d).dense(), d[:, None] * dense * d)
    close(sl.scaled(block, d[span]).dense(), d[span, None] * dense[span, span] * d[span])


def test_params_choose_a_block_of_the_hessian() -> None:
    case = BY_NAME["mlp"]
    whole = case.objective()
    part = case.objective(params="2.*")
    places = torch.cat([torch.arange(whole.size)[whole.spans[n]] for n in part.spans])
    close(sl.hessian(part).dense(), sl.hessian(whole).dense()[places][:, places])


def test_gradient_and_hessian_laws_of_rescaling() -> None:
    """f(D theta) = f(theta): the Hessian at D theta is D^-1 H D^-1 (Dinh et al., 2017)."""
    objective = BY_NAME["relu mlp"].objective()
    scale = {name: torch.ones_like(p) for name, p in objective.params.items()}
    scale["0.weight"], scale["0.bias"] = scale["0.weight"] * 2, scale["0.bias"] * 2
    scale["2.weight"] = scale["2.weight"] / 2
    moved = objective.at({name: p * scale[name] for name, p in objective.params.items()})
    d = torch.cat([s.reshape(-1) for s in scale.values()])
    close(moved.predictions(), objective.predictions())
    close(moved.gradient(), objective.gradient() / d)
    close(sl.hessian(moved).dense(), sl.scaled(sl.hessian(objective), 1 / d).dense())


# Functions without second derivatives --------------------------------------------------------


class Once(OldTanh):
    """tanh, whose backward pass cannot be differentiated."""

    backward = staticmethod(  # type: ignore[assignment]
        torch.autograd.function.once_differentiable(OldTanh.backward)
    )


class Detached(OldTanh):
    """tanh, whose double backward is silently wrong: the slope is treated as a constant."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        out = x.tanh()
        ctx.slope = 1 - out.detach() ** 2
        return out

    @staticmethod
    def backward(ctx, slope):  # type: ignore[no-untyped-def]
        return slope * ctx.slope


@pytest.mark.parametrize("function", [Once, Detached])
def test_functions_without_second_derivatives_fall_to_differences(
    function: type[torch.autograd.Function],
) -> None:
    class Activation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function.apply(x)  # type: ignore[return-value]

    case = BY_NAME["mlp"]
    model = mlp(Activation).double()
    model.load_state_dict(case.model().state_dict())
    operator = sl.hessian(sl.Objective(model, case.data(), F.cross_entropy))
    assert operator.how.startswith("difference of gradients; not jvp of gradient:")
    assert "; not double backward: differs from a finite difference by" in operator.how
    torch.testing.assert_close(operator.dense(), case.dense_hessian(), rtol=0, atol=1e-6)


def test_a_wrong_product_is_caught_by_the_check() -> None:
    with pytest.raises(sl.SpiritlevelError, match="rung='magic' is not known; choose one of 'jvp"):
        sl.hessian(BY_NAME["mlp"].objective(), rung="magic")

    class Activation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Detached.apply(x)  # type: ignore[return-value]

    objective = sl.Objective(mlp(Activation).double(), BY_NAME["mlp"].data(), F.cross_entropy)
    with pytest.raises(sl.SpiritlevelError, match="differs from a finite difference"):
        sl.hessian(objective, rung="double backward")


def test_examples_fitted_to_the_last_digit_are_still_measured() -> None:
    """Their gradients cancel so far that finite differences of them are noise."""
    case = BY_NAME["relu mlp"]
    fitted = case.model()
    x, _ = case.data()
    with torch.no_grad():
        fitted[2].weight.mul_(1000)  # type: ignore[index]
        y = fitted(x).argmax(1)
    objective = sl.Objective(fitted, (x[:2], y[:2]), F.cross_entropy)
    assert objective.value() < 1e-7
    operator = sl.hessian(objective)
    dense = torch.func.hessian(
        lambda v: F.cross_entropy(
            torch.func.functional_call(fitted, objective.named(v), (x[:2],)), y[:2]
        )
    )(objective.vector)
    torch.testing.assert_close(operator.dense(), dense, rtol=0, atol=1e-2 * float(dense.norm()))


# Errors ---------------------------------------------------------------------------------------


def test_errors_name_the_fix() -> None:
    objective = BY_NAME["mlp"].objective()
    operator = sl.hessian(objective)
    with pytest.raises(sl.SpiritlevelError, match=r"no parameter matches.*there are: 0.weight"):
        sl.restricted(operator, "nothing.*")
    with pytest.raises(sl.SpiritlevelError, match=r"diagonal has .*give a tensor.*\(43,\)"):
        sl.scaled(operator, torch.ones(3))
    with pytest.raises(sl.SpiritlevelError, match=r"multiplies a vector \(43,\).*got shape \(7,\)"):
        operator @ torch.ones(7)
    with pytest.raises(sl.SpiritlevelError, match="kind='real' is not known; choose one of 'true'"):
        sl.fisher(objective, "real")  # type: ignore[arg-type]
    whole = sl.Objective(
        mlp().double(), objective.batches[0], lambda model, batch: model(batch[0]).square().mean()
    )
    with pytest.raises(sl.SpiritlevelError, match="ggn must see outputs and loss apart"):
        sl.ggn(whole)
    with pytest.raises(sl.SpiritlevelError, match="needs a loss whose likelihood is known"):
        sl.fisher(sl.Objective(mlp().double(), objective.batches[0], F.multi_margin_loss))
    weights = nn.CrossEntropyLoss(weight=torch.ones(3).double())
    with pytest.raises(sl.SpiritlevelError, match="no meaning with class weights"):
        sl.fisher(sl.Objective(mlp().double(), objective.batches[0], weights))
