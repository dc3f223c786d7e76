"""Saves and restores the global random generators, and lets one thread at a time change what all threads share."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from bnuq import devices

_lock = threading.RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread at a time is in such a block: networks' modes and buffers, and torch's switches, are changed and
    restored there."""
    with _lock:
        yield


@contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the generators of Python, numpy and torch (CPU and accelerators) at the end of the block."""
    states: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
    ]
    states += devices.generator_states()
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
