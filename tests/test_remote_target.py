"""A target in a process of its own: calls, errors and ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from detent.engines.interface import Request, Submission
from detent.engines.remote import RemoteTarget
from detent.runtime.errors import BadFile, DetentError

FACTORY = "remote_fake:FakeTarget"


@pytest.fixture(scope="module")
def target() -> Iterator[RemoteTarget]:
    made = RemoteTarget(FACTORY, {"model": "tiny"}, ("FAKE_CACHE",))
    yield made
    made.close()


def test_it_runs_elsewhere_with_an_empty_cache(target: RemoteTarget) -> None:
    environment = target.traits.environment
    assert target.traits.model == "tiny" and environment["process"] != os.getpid()
    assert not Path(environment["cache"]).exists() and Path(environment["cache"]).parent.is_dir()


def test_calls_and_results_pass(target: RemoteTarget) -> None:
    (output,) = target.run([Submission(Request((1, 2), 3))])
    assert output.tokens == (1, 2) and output.logprobs == (b"\1", b"\2")
    assert target.decode(target.encode("żółć")) == "żółć"


def test_errors_keep_their_class_and_remedy(target: RemoteTarget) -> None:
    with pytest.raises(BadFile, match="cache: is in use"):
        target.flush()
    with pytest.raises(BadFile, match="missing: no such model; name another"):
        RemoteTarget(FACTORY, {"model": "missing"})


def test_another_fresh_one_is_another_process_and_cleans_up(target: RemoteTarget) -> None:
    other = target.fresh()
    cache = Path(other.traits.environment["cache"])
    try:
        assert other.traits.environment["process"] != target.traits.environment["process"]
        assert cache.parent.is_dir() and cache.parent != Path(target.traits.environment["cache"]).parent
        with pytest.raises(DetentError, match="ended before it answered"):
            other.run([])
    finally:
        other.close()
    assert not cache.parent.exists()
