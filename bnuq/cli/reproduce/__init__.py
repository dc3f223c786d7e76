"""`bnuq reproduce`: run a published experiment end to end and print its table beside the published one."""

from __future__ import annotations

from bnuq.cli.reproduce import batch_size, bn_noise, pll_over_samples, toy, uci

HELP = "Run a published experiment end to end and print its table beside the published one."

COMMANDS = {
    "uci": uci.command,
    "toy": toy.command,
    "batch-size": batch_size.command,
    "pll-over-samples": pll_over_samples.command,
    "bn-noise": bn_noise.command,
}
