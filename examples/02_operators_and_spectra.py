"""Operators and what can be asked of them: ends of the spectrum, density, blocks."""

import torch
from torch import nn

import spiritlevel as sl

objective = sl.default_objective()  # a small net on the 8x8 digits
hessian, gauss_newton = sl.hessian(objective), sl.ggn(objective)

for estimate in sl.eigenvalues(hessian, k=3):
    print("eigenvalue", estimate)
print("Gauss-Newton trace", sl.trace(gauss_newton, method="hutch++"))

last_layer = sl.restricted(hessian, "4.*")
print("last layer: largest eigenvalue", sl.eigenvalues(last_layer)[0])

density = sl.density(hessian, probes=4, steps=40)
print("eigenvalues below -0.01:", density.count_below(-0.01))

# The same network after Dinh et al.: first layer doubled, second layer halved. No prediction
# moves, but the Hessian does: D^-1 H D^-1.
params = objective.params
twin = objective.at(
    {"0.weight": params["0.weight"] * 2, "0.bias": params["0.bias"] * 2}
    | {"2.weight": params["2.weight"] / 2}
)
gap = (twin.predictions() - objective.predictions()).abs().max()
print(f"predictions moved by {gap:.1e}; largest eigenvalue", sl.eigenvalues(sl.hessian(twin))[0])


# A loss of your own: a function of the model and a batch.
def physics(model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
    return (model(batch) - batch.sin()).square().sum(), len(batch)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
own = sl.Objective(net, torch.linspace(-2, 2, 50)[:, None], physics)
print("own loss", own.value(), "trace", sl.trace(sl.hessian(own)))
