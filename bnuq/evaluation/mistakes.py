"""Reports what is wrong in a request together with what it lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from bnuq.config import Run
from bnuq.errors import BnuqError, MistakenError, RequestError
from bnuq.evaluation.completeness import Need, check_complete


@contextmanager
def reported_at_once(needs: Collection[Need] = ("test",)) -> Iterator[None]:
    """Inside the block, a request with settings that are wrong is refused with all that the rest of it lacks, see
    `check_complete`."""
    try:
        yield
    except MistakenError as error:
        message = str(error)
        for run in error.rest if isinstance(error.rest, tuple) else (error.rest,):
            try:
                if isinstance(run, Run):
                    check_complete(run, needs=needs)
            except RequestError as lacking:
                message += f"\n{lacking}"
            except BnuqError:
                pass  # a checkpoint that cannot be read: what loading it will say
        raise RequestError(message) from None
