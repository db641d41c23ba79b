"""Commitment tuples: writing, reading, binding, and which part does not match."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from runtime_fixture import DEFAULT, document

from detent import __version__
from detent.runtime.encoding import write_atomic
from detent.runtime.errors import BadFile, DetentError, NotLegal, TupleMismatch, UnknownName
from detent.runtime.tuple import ENVIRONMENT, CommitmentTuple, Difference, check

FULL = {"kernels": {"tile": "k1", "norm": "k2"}, "torch": "2.9", "triton": "3.5", "cuda": "12.9", "gpu": "H100",
        "engine": "toy-build", "model": "m", "weights": "w"}


def new(**options: Any) -> CommitmentTuple:
    return CommitmentTuple.new("toy-h100", {"tile": document()}, **options)


def edited(path: Path, change: Any) -> Path:
    """The file with a change made to it by hand and the hash made to fit."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    new().write(str(tmp_path / "t.json"))
    return tmp_path / "t.json"


def test_defaults_and_choices() -> None:
    assert new().assignment("tile") == DEFAULT
    chosen = new(choices={"tile.splits": "2", "tile.small": True})
    assert chosen.families["tile"]["pins"] == {"small": True, "splits": 2}
    assert chosen.families["tile"]["knobs"] == {"stride": 256}
    assert chosen.hash != new().hash


def test_round_trip(path: Path) -> None:
    loaded = CommitmentTuple.load(str(path))
    assert loaded.content() == new().content() and loaded.hash == new().hash == json.loads(path.read_text())["hash"]
    assert path.stat().st_mode & 0o111 == 0 and [p.name for p in path.parent.iterdir()] == ["t.json"]
    text = path.read_text()
    loaded.write(str(path))
    assert path.read_text() == text


def test_hash_ignores_the_order_of_keys_and_spacing(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(content.items()))))
    assert CommitmentTuple.load(str(path)).hash == new().hash


def test_hash_covers_every_part(path: Path) -> None:
    full = new(environment=FULL)
    hashes = {full.hash, new().hash}
    for name in ENVIRONMENT:
        hashes.add(CommitmentTuple(full.deployment, full.families, {**full.environment, name: "other"}).hash)
    parts: list[tuple[str, Any]] = [
        ("program", "p"), ("key", "k"), ("facts", {"limits.rows": 1}), ("pins", {}), ("knobs", {"stride": 1})]
    for name, value in parts:
        hashes.add(CommitmentTuple("toy-h100", {"tile": {**full.families["tile"], name: value}}, full.environment).hash)
    hashes.add(CommitmentTuple("other", full.families, full.environment).hash)
    hashes.add(CommitmentTuple("toy-h100", {}, full.environment).hash)
    assert len(hashes) == 2 + len(ENVIRONMENT) + 5 + 2
    one, true, real = ({**full.families["tile"], "pins": {"splits": value}} for value in (1, True, 1.0))
    assert len({CommitmentTuple("d", {"tile": part}, {}).hash for part in (one, true, real)}) == 3


def test_binding_fills_open_parts_and_only_those() -> None:
    tuple_ = new(environment={"model": "m"})
    assert tuple_.open_parts() == [name for name in ENVIRONMENT if name not in ("detent", "model")]
    bound = tuple_.bind(FULL)
    assert bound.open_parts() == [] and bound.environment["kernels"] == FULL["kernels"]
    assert bound.hash != tuple_.hash and bound.hash == new(environment=FULL).hash == bound.bind(FULL).hash
    assert tuple_.bind({"gpu": "H100"}).open_parts() == [n for n in tuple_.open_parts() if n != "gpu"]
    with pytest.raises(TupleMismatch, match="environment.model: the tuple has m, found other") as caught:
        tuple_.bind({**FULL, "model": "other"})
    assert caught.value.differences == [Difference("environment.model", "m", "other")]
    with pytest.raises(UnknownName, match="unknown part 'gpus'; did you mean 'gpu'"):
        tuple_.bind({"gpus": "x"})
    with pytest.raises(DetentError, match="environment.gpu is 3"):
        tuple_.bind({"gpu": 3})


