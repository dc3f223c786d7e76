"""What a practitioner would write instead of `bnuq evaluate`, for a regression: samples, τ, RMSE, PLL and CRPS.

python benchmarks/loops/regression.py CHECKPOINT NET.PY:FUNCTION --train CSV --validation CSV --test CSV ...
"""

import argparse
import importlib.util
import math
import sys
import time

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("architecture")
for name in ("--train", "--validation", "--test"):
    parser.add_argument(name, required=True)
parser.add_argument("--methods", default="mcbn")
parser.add_argument("--samples", type=int, required=True)
parser.add_argument("--batch-size", type=int, required=True)
options = parser.parse_args()

torch.manual_seed(0)
tables = [
    torch.from_numpy(np.loadtxt(file, delimiter=",", skiprows=1)).float()
    for file in (options.train, options.validation, options.test)
]
mean, std = tables[0].mean(0), tables[0].std(0, correction=0)
(train, _), *sets = [(((t - mean) / std)[:, :-1], t[:, -1]) for t in tables]

path, function = options.architecture.rsplit(":", 1)
spec = importlib.util.spec_from_file_location("net", path)
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
model = getattr(module, function)()
model.load_state_dict(torch.load(options.checkpoint, map_location="cpu", weights_only=True))
model.eval()
norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
dropouts = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]
running = [(layer.running_mean.clone(), layer.running_var.clone()) for layer in norms]


def log_likelihood(samples, y, tau):
    """Of each point, under the mixture of the samples with noise of precision τ."""
    error = tau * (samples - y) ** 2
    return torch.logsumexp(-error / 2, 0) - math.log(len(samples)) + 0.5 * math.log(tau / (2 * math.pi))


with torch.inference_mode():
    for method in ["deterministic", *options.methods.split(",")]:
        samples = [[] for _ in sets]
        for _ in range(1 if method == "deterministic" else options.samples):
            for layer, (average, variance) in zip(norms, running, strict=True):
                layer.running_mean.copy_(average)
                layer.running_var.copy_(variance)
            if "mcbn" in method:  # one pass in training mode: the statistics are those of the mini-batch
                for layer in norms:
                    layer.train()
                    layer.momentum = 1.0
                model(train[torch.randperm(len(train))[: options.batch_size]])
                for layer in norms:
                    layer.eval()
            for layer in dropouts:
                layer.train("mcdo" in method)
            before = time.process_time()
            for drawn, (x, _) in zip(samples, sets, strict=True):
                drawn.append(model(x)[:, 0] * std[-1] + mean[-1])
            if method == "deterministic":
                print(f"plain {time.process_time() - before:.3f}", file=sys.stderr)  # CPU seconds of a pass of all sets
        validation, test = map(torch.stack, samples)
        y, target = sets[0][1], sets[1][1]
        taus = torch.logspace(-8, 2, 200, dtype=torch.float64).tolist()
        tau = max(taus, key=lambda tau: float(log_likelihood(validation, y, tau).mean()))
        rmse = (test.mean(0) - target).square().mean().sqrt()
        pll = log_likelihood(test, target, tau).mean()
        noisy = test[torch.arange(64) % len(test)]
        noisy = noisy + torch.randn_like(noisy) / math.sqrt(tau)
        crps = ((noisy - target).abs().mean(0) - 0.5 * (noisy[:, None] - noisy[None]).abs().mean((0, 1))).mean()
        spread = test.var(0, correction=0).mean() if len(test) > 1 else 0.0
        print(f"{method}: τ {tau:.3g}, RMSE {rmse:.4f}, PLL {pll:.4f}, CRPS {crps:.4f}, variance {spread:.4f}")
