"""Parts of the vLLM plug-in's start-up that need no vLLM: inertness, facts, identity, and ranks that compare tuples."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_support import done

from detent.engines.vllm import facts, hooks, identity, options, rules
from detent.runtime.errors import DetentError, Refused
from detent.runtime.tuple import CommitmentTuple

INERT = """
import sys
before = set(sys.modules)
from detent.engines.vllm.plugin import register
register()
print(*sorted(name for name in set(sys.modules) - before if name.startswith("detent")))
"""


def test_without_a_tuple_nothing_is_imported(root: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "DETENT_TUPLE"}
    run = subprocess.run([sys.executable, "-c", INERT], cwd=root, env=variables, check=True, capture_output=True,
                         text=True)
    assert set(run.stdout.split()) <= {"detent", "detent.engines", "detent.engines.vllm",
                                       "detent.engines.vllm.plugin"}


# ---- facts ----------------------------------------------------------------------------------------------------------


def test_the_facts_that_are_compared_are_those_that_programs_read(root: Path, tmp_path: Path) -> None:
    """``tests_engines/plugin_process.py`` has a tuple that nobody solved."""
    done("tuple", "new", "-d", "llama-3.1-8b-tp1-h200", tmp_path / "tuple.json")
    read = facts.read(CommitmentTuple.load(str(tmp_path / "tuple.json")))
    tree = ast.parse((root / "tests_engines" / "plugin_process.py").read_text(encoding="utf-8"))
    listed = next(ast.literal_eval(each.value) for each in tree.body if isinstance(each, ast.Assign)
                  and isinstance(each.targets[0], ast.Name) and each.targets[0].id == "READ")
    assert set(read) - {"gpu.num_sm"} <= set(listed)


def test_a_line_for_each_fact_that_differs() -> None:
    wanted = {"model.hidden_size": 4096, "model.softcap": 0.0, "limits.max_num_seqs": 1024,
              "engine.full_graphs": True, "engine.page_size": 16, "engine.version": "0.26.0", "gpu.num_sm": 132,
              "moe.table": "sha256:0", "model.norm_plus_one": None}
    same = {name: value for name, value in wanted.items() if name != "moe.table"}
    assert facts.differences(wanted, same, "d") == []
    below = {"limits.max_num_seqs": 16, "engine.full_graphs": False}
    assert facts.differences(wanted, {**same, **below}, "d") == []
    assert facts.differences(wanted, {"model.softcap": 0}, "d") != []  # 0 is not 0.0 for a program
    other = {"model.hidden_size": 2048, "limits.max_num_seqs": 2048, "engine.page_size": 32, "gpu.num_sm": 114,
             "engine.version": "0.27.0", "model.norm_plus_one": True}
    new = "write a deployment and a tuple for this engine (detent deployment new, detent tuple new)"
    assert facts.differences(wanted, {**same, **other}, "the-deployment") == [
        f"engine.page_size: the tuple has 16, the engine has 32: give --block-size 16, or {new}",
        f"engine.version: the tuple has 0.26.0, the engine has 0.27.0: install vllm==0.26.0, or {new}",
        f"gpu.num_sm: the tuple has 132, the engine has 114: use that GPU of the-deployment, or {new}",
        f"limits.max_num_seqs: the tuple has 1024 at most, the engine has 2048: give --max-num-seqs 1024, or {new}",
        f"model.hidden_size: the tuple has 4096, the engine has 2048: serve the model of the-deployment, or {new}",
        f"model.norm_plus_one: the tuple has none, the engine has true: serve the model of the-deployment, or {new}",
    ]


def test_own_rows_fit_the_coverage_table() -> None:
    table = rules.covered("0.26.0")
    assert len({row.id for row in table.rows}) == len(table.rows)
    switched = {(switch.kind, switch.name): switch for switch in table.switches() if not switch.has}
    for check in table.refusals():
        switch = switched.get((check.kind, check.name))
        assert switch is None or check.allows(switch.value), check
    assert any("LoRA" in row.what for row in table.rows)
    with pytest.raises(DetentError, match="vLLM 0.33.0 is installed, whose selections nobody has read"):
        rules.covered("0.33.0")


def test_variables_are_set_where_the_user_set_none(monkeypatch: pytest.MonkeyPatch) -> None:
    table = rules.covered("0.26.0")
    for switch in table.switches():
        if switch.kind == "env":
            monkeypatch.setenv(switch.name, "")
            monkeypatch.delenv(switch.name)
    options.set_environment(table)
    options.set_environment(table)
    assert os.environ["VLLM_FLOAT32_MATMUL_PRECISION"] == "highest"
    monkeypatch.setenv("VLLM_FLOAT32_MATMUL_PRECISION", "high")
    with pytest.raises(Refused, match="VLLM_FLOAT32_MATMUL_PRECISION is 'high': leave out the variable"):
        options.set_environment(table)


# ---- identity -------------------------------------------------------------------------------------------------------


def weights(folder: Path, value: int, shape: tuple[int, ...] = (64, 64)) -> str:
    """The identity of a folder with one file of one tensor."""
    folder.mkdir(exist_ok=True)
    size = 4 * shape[0] * shape[1]
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<I", value)
                                               * (size // 4))
    model = SimpleNamespace(model=str(folder), seed=0, revision=None)
    return identity.weights(model, SimpleNamespace(load_format="auto", download_dir=None))


def test_weights_are_told_apart_by_values_and_shapes(tmp_path: Path) -> None:
    first = weights(tmp_path / "a", 1)
    assert first.startswith("1 files ") and first == weights(tmp_path / "b", 1)
    assert len({first, weights(tmp_path / "c", 2), weights(tmp_path / "d", 1, (32, 128))}) == 3


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    model = SimpleNamespace(model=str(tmp_path), seed=0, revision=None)
    with pytest.raises(DetentError, match="no files of weights.*--load-format dummy"):
        identity.weights(model, SimpleNamespace(load_format="auto", download_dir=None))
    assert identity.weights(model, SimpleNamespace(load_format="dummy")) == "dummy, seed 0"


def exchanged(rank: int, place: str, bound: dict[str, Any], hash: str, results: Any) -> None:
    """In a process of its own: one rank's part of the comparison."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    try:
        identity.exchange(bound, hash, dist.group.WORLD)
        results.put((rank, ""))
    except Refused as error:
        results.put((rank, str(error)))
    dist.destroy_process_group()


