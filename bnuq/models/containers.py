"""Recognises the kind of a checkpoint file by its content, and turns the errors of readers into one ModelError."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bnuq.errors import BnuqError, ModelError, is_out_of_memory
from bnuq.models.architecture import matching_torchvision
from bnuq.models.listing import EXPECTED


@contextmanager
def as_model_error(path: Path) -> Iterator[None]:
    """Turn any exception into one ModelError: loaders of hostile files raise EOFError, KeyError, struct.error, …"""
    try:
        yield
    except BnuqError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelError(f"{path}: there is not enough memory to load it. Use a machine with more.") from error
        reason = " ".join(str(error).split())[:200].rstrip(".")
        if operator := re.search(r"(?:operator|Unknown builtin op:) (\w+)::\w+", reason):
            cure = f"Install the matching one with: {matching_torchvision()}"
            if operator[1] != "torchvision":
                cure = "Install that library, of a release that belongs to this torch."
            raise ModelError(
                f"{path}: needs operators of {operator[1]} that torch {torch.__version__} does not have ({reason}): "
                f"the library is missing here, or of another build. {cure}"
            ) from error
        detail = f" ({type(error).__name__}{': ' if reason else ''}{reason})" * (not isinstance(error, _READER_ERRORS))
        raise ModelError(f"{path}: is damaged or incomplete{detail}; {EXPECTED}. Fetch or write it again.") from error


_READER_ERRORS = (AttributeError, TypeError, LookupError, AssertionError)  # their texts are about code, not the file
