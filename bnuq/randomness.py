"""Saves and restores the global random generators."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch


@contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the generators of Python, numpy and torch (CPU, CUDA, MPS) at the end of the block."""
    states: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            states.append((partial(torch.cuda.set_rng_state, device=device), torch.cuda.get_rng_state(device)))
    if torch.backends.mps.is_available():
        states.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))
    try:
        yield
    finally:
        for restore, state in states:
            restore(state)


@contextmanager
def generators_seeded(seed: int) -> Iterator[None]:
    """The generators of Python, numpy and torch (CPU) start from `seed` in the block, and are restored at its end."""
    with generators_restored():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        yield


def states_outside_torch() -> dict[str, object]:
    """The states of the global generators of Python and numpy, by name; a state changes with every draw."""
    return {"Python's random": random.getstate(), "numpy": pickle.dumps(np.random.get_state(legacy=False))}
