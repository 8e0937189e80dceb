"""BatchNorm, sums and ReLU made by the convolution that they follow: memory is passed once.

In eval mode BatchNorm is w -> w gamma / sqrt(var + eps) and a bias. On a CPU, oneDNN adds and cuts
off while it writes; without that each of the three reads and writes the whole image again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from spiritlevel.curvature.program import Program, Slot, Step, assembled, slots_of
from spiritlevel.curvature.tape import Tape
from spiritlevel.objective import Objective

CONVOLUTION = torch.ops.aten.convolution.default
NORMS = {torch.ops.aten.native_batch_norm.default}
ADD, RELU = torch.ops.aten.add.Tensor, torch.ops.aten.relu.default
# What was recorded of images in one order of memory and meets them in another
VIEWS = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}
COPIES = torch.ops.aten.reshape.default
READS_MEMORY = {torch.ops.aten.as_strided.default}
Pair = Sequence[int]


def can_fuse(objective: Objective) -> bool:
    """If there may be something to fuse, and something that does it."""
    there = objective.device.type == "cpu" and objective.dtype == torch.float32
    there = there and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled  # type: ignore[attr-defined]
    known = hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    return there and known and any(isinstance(m, nn.Conv2d) for m in objective.module.modules())


def fused(tape: Tape) -> Tape | None:
    """The same pass with fused convolutions; None where no convolution is followed by anything."""
    program = tape.program
    chains = _chains(program)
    if not chains or any(step.operation in READS_MEMORY for step in program.steps):
        return None
    inside = {number for chain in chains for number in chain.steps}
    lasts = {chain.steps[-1]: chain for chain in chains}
    steps = []
    for number, step in enumerate(program.steps):
        if number in lasts:
            steps.append(lasts[number].step(program))
        elif number not in inside:
            steps.append(replace(step, operation=COPIES) if step.operation in VIEWS else step)
    made, held = assembled(steps, range(1, 1 + program.held), program.result)
    # copies are only to be known where tapes are made
    return replace(tape, program=made, held=tuple(tape.held[i - 1] for i in held), copies=())


@dataclass
class _Chain:
    """A convolution and what follows it, by the numbers of the steps."""

    steps: list[int]
    norm: int | None = None
    other: Slot | None = None
    relu: bool = False
    out: int = field(default=0)

    def step(self, program: Program) -> Step:
        x, weight, bias, stride, padding, dilation, _, _, groups = program.steps[self.steps[0]].args
        norm = eps = None
        if self.norm is not None:
            given = program.steps[self.norm].args
            norm, eps = given[1:5], given[7]
        geometry = stride, padding, dilation, groups
        args = x, self.other, weight, bias, norm, eps, geometry, self.relu
        return Step(convolved, args, {}, (self.out,), False)


def _chains(program: Program) -> list[_Chain]:
    """What is read once, and by a step that can be made on the way."""
    steps, uses = program.steps, Counter([program.result])
    reader: dict[int, int] = {}
    for number, step in enumerate(steps):
        for slot in slots_of(step.args) | slots_of(step.kwargs):
            uses[slot] += 1
            reader[slot] = number
    found, taken = [], set()
    for number, step in enumerate(steps):
        if step.operation is not CONVOLUTION or step.args[6] or len(step.args[3]) != 2:
            continue
        chain = _Chain([number], out=_only(step))
        while uses[chain.out] == 1 and chain.out in reader and reader[chain.out] not in taken:
            if not _joined(chain, reader[chain.out], steps, uses):
                break
            taken.add(chain.steps[-1])
        if len(chain.steps) > 1:
            found.append(chain)
    return found


def _joined(chain: _Chain, number: int, steps: Sequence[Step], uses: Counter[int]) -> bool:
    """Whether this step can be the next of the chain, which then has it."""
    step, image = steps[number], Slot(chain.out)
    if chain.relu or step.kwargs:
        return False
    if step.operation in NORMS and chain.norm is None and chain.other is None:
        if step.args[0] != image or step.args[5] or any(uses[out] for out in step.outs[1:] if out):
            return False
        if None in step.args[3:5]:
            return False
        chain.norm = number
    elif step.operation is ADD and chain.other is None:
        others = [item for item in step.args if item != image]
        if len(others) != 1 or not isinstance(others[0], Slot):
            return False
        chain.other = others[0]
    elif step.operation is RELU:
        chain.relu = True
    else:
        return False
    chain.steps.append(number)
    chain.out = _only(step)
    return True


def _only(step: Step) -> int:
    """The slot of what a step is made for."""
    assert step.outs[0] is not None
    return step.outs[0]


def convolved(
    x: Tensor,
    other: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    norm: Sequence[Tensor | None] | None,
    eps: float | None,
    geometry: tuple[Pair, Pair, Pair, int],
    relu: bool,
) -> Tensor:
    """relu(norm(weight * x + bias) + other), each where there is one."""
    if norm is not None:
        weight, bias = _with_norm(weight, bias, *norm, eps)  # type: ignore[misc]
    stride, padding, dilation, groups = geometry
    x = x.contiguous(memory_format=torch.channels_last)
    place = weight, bias, padding, stride, dilation, groups
    run = torch.ops.mkldnn._convolution_pointwise
    if other is None:
        return run(x, *place, "relu" if relu else "none", [], "")
    if other.shape == _shape(x, weight, stride, padding, dilation):
        other = other.contiguous(memory_format=torch.channels_last)
        return run.binary(x, other, *place, "add", 1.0, "relu" if relu else None, [], "")
    made = run(x, *place, "none", [], "") + other  # one of them is spread over the other
    return torch.relu(made) if relu else made


def _with_norm(
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The weights and the bias of a convolution with its normalization inside."""
    scale = (var + eps).rsqrt() if gamma is None else gamma * (var + eps).rsqrt()
    shift = -mean if bias is None else bias - mean
    shift = shift * scale if beta is None else shift * scale + beta
    return weight * scale[:, None, None, None], shift


def _shape(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> torch.Size:
    """Of the image of a convolution."""
    sides = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(
            x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    return torch.Size([len(x), len(weight), *sides])
