"""The objective: any data, any model, one mean."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from cases import BY_NAME, CASES, SPLITS, Case, labels, mlp, randn, splits, tokens

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def data(n: int = 10) -> tuple[Tensor, Tensor]:
    return randn(n, 4), labels(n)


def objective(**options: Any) -> sl.Objective:
    return sl.Objective(BY_NAME["mlp"].model(), data(), F.cross_entropy, **options)


# The function ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_value_and_gradient_are_those_of_plain_autograd(case: Case) -> None:
    model = case.model().train(case.options.get("mode") == "train")
    loss = case.mean(model, case.data())
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    plain = torch.cat([g.reshape(-1) for g in grads if g is not None])
    found = case.objective()
    assert found.value() == pytest.approx(loss.item(), rel=1e-7)
    torch.testing.assert_close(found.gradient(), plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.options.get("mode") != "train"], ids=lambda case: case.name
)
def test_per_example_gradients_average_to_the_gradient(case: Case) -> None:
    found = case.objective()
    rows = found.per_example_gradients()
    assert rows.shape == (found.examples, found.size)
    torch.testing.assert_close(rows.mean(0), found.gradient(), rtol=1e-6, atol=1e-8)
    if found.count == found.examples:
        alone = sl.Objective(case.model(), tuple(t[3:4] for t in case.data()), case.loss).gradient()
        torch.testing.assert_close(rows[3], alone, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("microbatch", [None, 1, 3, 100])
def test_neither_batches_nor_microbatches_change_a_number(
    sizes: list[int], microbatch: int | None
) -> None:
    whole = objective()
    batches = list(splits(data(), sizes))
    split = sl.Objective(BY_NAME["mlp"].model(), batches, F.cross_entropy, microbatch=microbatch)
    assert split.value() == pytest.approx(whole.value(), rel=1e-14)
    close(split.gradient(), whole.gradient())
    close(split.predictions(), whole.predictions())
    if microbatch is not None:
        assert max(len(batch[0]) for batch in split.batches) <= microbatch


def test_every_kind_of_data_is_the_same_objective() -> None:
    x, y = data()
    pairs = TensorDataset(x, y)
    kinds = [
        (x, y),
        pairs,
        DataLoader(pairs, batch_size=3),
        [(x[:4], y[:4]), (x[4:], y[4:])],
        ((a, b) for a, b in [(x[:4], y[:4]), (x[4:], y[4:])]),
        [(x.numpy(), y.numpy())],
    ]
    values = [sl.Objective(BY_NAME["mlp"].model(), d, F.cross_entropy).value() for d in kinds]
    assert values == pytest.approx([objective().value()] * len(kinds), rel=1e-14)


def test_weights_and_ignored_labels_and_class_weights_divide_as_pytorch_does() -> None:
    x, y = data()
    model = BY_NAME["mlp"].model()
    w = randn(10, seed=9).abs()
    weighted = sl.Objective(model, [(x[:7], y[:7], w[:7]), (x[7:], y[7:], w[7:])], F.cross_entropy)
    plain = F.cross_entropy(model(x), y, reduction="none")
    assert weighted.value() == pytest.approx(((w * plain).sum() / w.sum()).item(), rel=1e-12)
    ignored = y.clone()
    ignored[[0, 5, 6]] = -100
    for loss in (
        F.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]).double()),
        partial(F.cross_entropy, label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="sum"),
    ):
        found = sl.Objective(model, list(splits((x, ignored), [7, 3])), loss, microbatch=4)
        whole = loss(model(x), ignored)
        if isinstance(loss, nn.CrossEntropyLoss) and loss.reduction == "sum":
            whole = whole / 7
        assert found.value() == pytest.approx(whole.item(), rel=1e-12)
    assert found.count == 7


def test_ignored_and_weightless_examples_do_no_harm() -> None:
    x, y = randn(40, 4), labels(40)
    model = BY_NAME["mlp"].model()
    y[:8] = 255
    w = torch.tensor([1.0, 2.0, 0.5])  # float32, while the model is float64
    for loss in (
        nn.CrossEntropyLoss(weight=w, ignore_index=255),
        partial(F.cross_entropy, weight=w, ignore_index=255),
        nn.CrossEntropyLoss(ignore_index=255),
    ):
        found = sl.Objective(model, (x, y), loss, microbatch=4)
        plain = nn.CrossEntropyLoss(
            weight=w.double()
            if "weight" in str(loss) or getattr(loss, "weight", None) is w
            else None,
            ignore_index=255,
        )
        assert found.separable
        assert found.value() == pytest.approx(plain(model(x), y).item(), rel=1e-10)
        assert sl.hessian(found).check < 1e-4  # type: ignore[operator]
    heavy = torch.zeros(40).double()
    heavy[34:] = 1
    weighted = sl.Objective(model, (x[:, :], labels(40), heavy), F.cross_entropy)
    assert sl.hessian(weighted).check < 1e-4  # type: ignore[operator]


def test_nll_with_class_weights_does_not_depend_on_batches() -> None:
    x, y = data()
    model = nn.Sequential(BY_NAME["mlp"].model(), nn.LogSoftmax(1))
    loss = nn.NLLLoss(weight=torch.tensor([1.0, 10.0, 0.1]).double())
    found = sl.Objective(model, list(splits((x, y), [7, 3])), loss)
    assert found.value() == pytest.approx(loss(model(x), y).item(), rel=1e-12)


def test_outputs_without_a_row_per_example() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).reshape(-1, 3)

    model = Flat().double()
    x, y = randn(10, 2, 4), labels(10, 2)
    found = sl.Objective(model, (x, y), lambda out, y: F.cross_entropy(out, y.reshape(-1)))
    assert sl.hessian(found).check < 1e-4  # type: ignore[operator]
    squeezed = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double()
    line = sl.Objective(squeezed, (randn(1, 4), randn(1)), F.mse_loss)
    assert line.per_example_gradients().shape == (1, 5)


def test_complex_buffers_keep_their_imaginary_part() -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)
            self.register_buffer("phase", torch.polar(torch.ones(2), torch.tensor([0.5, 1.0])))

        def forward(self, x: Tensor) -> Tensor:
            turned = torch.view_as_complex(x.reshape(-1, 2, 2).contiguous()) * self.phase  # type: ignore[operator]
            return self.net(torch.view_as_real(turned).reshape(-1, 4).to(x.dtype))

    model, (x, y) = Rotary(), data()
    x = x.float()
    truth = F.cross_entropy(model(x), y).item()
    assert sl.Objective(model, (x, y), F.cross_entropy).value() == pytest.approx(truth, rel=1e-5)
    model.register_parameter("c", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    with pytest.raises(sl.SpiritlevelError, match="complex trainable parameters; keep their real"):
        sl.Objective(model, (x, y), F.cross_entropy)


def test_autocast_around_us_is_put_aside() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = objective(dtype=torch.float32)
    assert inside.value() == objective(dtype=torch.float32).value()


def test_single_example_batches_are_joined_within_memory() -> None:
    x, y = randn(50, 4), labels(50)
    ones = DataLoader(TensorDataset(x, y), batch_size=1)
    found = sl.Objective(BY_NAME["mlp"].model(), ones, F.cross_entropy)
    assert found.examples == 50
    assert found.value() == pytest.approx(
        sl.Objective(BY_NAME["mlp"].model(), (x, y), F.cross_entropy).value()
    )


def test_targets_that_are_numbers_or_probabilities() -> None:
    x = randn(10, 4)
    model = BY_NAME["mlp"].model()
    soft = randn(10, 3, seed=4).softmax(1)
    for loss in (F.mse_loss, F.cross_entropy, F.smooth_l1_loss):
        found = sl.Objective(model, list(splits((x, soft), [7, 3])), loss)
        assert found.value() == pytest.approx(loss(model(x), soft).item(), rel=1e-12)


def test_a_loss_of_the_model_gives_sum_and_count_or_a_mean() -> None:
    x, y = data()
    model = BY_NAME["mlp"].model()

    def summed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])

    def averaged(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    for loss in (summed, averaged):
        found = sl.Objective(model, list(splits((x, y), [7, 3])), loss)
        assert found.value() == pytest.approx(objective().value(), rel=1e-12)
        assert len(found.batches) == 2  # a function of the batch is not cut unless asked
        close(found.gradient(), objective().gradient())
        close(found.predictions(), objective().predictions())

    def physics(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    found = sl.Objective(model, x, physics)
    assert found.value() == pytest.approx(model(x).square().mean().item(), rel=1e-12)


def test_text_is_weighted_by_the_labels_that_count() -> None:
    case = BY_NAME["GPT-2"]
    batch = tokens()
    found = sl.Objective(case.model(), list(splits(batch, [3, 1])))
    assert found.count == int((batch["labels"][:, 1:] != -100).sum())
    assert found.value() == pytest.approx(case.mean(case.model().eval(), batch).item(), rel=1e-12)
    assert found.predictions().shape == (4, 5, 7)
    ragged = sl.Objective(
        case.model(),
        [{k: v[:2, :4] for k, v in batch.items()}, {k: v[2:] for k, v in batch.items()}],
    )
    assert ragged.predictions().shape == (2 * 4 + 2 * 5, 7)


def test_several_inputs_and_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, str]:
            return self.a(x) * z, "extra"

    x, y = data()
    z = randn(10, 1, seed=3)
    model = Two().double()
    truth = F.cross_entropy(model(x, z)[0], y).item()
    for inputs in ((x, z), {"x": x, "z": z}):
        assert sl.Objective(model, [(inputs, y)], F.cross_entropy).value() == pytest.approx(truth)


# Parameters -----------------------------------------------------------------------------------


def test_parameters_by_pattern_tied_once_frozen_never() -> None:
    assert list(objective(params="2.*").shapes) == ["2.weight", "2.bias"]
    assert list(objective(params=["*.bias", "0.weight"]).shapes) == ["0.weight", "0.bias", "2.bias"]
    model = BY_NAME["mlp"].model()
    model[0].requires_grad_(False)  # type: ignore[index]
    assert list(sl.Objective(model, data(), F.cross_entropy).shapes) == ["2.weight", "2.bias"]
    tied = BY_NAME["GPT-2"].objective()
    assert "transformer.wte.weight" in tied.shapes
    assert "lm_head.weight" not in tied.shapes


def test_at_moves_a_copy() -> None:
    here = objective()
    there = here.at(here.vector + 1)
    model = BY_NAME["mlp"].model()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    assert there.value() == pytest.approx(F.cross_entropy(model(data()[0]), data()[1]).item())
    close(there.vector, here.vector + 1)
    assert here.value() == objective().value()
    some = here.at({"2.bias": torch.zeros(3)})
    close(some.params["0.weight"], here.params["0.weight"])
    assert some.params["2.bias"].abs().max() == 0
    close(torch.cat([t.reshape(-1) for t in here.named(here.vector).values()]), here.vector)


def test_later_changes_of_model_and_data_do_not_reach_the_objective() -> None:
    model, (x, y) = BY_NAME["mlp"].model(), data()
    found = sl.Objective(model, (x, y), F.cross_entropy)
    before, slope = found.value(), found.gradient()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        x.zero_()
    assert found.at(found.vector).value() == before
    close(found.gradient(), slope)


# Models as they come --------------------------------------------------------------------------


def test_compiled_and_parallel_models_are_unwrapped(tmp_path: Any) -> None:
    model = BY_NAME["mlp"].model()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        wrapped = [torch.compile(model), nn.parallel.DistributedDataParallel(model)]
        for outer in (*wrapped, nn.DataParallel(model)):
            found = sl.Objective(outer, data(), F.cross_entropy)  # type: ignore[arg-type]
            assert list(found.shapes) == ["0.weight", "0.bias", "2.weight", "2.bias"]
            assert found.value() == objective().value()
            assert "unwrapped" in found.notes[0]
    finally:
        torch.distributed.destroy_process_group()


def test_half_precision_is_raised_and_said() -> None:
    model = mlp().bfloat16()
    with pytest.warns(
        UserWarning, match="holds torch.bfloat16; a copy was raised to torch.float32"
    ):
        found = sl.Objective(model, data(), F.cross_entropy)
    assert found.dtype == torch.float32
    assert found.notes == ("the model holds torch.bfloat16; a copy was raised to torch.float32",)
    assert model[0].weight.dtype == torch.bfloat16
    with pytest.raises(sl.SpiritlevelError, match=r"dtype=torch.float16 is not known; choose"):
        objective(dtype=torch.float16)


def test_models_that_keep_activations_are_copied() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.net(x)
            return self.last

    model = Keeps().double()
    model(data()[0])
    assert sl.Objective(model, data(), F.cross_entropy).value() > 0
    assert model.last.grad_fn is not None


def test_train_mode_is_a_choice() -> None:
    case = BY_NAME["cnn with BatchNorm"]
    evaluated, trained = case.objective(), case.objective(mode="train")
    assert evaluated.separable
    assert not trained.separable
    assert trained.value() != pytest.approx(evaluated.value(), rel=1e-3)
    assert trained.value() == trained.at(trained.vector).value()  # statistics do not drift
    with pytest.raises(sl.SpiritlevelError, match="per-example gradients do not exist here"):
        trained.per_example_gradients()


def test_dropout_with_a_fixed_mask() -> None:
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    fixed = sl.Objective(model, data(), F.cross_entropy, mode="train", seed=3)
    other = sl.Objective(model, data(), F.cross_entropy, mode="train", seed=4)
    assert fixed.value() == fixed.at(fixed.vector).value()
    assert fixed.value() != other.value()
    v = randn(fixed.size)
    operator = sl.hessian(fixed)
    torch.testing.assert_close(operator @ v, operator @ v, rtol=0, atol=0)
    assert operator.check is not None
    assert operator.check < 1e-4


def test_recurrent_nets_fall_back_to_a_loop_for_per_example_gradients() -> None:
    found = BY_NAME["GRU"].objective()
    close(found.per_example_gradients().mean(0), found.gradient())


def test_a_loss_of_pairs_is_not_cut() -> None:
    def spread(out: Tensor, y: Tensor) -> Tensor:
        return out.var(0).sum()

    found = sl.Objective(BY_NAME["mlp"].model(), list(splits(data(), [6, 4])), spread)
    assert not found.separable
    assert [len(batch[0]) for batch in found.batches] == [6, 4]
