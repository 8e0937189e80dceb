"""Curvature of your own model: five lines, a table, and every number with its error."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl

# Stand-ins for your model and your data.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
x = torch.randn(500, 10)
y = (x[:, :3] + 0.5 * torch.randn(500, 3)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=64)

optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(30):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

objective = sl.Objective(model, loader, loss=nn.functional.cross_entropy)
table = sl.measure(objective)
print(table)

# Every row is an Estimate.
norm = table["hessian_frobenius"]
print(f"\nFrobenius norm {norm.value:.3f}, standard error {norm.stderr:.3f}, {norm.status.value}")