def test_check_names_the_part() -> None:
    tuple_ = new(environment=FULL)
    assert check(tuple_, {"tile": document()}, FULL) == []
    changed = document()
    changed["program_key"], changed["facts"] = "b" * 64, {"limits.rows": 512, "gpu.num_sm": 132}
    found = check(tuple_, {"tile": changed}, {**FULL, "torch": "2.10"})
    assert [str(difference) for difference in found] == [
        "tile.program (tile): the tuple has aaaaaaaaaaaaaaaaaaaa..., found bbbbbbbbbbbbbbbbbbbb...",
        "tile.facts.gpu.num_sm: the tuple has not read, found 132",
        "tile.facts.limits.rows: the tuple has 1024, found 512",
        "environment.torch: the tuple has 2.9, found 2.10"]
    elsewhere = {**document(), "deployment": "toy-h200"}
    moved = Difference("deployment", "toy-h100", "toy-h200")
    assert check(tuple_, {"tile": elsewhere}) == [moved]
    renamed = {**document(), "program": "tiles"}
    assert check(tuple_, {"tile": renamed}) == [Difference("tile.program", "tile", "tiles")]
    assert check(tuple_, {"norm": {**elsewhere, "family": "norm", "program": "norm"}}) == [
        moved, Difference("families.tile", "tile", None), Difference("families.norm", None, "norm")]


def test_detents_version_is_always_compared() -> None:
    old = new(environment={"detent": "0.0.9"})
    told = Difference("environment.detent", "0.0.9", __version__)
    assert check(old, {"tile": document()}) == [told]
    for fails in (lambda: old.bind(FULL), lambda: old.assignment_for(document(), "tile.py:tile", "toy-h100")):
        with pytest.raises(TupleMismatch) as caught:
            fails()
        assert caught.value.differences == [told]
    assert new(environment={"detent": None}).bind({}).environment["detent"] == __version__


def test_assignment_for_names_the_command() -> None:
    tuple_ = new()
    assert tuple_.assignment_for(document(), "tile.py:tile", "toy-h100") == DEFAULT
    with pytest.raises(TupleMismatch) as caught:
        tuple_.assignment_for({**document(), "deployment": "box", "family": "norm"}, "my fam/norm.py:norm", "a b.toml")
    assert caught.value.differences == [Difference("deployment", "toy-h100", "box")]
    assert caught.value.remedy.endswith(
        "detent tuple new --deployment 'a b.toml' --program 'my fam/norm.py:norm' FILE")
    with pytest.raises(DetentError, match="families lacks norm, it has tile; .* --deployment toy-h100 FILE"):
        tuple_.assignment_for({**document(), "family": "norm"}, "norm", "toy-h100")


def test_check_refuses_what_no_solution_has() -> None:
    solutions = {"tile": document()}

    def changed(**parts: Any) -> CommitmentTuple:
        return CommitmentTuple("toy-h100", {"tile": {**new().families["tile"], **parts}}, {})

    with pytest.raises(UnknownName, match="families.tile.pins: unknown pin 'split'; did you mean 'splits'"):
        check(changed(pins={"small": True, "split": 2}), solutions)
    with pytest.raises(UnknownName, match="families.tile.knobs: unknown knob 'strides'"):
        check(changed(knobs={"strides": 256}), solutions)
    with pytest.raises(DetentError, match="tile: no value for splits"):
        check(changed(pins={"small": True}), solutions)
    with pytest.raises(NotLegal, match="tile.splits: 3 is no value of this pin; its values are 1, 2, 4"):
        check(changed(pins={"small": True, "splits": 3}), solutions)
    with pytest.raises(NotLegal, match="splits=1, stride=128 is not legal: tile.py:12: require"):
        check(changed(pins={"small": True, "splits": 1}, knobs={"stride": 128}), solutions)
    with pytest.raises(DetentError, match="nothing to compare family tile with, .* there is norm; .*--program"):
        check(new(), {"norm": {**document(), "family": "norm"}})
    norm = {**document(), "family": "norm"}
    with pytest.raises(DetentError, match="families lacks norm; .*detent tuple new"):
        check(new(), {**solutions, "norm": norm})
    both = CommitmentTuple.new("toy-h100", {**solutions, "norm": norm})
    assert check(both, solutions, whole=False) == []
    with pytest.raises(DetentError, match="nothing to compare family norm with"):
        check(both, solutions)


def test_bad_choices() -> None:
    with pytest.raises(UnknownName, match="tle.splits: unknown family 'tle'; did you mean 'tile'"):
        new(choices={"tle.splits": "2"})
    with pytest.raises(UnknownName, match="unknown family 'splits'"):
        new(choices={"splits": "2"})
    with pytest.raises(UnknownName, match="tile: unknown pin or knob 'split'; did you mean 'splits'"):
        new(choices={"tile.split": "2"})
    with pytest.raises(NotLegal, match="'two' is no value of type int it can take; its values are 1, 2, 4"):
        new(choices={"tile.splits": "two"})
    with pytest.raises(NotLegal, match="require call.rows <= splits"):
        new(choices={"tile.splits": "1", "tile.stride": "128"})


