"""Errors can be copied and sent to other processes, whatever they were made of."""

from __future__ import annotations

import copy
import pickle

import pytest

from compressa.errors import CompressaError, ConfigError, PayloadError, PeerLost, Timeout

ERRORS = [
    ConfigError("no compressor is called topq"),
    PayloadError("a frame from rank 2 has magic 0x1"),
    PeerLost(3, "rank 3 is lost"),
    Timeout((1, 2), "rank 0 waited 2 s for ranks 1, 2"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_another_says_the_same(way: str, error: CompressaError) -> None:
    with pytest.raises(type(error)):
        raise error
    assert error.__traceback__ is not None
    error.locate("rank 0 was in stage 1 of unit 2")
    again = copy.copy(error) if way == "copy" else pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert vars(again) == vars(error)
    assert again is not error
    assert again.__traceback__ is None
