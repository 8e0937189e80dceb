"""One thread for each worker: two workers with two threads each would fight for two cores."""

import torch

torch.set_num_threads(1)
