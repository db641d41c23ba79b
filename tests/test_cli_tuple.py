"""``detent tuple``: a whole tuple from defaults and settings, what is in it, and what no longer fits."""

from __future__ import annotations

import json
from pathlib import Path

from cli_support import DEPLOYMENT, done, invoke, loaded, refused

from detent.runtime.tuple import CommitmentTuple


def test_new_writes_defaults_for_every_family_that_applies(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    text = done("tuple", "new", "--deployment", DEPLOYMENT, path)
    commitment = CommitmentTuple.load(str(path))
    assert {"attention", "moe"} <= set(commitment.families)
    assert commitment.assignment("moe") == {"row": 4096, "align": "sort"}
    assert commitment.hash in text and f"wrote {path}" in text
    assert "open until the first start on the target machine: kernels, torch" in " ".join(text.split())
    dense = tmp_path / "dense.json"
    done("tuple", "new", "-d", "llama-3.1-70b-tp4-h200", dense)
    families = set(CommitmentTuple.load(str(dense)).families)
    assert "attention" in families and "moe" not in families


def test_settings_once_or_in_a_row(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    first = loaded("tuple", "new", "-d", DEPLOYMENT, "--set", "moe.row=256", "--set", "attention.split_stride=512", one)
    second = loaded("tuple", "new", "-d", DEPLOYMENT, "--set", "moe.row=256", "attention.split_stride=512", two)
    assert first == second and one.read_bytes() == two.read_bytes()
    assert first["families"]["moe"]["pins"]["row"] == 256
    assert first["families"]["attention"]["knobs"]["split_stride"] == 512
    assert first["hash"] == json.loads(one.read_text(encoding="utf-8"))["hash"]
    assert "torch" in first["open"] and "detent" not in first["open"]


def test_show(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    written = loaded("tuple", "new", "-d", DEPLOYMENT, "--set", "moe.row=256", path)
    assert loaded("tuple", "show", path) == loaded("tuple", "show", "-d", DEPLOYMENT, path) == written
    text = done("tuple", "show", path)
    assert written["hash"] in text and "split_stride" in text and "256" in text
    assert "deployment: the tuple has" in refused("tuple", "show", "-d", "qwen3-30b-a3b-tp4-h100", path)


def test_check_says_which_part_differs(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    done("tuple", "new", "-d", DEPLOYMENT, path)
    assert done("tuple", "check", "-d", DEPLOYMENT, path) == done("tuple", "check", path)
    assert "matches" in done("tuple", "check", path)
    other = invoke("tuple", "check", "-d", "qwen3-30b-a3b-tp4-h100", path, "--json")
    parts = [d["part"] for d in json.loads(other.stdout)["differences"]]
    assert other.exit_code == 1 and parts == ["deployment", "moe.facts.moe.table"]
    text = invoke("tuple", "check", "-d", "qwen3-30b-a3b-tp4-h100", path)
    assert text.exit_code == 1 and "moe.facts.moe.table: the tuple has sha256:" in text.stdout


def test_check_of_an_edited_file(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    done("tuple", "new", "-d", DEPLOYMENT, path)
    path.write_text(path.read_text(encoding="utf-8").replace('"row": 4096', '"row": 256'), encoding="utf-8")
    result = invoke("tuple", "check", path)
    assert result.exit_code == 1 and "  hash: the tuple has" in result.stdout
    assert "edited after it was written" in refused("tuple", "show", path)


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    new = ["tuple", "new", "-d", DEPLOYMENT]
    assert "is not legal: programs/attention.py:" in refused(*new, "--set", "attention.num_splits=2", path)
    assert "'x' is no value of type int" in refused(*new, "--set", "moe.row=x", path)
    assert "did you mean 'attention'?" in refused(*new, "--set", "atention.pdl=true", path)
    assert "did you mean 'row'?" in refused(*new, "--set", "moe.rows=1", path)
    assert "write --set family.name=value" in refused(*new, "--set", "moe.row", path)
    assert "given twice" in refused(*new, "--set", "moe.row=1", "--set", "moe.row=2", path)
    assert "give one FILE" in refused(*new, path, "other.json")
    assert "does not apply" in refused("tuple", "new", "-d", "llama-3.1-70b-tp4-h200", "--program", "moe", path)
    assert "both of family" in refused(*new, "--program", "moe", "--program", "moe", path)
    assert not list(tmp_path.iterdir())
    path.write_text("{", encoding="utf-8")
    assert f"{path}: is not JSON" in refused("tuple", "check", path)


def test_a_tuple_for_another_deployment_selects_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    done("tuple", "new", "-d", "qwen3-30b-a3b-tp4-h100", path)
    line = refused("select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens=1", "--tuple", path)
    assert f"{path}: deployment: the tuple has qwen3-30b-a3b-tp4-h100" in line
    assert f"write one: detent tuple new --deployment {DEPLOYMENT} FILE" in line


def test_a_tuple_for_other_families_is_told_apart_by_its_deployment(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    llama = "llama-3.1-70b-tp4-h200"
    done("tuple", "new", "-d", DEPLOYMENT, "--program", "attention", "--program", "moe", path)
    other = invoke("tuple", "check", "-d", llama, "--program", "attention", path)
    assert other.exit_code == 1 and f"deployment: the tuple has {DEPLOYMENT}, found {llama}" in other.stdout
    assert "not compared here: family moe" in done("tuple", "check", "--program", "attention", path)
    done("tuple", "new", "-d", llama, "--program", "attention", path)
    line = refused("select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens=1", "--tuple", path)
    assert f"{path}: deployment: the tuple has {llama}" in line


def test_check_compares_versions_and_says_what_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    done("tuple", "new", "-d", DEPLOYMENT, "--program", "moe", path)
    commitment = CommitmentTuple.load(str(path))
    old = CommitmentTuple(commitment.deployment, commitment.families, {**commitment.environment, "detent": "0.0.9"})
    old.write(str(path))
    result = invoke("tuple", "check", "--program", "moe", path)
    assert result.exit_code == 1 and "1 difference\n  environment.detent: the tuple has 0.0.9" in result.stdout
    line = refused("select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens=1", "--tuple", path)
    assert "environment.detent" in line
    renamed = {"moe": {**commitment.families["moe"], "program": "other"}}
    CommitmentTuple(commitment.deployment, renamed, commitment.environment).write(str(path))
    result = invoke("tuple", "check", "--program", "moe", path)
    assert result.exit_code == 1 and "moe.program: the tuple has other, found moe" in result.stdout
    commitment.bind({"gpu": "H100"}).write(str(path))
    assert "not compared here: gpu" in done("tuple", "check", "--program", "moe", path)
    assert loaded("tuple", "check", "--program", "moe", path)["not_compared"] == ["gpu"]


def test_a_deployment_that_is_a_file_has_to_be_given(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    CommitmentTuple("box", {}, {}).write(str(path))
    assert "give its TOML file with --deployment" in refused("tuple", "check", path)
    assert "Is a directory; name a file" in refused("tuple", "new", "-d", DEPLOYMENT, "--program", "moe", tmp_path)
