"""What errors about checkpoints share: what was expected, and names, cut and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnuq.errors import ModelError

LONGEST_NAME = 1000  # letters of a tensor's name, or of the entry it is in
EXPECTED = "expected weights or a network of torch.save, torch.jit.save or torch.export.save, or a safetensors file"


def check_name(path: Path, name: str) -> None:
    if len(name) > LONGEST_NAME:
        raise ModelError(f"{path}: {cut(name)} is a name of {len(name):,} letters; expected at most {LONGEST_NAME:,}.")


def listed(names: Any, *, order: bool = True) -> str:
    """The first five, and how many more there are."""
    texts = sorted(names) if order else list(names)
    return ", ".join(map(cut, texts[:5])) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")


def cut(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:199]}…"
