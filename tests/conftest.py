"""What every test shares: no test touches the user's cache, and no property test fails on time."""

from __future__ import annotations

import os

# Before anything imports torch: an OpenMP thread that waits spins, unless told otherwise. Two workers with two such
# threads each on two cores make every step some ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("detent", deadline=None)
settings.load_profile("detent")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point the cache, also that of child processes, at a folder of this test run (of this worker under xdist).

    COLUMNS is unset, as tables would be as wide as it says: pytest-xdist's workers set it, and some shells do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("DETENT_CACHE_DIR", os.fspath(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parents[1]
