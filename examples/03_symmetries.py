"""Find the symmetries of a model, move along them, prove it, and sharpen its minimum."""

import torch
from torch import nn

import spiritlevel as sl

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
    nn.Conv2d(4, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
)  # fmt: skip
data = (torch.randn(64, 1, 8, 8), torch.randint(0, 3, (64,)))
objective = sl.Objective(model, data, nn.functional.cross_entropy, dtype=torch.float64)

# What can be rescaled without changing a prediction?
group = sl.symmetries(objective)
print(group)

# Another point with the same predictions, and the proof.
twin = group.apply(objective, group.random(seed=1, scale=1.0))
print(group.verify(objective, twin))
print("largest eigenvalue here ", sl.eigenvalues(sl.hessian(objective))[0])
print("largest eigenvalue there", sl.eigenvalues(sl.hessian(twin))[0])

# As sharp as one likes.
print(sl.sharpen(objective, target=1e6))
