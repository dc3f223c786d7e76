"""The errors that bnuq raises deliberately. Each is one message: what was wrong, what was expected, what to do.

    BnuqError               exit code 2 on the command line
    ├── RequestError        an option or a run file: a bad value, a missing piece, a contradiction
    │   ├── NoModelError    that names no network
    │   └── MistakenError   several of its settings, each of which can be left out to look at the others
    ├── UntrustedCodeError  code that a file names which the user did not, or a pickle, without permission to run it
    ├── ModelError          a checkpoint or an architecture: unreadable, hostile, or not matching
    ├── DataError           a data reference: unreadable, of the wrong shape, or holding impossible values
    ├── SamplingError       passes that cannot be drawn, or that would all be the same
    └── ResultError         a result file or a bank: unreadable, hostile, newer, or not comparable

Any other exception is a bug in bnuq (exit code 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

Arguments = ParamSpec("Arguments")


class BnuqError(Exception):
    """A request that could not be carried out, with one message for the user."""


class RequestError(BnuqError):
    """An option or a run file that is wrong or incomplete."""


class NoModelError(RequestError):
    """A request that names no network."""


class MistakenError(RequestError):
    """Settings that are wrong, each with its own message. `rest` is what was requested without them, if anything
    is left."""

    def __init__(self, *mistakes: str, rest: Any = None) -> None:
        super().__init__(*mistakes)
        self.mistakes, self.rest = mistakes, rest

    def __str__(self) -> str:
        if len(self.mistakes) == 1:
            return self.mistakes[0]
        place = next(iter(places)) if len(places := {text.partition(": ")[0] for text in self.mistakes}) == 1 else None
        texts = self.mistakes if place is None else [text.removeprefix(f"{place}: ") for text in self.mistakes]
        head = f"{len(texts)} settings are wrong:"
        return "\n".join([head if place is None else f"{place}: {head}", *(f"  - {text}" for text in texts)])


class Mistakes:
    """The mistakes of several checks, to be reported at once."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def of(self, check: Callable[Arguments, Any], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        """What the check returns; the rest of what it checks, where it finds mistakes."""
        try:
            return check(*args, **kwargs)
        except MistakenError as error:
            self._found += error.mistakes
            return error.rest

    def report(self, rest: Any = None) -> None:
        """Raise MistakenError if there are any."""
        if self._found:
            raise MistakenError(*dict.fromkeys(self._found), rest=rest)


def failures(*checks: Callable[[], object]) -> list[BnuqError]:
    """The errors of the checks that fail."""
    errors = []
    for check in checks:
        try:
            check()
        except BnuqError as error:
            errors.append(error)
    return errors


def raise_all(errors: Sequence[BnuqError]) -> None:
    """Raise the one error; of several, a RequestError with all their messages."""
    if len(texts := [*dict.fromkeys(map(str, errors))]) > 1:
        raise RequestError(
            "\n\n".join([f"{len(texts)} problems:", *(f"{number}. {text}" for number, text in enumerate(texts, 1))])
        )
    if texts:
        raise errors[0]


class UntrustedCodeError(BnuqError):
    """Code that the user did not name themselves would have to run."""


class ModelError(BnuqError):
    """A checkpoint or an architecture that cannot be used."""


class DataError(BnuqError):
    """A data reference that cannot be used."""


class SamplingError(BnuqError):
    """Stochastic passes that cannot be drawn, or would not differ."""


class ResultError(BnuqError):
    """A file that bnuq wrote, or should have written, and that cannot be used."""


_OUT_OF_MEMORY = (
    "out of memory",  # CUDA, HIP, XPU and MPS; also as AcceleratorError("CUDA error: out of memory")
    "cudaerrormemoryallocation",
    "defaultcpuallocator",
    "_status_alloc",  # cuBLAS, cuDNN, cuSOLVER, cuSPARSE
    "allocation_failed",  # CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED and _DEVICE_
)
_NO_ENGINE = ("unable to find an engine to execute",)  # cuDNN: its workspace does not fit, or it has no such kernel
_DEVICE = ("cuda error", "cuda driver error", "cudnn error", "cudnn_status", "cublas_status", "hip error", *_NO_ENGINE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error of Python, or of torch on any device, means that memory is exhausted."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError):
        return False
    return _mentions(error, _OUT_OF_MEMORY) or (_mentions(error, _NO_ENGINE) and _little_memory_is_free())


def has_no_kernel(error: BaseException) -> bool:
    """Whether cuDNN has no kernel for an operation, although memory is free."""
    return isinstance(error, RuntimeError) and _mentions(error, _NO_ENGINE) and not is_out_of_memory(error)


def is_device_failure(error: BaseException) -> bool:
    """Whether the accelerator or its libraries failed, for another cause than memory."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    return type(error).__name__ == "AcceleratorError" or _mentions(error, _DEVICE)


def device_failure_message(error: BaseException) -> str:
    """The message for a failure of the accelerator."""
    return (
        f"the accelerator failed ({first_line(error)}). GPUs report errors late, so the cause may be an earlier "
        "operation, such as an index out of range in the network. Run the same command with --device cpu to see "
        "whether the network is the cause."
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without a full stop; its type where the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__


def _little_memory_is_free() -> bool:
    from bnuq import devices  # brings torch along, which has raised the error

    return devices.little_memory_is_free()


def _mentions(error: BaseException, signs: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in signs)
