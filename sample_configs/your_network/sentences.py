"""Sequences of token numbers of three topics, and a network with an embedding and dropout, without BatchNorm."""

import numpy as np
import torch
from fit import fit
from torch import nn


class Network(nn.Module):
    def __init__(self, words=200, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(words, 32)
        self.head = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, classes)
        )

    def forward(self, tokens):  # (points, length), integers
        return self.head(self.embedding(tokens).mean(1))


def sentences(points, seed):  # three topics, whose words overlap
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, points)
    topic = random.normal(loc=50 + 50 * y[:, None], scale=60, size=(points, 12))
    return np.clip(topic, 0, 199).astype(np.int64), y


if __name__ == "__main__":
    x, y = sentences(3000, seed=0)
    test_x, test_y = sentences(500, seed=1)
    np.savez("sentences_test.npz", x=test_x, y=test_y)
    torch.manual_seed(0)
    model = Network()
    fit(model, torch.from_numpy(x), torch.from_numpy(y), nn.functional.cross_entropy, epochs=10)
    torch.save(model.state_dict(), "sentences.pt")
