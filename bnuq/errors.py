"""The errors that bnuq raises on purpose. Each is one message: what was wrong, what was expected, what to do.

    BnuqError               exit code 2 on the command line
    ├── RequestError        an option or a run file: a bad value, a missing piece, a contradiction
    ├── UntrustedCodeError  code named by a file that was merely found, or a pickle, and no leave to run it
    ├── ModelError          a checkpoint or an architecture: unreadable, hostile, or not matching
    ├── DataError           a data reference: unreadable, of the wrong shape, or holding impossible values
    ├── SamplingError       passes that cannot be drawn, or that would all be the same
    └── ResultError         a result file or a bank: unreadable, hostile, newer, or not comparable

Anything else that escapes is a fault in bnuq (exit code 3).
"""


class BnuqError(Exception):
    """A request that could not be carried out, told in one message meant for the user."""


class RequestError(BnuqError):
    """An option or a run file that is wrong or incomplete."""


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
    "DefaultCPUAllocator",
    "MPS backend out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is how Python, or torch on any device, says that memory is exhausted."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY)