def both(tmp_path: Path, *ranks: tuple[dict[str, Any], str]) -> list[str]:
    """What two ranks say that bound these environments and hashes."""
    pytest.importorskip("torch")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=exchanged, args=(rank, str(tmp_path / "group"), bound, hash, results))
                 for rank, (bound, hash) in enumerate(ranks)]
    for process in processes:
        process.start()
    said = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    return [said[rank] for rank in range(len(ranks))]


def test_ranks_with_the_same_tuple(tmp_path: Path) -> None:
    assert both(tmp_path, ({"gpu": "H200"}, "a" * 64), ({"gpu": "H200"}, "a" * 64)) == ["", ""]


def test_ranks_that_differ_stop_everywhere_and_say_in_what(tmp_path: Path) -> None:
    first, second = both(tmp_path, ({"gpu": "H200", "torch": "2.11"}, "a" * 64),
                         ({"gpu": "H100", "torch": "2.11"}, "b" * 64))
    assert first == second
    assert "the ranks do not serve under the same tuple" in first
    assert "rank 1: bbbbbbbbbbbbbbbb and not aaaaaaaaaaaaaaaa; gpu is H100, on rank 0 H200" in first


# ---- hooked names ------------------------------------------------------------------------------------------------


def test_a_name_that_a_tree_lacks_is_reported(tmp_path: Path) -> None:
    """Trees of real versions are looked through in ``tests_engines/test_plugin_names.py``."""
    for hook in hooks.HOOKS:
        file = tmp_path.joinpath(*hook.module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert hooks.missing(str(tmp_path)) == [f"{hook.module}:{hook.name}" for hook in hooks.HOOKS]
    assert hooks.missing(str(tmp_path / "nowhere")) == [f"{hook.module}: no such module" for hook in hooks.HOOKS]
