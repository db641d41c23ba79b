"""Tuned MoE tables: what a file's name says it is for, and whether that is what a deployment runs.

Both engines look a table up by its name: experts on a rank, columns of an expert's intermediate layer on a rank, GPU.
"""

from __future__ import annotations

import os
import re

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
OPTIONAL = ("num_warps", "num_stages")
"""What Triton has a number for where a row names none."""
NAME = re.compile(r"E=(?P<experts>\d+),N=(?P<width>\d+),device_name=(?P<gpu>[^,]+?)(?P<options>(,.*?)?)(?P<down>_down)?"
                  r"\.json")
OPTION = re.compile(r",(\w+)=(\[[^\]]*\]|[^,]*)")


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


def require_tables(deployment: Deployment, where: str) -> None:
    """Raises BadFile for a table without its columns, and for one that no engine would use here."""
    for key, table in deployment.facts.get("moe", {}).items():
        if isinstance(table, dict):
            _require_rows(where, f"moe.{key}", table)
    for place, file in deployment.sources.items():
        _require_fits(deployment.facts, where, place, os.path.basename(file))


def _require_rows(where: str, place: str, table: Mapping[int, Mapping[str, Any]]) -> None:
    for number, row in table.items():
        if number < 1:
            raise BadFile(where, f"{place}: row {number}", "a row's key is a number of tokens, at least 1")
        for column in (*COLUMNS, *(column for column in OPTIONAL if column in row)):
            if column not in row:
                raise BadFile(where, f"{place}: row {number} has no {column}", "give the table as the engine ships it")
            value = row[column]
            if type(value) is not int or value < 1:
                raise BadFile(where, f"{place}: row {number}: {column} is {value!r}", "it is a positive integer")


def _require_fits(facts: Mapping[str, Mapping[str, Any]], where: str, place: str, file: str) -> None:
    """Compare what the file's name says with the facts; a name of another form says nothing."""
    said = NAME.fullmatch(file)
    if said is None:
        return
    moe, parallel, gpu = (facts.get(section, {}) for section in ("moe", "parallel", "gpu"))
    told: list[tuple[str, object, tuple[object, ...]]] = []
    try:
        experts, width = shape(moe, parallel)
        told += [("experts", int(said["experts"]), (experts,)), ("columns of an expert", int(said["width"]), (width,)),
                 ("GPU", said["gpu"], (gpu["name"],))]
    except KeyError:
        pass  # the program asks for it
    told.append(("GEMM", "the second" if said["down"] else "the first",
                 ("the second" if place.endswith(".down_table") else "the first",)))
    options = dict(OPTION.findall(said["options"]))
    if "quantization" in moe:
        told.append(("number type", options.pop("dtype", "none"), _number_types(moe["quantization"], facts)))
        blocks = [moe.get("block_n"), moe.get("block_k")]
        told.append(("block_shape", options.pop("block_shape", "none").replace(" ", ""),
                     (f"[{blocks[0]},{blocks[1]}]" if None not in blocks else "none",)))
    told += [(name, value, ("none",)) for name, value in options.items() if name not in ("dtype", "block_shape")]
    for what, table, fitting in told:
        if table not in fitting:
            raise BadFile(where, f"the table {file} is for {what} {table}, the facts say {fitting[0]}",
                          "give the table of this model, quantisation, tensor-parallel degree and GPU, or none")


def _number_types(quantization: str, facts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """What may stand for the weights' number type in a name, the deployment's own first."""
    if quantization == "none":
        return ("float32" if facts.get("model", {}).get("dtype") == "fp32" else "none",)
    # vLLM knows tables of this type by name and looks for one without a type all the same.
    return (quantization, "none") if quantization == "int8_w8a8" else (quantization,)
