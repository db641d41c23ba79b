"""What a deployment's file holds is remembered by its bytes, and never differs from what the parser says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from detent.runtime import deployment, encoding
from detent.runtime.cache import Store
from detent.runtime.encoding import ordered, strict_toml
from detent.runtime.errors import BadFile


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "cache"))


def parsed_never(data: bytes) -> dict[str, object]:
    raise AssertionError("parsed again")


@pytest.mark.parametrize("name", deployment.known())
def test_a_remembered_deployment_is_the_same(name: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = deployment.load(name)
    deployment.load(name, store.toml)
    monkeypatch.setattr("detent.runtime.cache.strict_toml", parsed_never)
    again = deployment.load(name, store.toml)
    assert ordered(again.facts) == ordered(plain.facts) and again.facts == plain.facts
    assert (again.name, again.path, again.files, again.sources) == (plain.name, plain.path, plain.files, plain.sources)


@pytest.mark.parametrize("text", ["a = {v = 1}", "a.v = 1.0", "a.v = -0.0", "a.v = true", "a.v = 1e300", "a.v = 0.1",
                                  'a.v = "\\u00e9\\n"', "a.v = 9223372036854775807", "b.z = 1\na.v = [1, 2.0, true]"])
def test_values_keep_their_types(text: str, store: Store) -> None:
    first, second = store.toml(text.encode()), store.toml(text.encode())
    assert ordered(first) == ordered(second) == ordered(strict_toml(text.encode()))


@pytest.mark.parametrize("text", ["a.v = 2026-12-01", "a.v = inf", "a.v = nan"])
def test_what_json_cannot_hold_is_parsed_each_time(text: str, store: Store) -> None:
    for _ in range(2):
        value = store.toml(text.encode())["a"]["v"]
        assert value == strict_toml(text.encode())["a"]["v"] or math.isnan(value)
    assert not list(Path(store.directory, "normalised").glob("*.toml"))


def test_a_wrong_file_stays_wrong(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "d.toml"
    path.write_text("[limits]\nrows = \n")
    for _ in range(2):
        with pytest.raises(BadFile, match="is not TOML"):
            deployment.load(str(path), store.toml)


def test_an_edited_file_is_read_again(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "d.toml"
    for rows in (1, 2, 1):
        path.write_text(f"[limits]\nrows = {rows}\n")
        assert deployment.load(str(path), store.toml).facts == {"limits": {"rows": rows}}


@pytest.mark.parametrize("damage", ["nothing", "other text", "other content"])
def test_a_damaged_memo_is_not_believed(damage: str, store: Store) -> None:
    store.toml(b"a.v = 1"), store.toml(b"a.v = 2")
    folder = Path(store.directory, "normalised")
    one, two = (folder / f"{encoding.sha256(text)}.toml" for text in (b"a.v = 1", b"a.v = 2"))
    one.write_bytes({"nothing": b"", "other text": two.read_bytes(),
                     "other content": one.read_bytes().replace(b'"v":1', b'"v":3')}[damage])
    assert store.toml(b"a.v = 1") == {"a": {"v": 1}}
    assert store.clear() == 0 and not folder.exists()
