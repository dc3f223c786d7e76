"""How much a file may declare to hold: no more than its compressed bytes can, in good faith."""

from __future__ import annotations

_MOST_EXPANSION = 1100  # deflate's limit is 1032
_ALWAYS_ALLOWED = 256 * 2**20


def declares_too_much(declared: int, *, stored: int) -> bool:
    """Whether `declared` bytes are more than `stored` compressed ones can hold, and enough of them to do harm."""
    return declared > max(_MOST_EXPANSION * stored, _ALWAYS_ALLOWED)
