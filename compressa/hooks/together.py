"""Work that all ranks do, or none: a failure on one is told to all."""

from __future__ import annotations

import json
from collections.abc import Callable

from compressa.engine.control import Control
from compressa.errors import CompressaError, StateError


def together(
    control: Control | None, what: str, work: Callable[[], str], deadline_s: float
) -> list[str]:
    """Do something on every rank; return what each rank's work returned. Collective.

    Args:
        control: Between the ranks; None for a single one.
        what: The name of the call, for messages and for ranks that are in another one.
        work: Done on this rank.
        deadline_s: How long other ranks are waited for, in seconds.

    Raises:
        StateError: It failed on some rank; on every rank, with the first one's reason.
        CompressaError: It failed on this rank, with that error.
        TransportError: A rank is lost, or does not come.
    """
    own: dict[str, str | None] = {"error": None, "value": None}
    failure: Exception | None = None
    try:
        own["value"] = work()
    except Exception as error:  # the others must not wait for a rank that stumbled
        failure, own["error"] = error, str(error) or repr(error)
    text = json.dumps(own).encode()
    texts = [text] if control is None else control.all_gather(text, what, deadline_s)
    if isinstance(failure, CompressaError):
        raise failure
    for rank, answer in enumerate(map(json.loads, texts)):
        if answer["error"] is not None:
            raise StateError(f"rank {rank}: {answer['error']}") from failure
    return [json.loads(answer)["value"] for answer in texts]
