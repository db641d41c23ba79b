"""Tuned MoE tables: what a file's name says it is for, and whether that is what a deployment runs.

Both engines look a table up by its name: experts on a rank, columns of an expert's intermediate layer on a rank, GPU.
"""

from __future__ import annotations

import os
import re

from detent.runtime.coverage import require_known
from detent.runtime.deployment import PROGRAMS
from detent.runtime.errors import BadFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from detent.runtime.deployment import Deployment

FOLDER = os.path.join(PROGRAMS, "tables")
COLUMNS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
"""What every row of every table for the Triton kernels has."""
NAME = re.compile(r"E=(\d+),N=(\d+),device_name=([^,]+?)(,.*)?\.json")


def shape(moe: Mapping[str, Any], parallel: Mapping[str, Any]) -> tuple[int, int]:
    """Experts and columns of an expert on one rank, from the facts of two sections. KeyError for a missing fact."""
    experts, width, ranks = moe["num_experts"], moe["moe_intermediate_size"], parallel["tensor_parallel"]
    return (experts // ranks, width) if parallel["expert_parallel"] else (experts, width // ranks)


def name(moe: Mapping[str, Any], parallel: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    """The file in which an engine looks for the table of unquantised experts."""
    experts, width = shape(moe, parallel)
    return f"E={experts},N={width},device_name={gpu['name']}.json"


def find(engine: str, version: str, file: str) -> str | None:
    """Where a table of that name comes with Detent, relative to the programs' folder; None if it does not."""
    for folder, folders, names in os.walk(os.path.join(FOLDER, f"{engine}-{version}")):
        folders.sort(reverse=True)  # SGLang: the newest Triton first
        if file in names:
            return os.path.relpath(os.path.join(folder, file), PROGRAMS).replace(os.sep, "/")
    return None


def require_consistent(deployment: Deployment) -> None:
    """Raises UnknownName for an engine version that was not read, BadFile for a table that no engine would use here.

    Only what a deployment states is compared: what a program misses in it, the program asks for.
    """
    facts, path = deployment.facts, deployment.path
    engine = facts.get("engine", {})
    if isinstance(engine.get("name"), str) and isinstance(engine.get("version"), str):
        require_known(engine["name"], engine["version"], f"deployment {deployment.name}")
    for key, table in facts.get("moe", {}).items():
        if isinstance(table, dict):
            _require_rows(path, f"moe.{key}", table)
    for file in deployment.files[1:]:
        _require_fits(facts, path, os.path.basename(file))


def _require_rows(path: str, place: str, table: Mapping[int, Mapping[str, Any]]) -> None:
    for number, row in table.items():
        for column in COLUMNS:
            if column not in row:
                raise BadFile(path, f"{place}: row {number} has no {column}", "give the table as the engine ships it")
            value = row[column]
            if type(value) is not int or value < 1:
                raise BadFile(path, f"{place}: row {number}: {column} is {value!r}", "it is a positive integer")


def _require_fits(facts: Mapping[str, Mapping[str, Any]], path: str, file: str) -> None:
    said = NAME.fullmatch(file)
    if said is None:
        return
    moe, parallel, gpu = (facts.get(section, {}) for section in ("moe", "parallel", "gpu"))
    try:
        experts, width = shape(moe, parallel)
        device = gpu["name"]
    except KeyError:
        return
    spread = "num_experts" if parallel["expert_parallel"] else "moe_intermediate_size"
    if moe[spread] % parallel["tensor_parallel"]:
        return  # the program says that the ranks have no equal shares
    told = (("experts", int(said[1]), experts), ("columns of an expert", int(said[2]), width), ("GPU", said[3], device))
    for what, table, fact in told:
        if table != fact:
            raise BadFile(path, f"the table {file} is for {what} {table}, the facts say {fact}",
                          "give the table of this model, tensor-parallel degree and GPU, or none")