@pytest.mark.parametrize(("change", "told"), [
    (lambda c: c["families"]["tile"]["pins"].update(splits=2), "hash: the tuple has .* it was edited"),
    (lambda c: c.update(hash="0"), "hash: the tuple has 0"),
    (lambda c: c.update(format=2), "format 2; this Detent reads format 1"),
    (lambda c: c.update(format=True), "format True; this Detent reads format 1"),
    (lambda c: c.update(format=1.0), "format 1.0; this Detent reads format 1"),
    (lambda c: c.update(hash=3), "hash is not a string"),
    (lambda c: c["families"]["tile"].update(program=None), "families.tile.program is not a string"),
    (lambda c: c["families"]["tile"].update(key=1), "families.tile.key is not a string"),
    (lambda c: c.pop("hash"), "lacks hash"),
    (lambda c: c.update(family={}), "unknown key 'family'; did you mean 'families'"),
    (lambda c: c["families"]["tile"].pop("knobs"), "families.tile lacks knobs"),
    (lambda c: c["families"].update(tile=3), "families.tile is not an object"),
    (lambda c: c["families"]["tile"].update(pins=[1]), "families.tile.pins is not an object"),
    (lambda c: c["families"]["tile"]["pins"].update(splits=[2]), "families.tile.pins.splits is no scalar"),
    (lambda c: c["environment"].update(gpus="x"), "environment: unknown key 'gpus'; did you mean 'gpu'"),
    (lambda c: c["environment"].pop("gpu"), "environment lacks gpu"),
    (lambda c: c["environment"].update(gpu=1), "environment.gpu is 1"),
    (lambda c: c.update(deployment=None), "deployment is not a string"),
])
def test_bad_files(path: Path, change: Any, told: str) -> None:
    with pytest.raises(DetentError, match=told) as caught:
        CommitmentTuple.load(str(edited(path, change)))
    assert str(path) in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize(("text", "told"), [
    ("{", "is not JSON"), ("[]", "the content is not an object; give a file that detent tuple new wrote"),
    ("[" * 100_000, "is not JSON: it nests too deeply"), ('{"a": 1e999}', "1e999 is beyond the largest double"),
    (f'{{"a": {"9" * 5000}}}', "an integer of 5000 digits is too long"), ('{"a": 1, "a": 2}', "key 'a' appears twice"),
    ('{"a": NaN}', "NaN is no finite number"), (None, "No such file .*detent tuple new")])
def test_files_that_are_no_tuple(tmp_path: Path, text: str | None, told: str) -> None:
    if text is not None:
        (tmp_path / "t.json").write_text(text)
    with pytest.raises(BadFile, match=told):
        CommitmentTuple.load(str(tmp_path / "t.json"))


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadFile, match="No space left"):
        new(choices={"tile.splits": "2"}).write(str(path))
    assert path.read_text() == text and [p.name for p in path.parent.iterdir()] == ["t.json"]


def test_links_are_followed_and_modes_kept(path: Path) -> None:
    link = path.parent / "link"
    link.symlink_to("t.json")
    path.chmod(0o640)
    mask = os.umask(0o077)
    try:
        new(choices={"tile.splits": "2"}).write(str(link))
    finally:
        os.umask(mask)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    assert CommitmentTuple.load(str(path)).assignment("tile")["splits"] == 2
    dangling = path.parent / "dangling"
    dangling.symlink_to("made.json")
    new().write(str(dangling))
    assert dangling.is_symlink() and (path.parent / "made.json").is_file()


def test_a_file_with_two_names_keeps_both(path: Path) -> None:
    other = path.parent / "other.json"
    other.hardlink_to(path)
    new(choices={"tile.splits": "2"}).write(str(path))
    assert other.samefile(path) and CommitmentTuple.load(str(other)).assignment("tile")["splits"] == 2


def test_devices_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_atomic(str(pipe), b"content")
    reader.join()
    assert read == [b"content"] and pipe.is_fifo()
    write_atomic(os.devnull, b"content")
    assert not os.path.isfile(os.devnull) and os.path.exists(os.devnull)


@pytest.mark.parametrize(("name", "told"), [
    (".", "Is a directory"), ("", "'': No such file"), ("no/t.json", "No such")])
def test_paths_that_cannot_be_written(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadFile, match=f"{told}.*; name a file in a folder you may write to"):
        new().write(name)
    assert not list(tmp_path.iterdir())


def test_a_file_that_may_not_be_written_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadFile, match="Permission denied"):
        new(choices={"tile.splits": "2"}).write(str(path))
    assert path.read_text() == text
