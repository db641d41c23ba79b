"""Deployments: what a file becomes, and every way it can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent.runtime.deployment import known, load
from detent.runtime.errors import BadFile, DetentError, UnknownName


def write(folder: Path, body: str, table: str | None = None) -> str:
    (folder / "d.toml").write_text(body)
    if table is not None:
        (folder / "t.json").write_text(table)
    return str(folder / "d.toml")


TABLE = '[moe]\ntable = { json = "t.json" }\n'
DROP = '[moe]\ntable = { json = "t.json", drop = ["triton_version"] }\n'


def test_every_deployment_that_comes_with_detent_loads() -> None:
    assert "qwen3-30b-a3b-tp4-h100" in known()
    for name in known():
        deployment = load(name)
        assert deployment.name == deployment.id == name
        assert deployment.facts["limits"]["max_num_seqs"] == (1024 if "gpu" in deployment.facts else 512)
        assert "deployment" not in deployment.facts


def test_table_keeps_the_order_of_the_file_under_int_keys(tmp_path: Path) -> None:
    path = write(tmp_path, DROP, '{"triton_version": "3", "64": {"warps": 8}, "1": {"warps": 4}, "-2": {"x": 1.0}}')
    deployment = load(path)
    assert list(deployment.facts["moe"]["table"].items()) == [(64, {"warps": 8}), (1, {"warps": 4}), (-2, {"x": 1.0})]
    assert deployment.files == (path, str(tmp_path / "t.json"))
    assert deployment.name == "d" and deployment.id == path


def test_scalars_and_lists(tmp_path: Path) -> None:
    head = '[deployment]\nname = "n"\ndescription = "what"\n'
    deployment = load(write(tmp_path, head + '[a]\nx = 1\ny = 1.5\nz = true\ns = "t"\nl = [1, 2]\n'))
    assert (deployment.name, deployment.description) == ("n", "what")
    assert deployment.facts == {"a": {"x": 1, "y": 1.5, "z": True, "s": "t", "l": (1, 2)}}


def test_unknown_name_guesses() -> None:
    with pytest.raises(UnknownName, match="did you mean 'qwen3-30b-a3b-tp4-h100'") as caught:
        load("qwen3-30b-a3b-tp4-h10")
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    with pytest.raises(UnknownName, match="unknown deployment '../deployments/x'"):
        load("../deployments/x")


@pytest.mark.parametrize(("body", "table", "told"), [
    (TABLE, '{"1": {}, "one": {}}', "t.json: key 'one' is not an integer"),
    (TABLE, '{"1_0": {}}', "key '1_0' is not an integer"),
    (TABLE, '{"1": {}, "1": {}}', "key '1' appears twice"),
    (TABLE, '{"1": {}, "01": {}}', "key 1 appears twice"),
    (TABLE, '{"1": 5}', "key '1' holds 5, not an object"),
    (TABLE, '{"1": {"w": null}}', "1.w is of type NoneType"),
    (TABLE, '{"1": {"w": NaN}}', "NaN is no finite number"),
    (TABLE, '[1]', "holds a list, not an object"),
    (TABLE, '{', "is not a JSON table"),
    (DROP, '{"triton_versio": 1}', "unknown key to drop 'triton_version'; did you mean 'triton_versio'"),
    (TABLE, None, "moe.table: there is no file"),
    ('[moe]\ntable = { json = "t.json", dorp = [] }\n', "{}", "unknown key 'dorp'; did you mean 'drop'"),
    ('[moe]\ntable = { json = 3 }\n', "{}", "moe.table: json is a path"),
    ('[moe]\ntable = { one = { w = 1 } }\n', None, "moe.table: key 'one' is not an integer"),
    ('x = 1\n', None, "x stands outside of a section"),
    ('[a]\nx = inf\n', None, "a.x is inf"),
    ('[a]\nx = 2020-01-01\n', None, "a.x is of type date"),
    ('[a]\nx = [1, [2]]\n', None, r"a.x\[1\] is of type list"),
    ('[a]\nx = 1\nx = 2\n', None, "is not TOML"),
    ("[a]\nx = " + "[" * 50_000, None, "is not TOML: it nests too deeply"),
    (f"[a]\nx = {'9' * 5000}\n", None, "is not TOML: an integer in it is too long"),
    (f"[a]\nx = 0x{'f' * 5000}\n", None, "a.x is an integer of 20000 bits; an integer fact has at most 64"),
    (f"[deployment]\nname = 0x{'f' * 5000}\n", None, "deployment.name is <int>"),
    (f"[deployment]\nname{'.a' * 5000} = 1\n", None, "deployment.name is <dict>"),
    (f"[moe]\ntable.{'9' * 5000}.w = 1\n", None, "moe.table: a key has 5000 digits"),
    (TABLE, f'{{"{"9" * 5000}": {{}}}}', "a key has 5000 digits"),
    (TABLE, f'{{"1": {{"w": {"9" * 5000}}}}}', "an integer of 5000 digits is too long"),
    (TABLE, '{"1": {"w": 1e999}}', "1e999 is beyond the largest double"),
    (TABLE, '{"1": ' + "[" * 100_000, "is not a JSON table: it nests too deeply"),
    ('[deployment]\nnam = "x"\n', None, "deployment: unknown key 'nam'; did you mean 'name'"),
    ('[deployment]\nname = 3\n', None, "deployment.name is 3"),
])
def test_bad_files(tmp_path: Path, body: str, table: str | None, told: str) -> None:
    with pytest.raises(DetentError, match=told):
        load(write(tmp_path, body, table))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file"):
        load(str(tmp_path / "no.toml"))
