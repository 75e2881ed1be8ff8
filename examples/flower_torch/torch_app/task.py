"""The model and the data: 1,797 pictures of digits that come with scikit-learn."""

import numpy as np
import torch
from sklearn.datasets import load_digits

Records = tuple[torch.Tensor, torch.Tensor]


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))


def load(part: int, parts: int) -> Records:
    """The records of one client; those of the server, to test on, are a fifth of all."""
    train, _ = _split()
    return train[0][part::parts], train[1][part::parts]


def load_test() -> Records:
    return _split()[1]


def _split() -> tuple[Records, Records]:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    X, Y = torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])
    return (X[360:], Y[360:]), (X[:360], Y[:360])
