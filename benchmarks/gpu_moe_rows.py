"""Which rows of tuned fused-MoE tables agree bit for bit: ``python benchmarks/gpu_moe_rows.py [TABLE or DEPLOYMENT]``.

A row's kernels run on the same data as every other row's of the same width, and with them the row that the engines'
deterministic modes use. Compared are five outputs: the first GEMM's, the second's, both again on data whose products
cancel exactly (what is left is the rounding of the sum, so that any other order shows in nearly every element), and the
layer's. Rows are of one class if all five are equal. As a control the same products are added in the opposite order,
which must not agree. Prints a matrix a table and writes JSON to ``$OUT/moe_rows.json``.

What is expected beforehand (``predicted``): every configuration adds an output's products in ascending order, sixteen
an instruction, into one accumulator; BLOCK_SIZE_K only says how many instructions a turn of the loop has, and behind
the last column it adds zeros. The other columns move whole elements about. So only the instruction can tell rows apart
(``mma.sync`` below 64 rows a tile, ``wgmma`` from there), if the two add their sixteen products in different ways.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import torch

from detent.bench.gpu.environment import environment
from detent.kernels.moe import COLUMNS, DEFAULTS, Row, align, grouped_gemm, moe, row_of

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
DETERMINISTIC = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
EXPERTS, HIDDEN, TOP_K = 128, 2048, 8  # Qwen3-30B-A3B
TOKENS = 512


def shipped() -> list[Path]:
    """The tables of the engines for 128 experts."""
    return sorted(PROGRAMS.glob("tables/*-*/**/E=128,N=*.json"))


def table_of(name: str) -> Path:
    """A table's file, or that of a deployment of Detent."""
    if name.endswith(".json"):
        return Path(name)
    file = PROGRAMS / "deployments" / f"{name}.toml"
    return Path(file.parent / tomllib.loads(file.read_text(encoding="utf-8"))["moe"]["table"]["json"]).resolve()


def label(path: Path) -> str:
    """``vllm-0.26.0 N=192 H200``."""
    engine = next(part for part in path.parts[::-1] if re.match(r"(vllm|sglang)-", part))
    return f"{engine} N={width_of(path)} {'H200' if 'H200' in path.name else 'H100'}"


def width_of(path: Path) -> int:
    """Columns of an expert's intermediate layer: 768 / tensor-parallel degree."""
    return int(re.search(r",N=(\d+),", path.name).group(1))


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    """A table's rows by their number of tokens; a table may also have a note."""
    return {key: row for key, row in json.loads(path.read_text(encoding="utf-8")).items() if key.isdigit()}


def short(row: Row) -> str:
    return "/".join(map(str, row))


def instruction(row: Row) -> str:
    return "wgmma" if row.block_m >= 64 else "mma.sync"


def predicted(rows: list[Row]) -> dict[str, Any]:
    """The classes expected before anything runs: one, if both instructions add alike, as published measurements of
    rows with both say for one table on H100; else at most one an instruction."""
    return {"classes": 1, "at_most": len({instruction(row) for row in rows}),
            "by_instruction": {short(row): instruction(row) for row in rows}}


class Data:
    """One width's weights and tokens; ``cancelling`` ones have second halves that undo the first."""

    def __init__(self, width: int, seed: int = 0) -> None:
        at = torch.Generator("cuda").manual_seed(seed)

        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(shape, generator=at, device="cuda") * scale).bfloat16()

        self.width = width
        self.x, self.places = normal(TOKENS, HIDDEN), normal(TOKENS * TOP_K, width)
        self.gate_up = normal(EXPERTS, 2 * width, HIDDEN, scale=HIDDEN**-0.5)
        self.down = normal(EXPERTS, HIDDEN, width, scale=width**-0.5)
        shares, ids = torch.rand(TOKENS, EXPERTS, generator=at, device="cuda").topk(TOP_K)
        self.ids, self.shares = ids.to(torch.int32), shares / shares.sum(1, keepdim=True)

    @staticmethod
    def cancelling(rows: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, weights, half = rows.clone(), weights.clone(), rows.shape[1] // 2
        rows[:, half:], weights[..., half:] = -rows[:, :half], weights[..., :half]
        return rows, weights

    def outputs(self, row: Row, backwards: bool = False) -> dict[str, torch.Tensor]:
        """What is compared, as bits. ``backwards``: the same products, the last first."""
        found = {}
        blocks = align(self.ids, EXPERTS, row.block_m)
        pairs = TOKENS * TOP_K
        for kind in ("", " cancelling"):
            for name, a, b, second in (("gemm1", self.x, self.gate_up, False), ("gemm2", self.places, self.down, True)):
                a, b = self.cancelling(a, b) if kind else (a, b)
                if backwards:
                    a, b = a.flip(1).contiguous(), b.flip(2).contiguous()
                made = torch.full((pairs, b.shape[1]), float("nan"), device="cuda", dtype=torch.bfloat16)
                grouped_gemm(a, b, made, self.shares, blocks, row, second=second)
                found[name + kind] = made
        if not backwards:
            found["layer"] = moe(self.x, self.gate_up, self.down, self.ids, self.shares,
                                 row=dict(zip(COLUMNS, row, strict=True)))
        for name, made in found.items():
            if made.isnan().any():
                raise AssertionError(f"{short(row)}: {name} has elements that were not written")
        return {name: made.view(torch.int16) for name, made in found.items()}


def agreement(paths: list[Path]) -> dict[str, Any]:
    """For each table: its rows' classes, and a matrix of the share of elements that differ, over all outputs."""
    found: dict[str, Any] = {}
    reference = row_of(DETERMINISTIC)
    for width in sorted({width_of(path) for path in paths}):
        data = Data(width)
        own = [path for path in paths if width_of(path) == width]
        rows = list(dict.fromkeys([reference, *(row_of(row) for path in own for row in rows_of(path).values())]))
        kept, classes, failed = [], {}, {}
        for row in rows:
            try:
                made = data.outputs(row)
            except Exception as error:  # a row that cannot run here says so in the report
                failed[short(row)] = repr(error)[:200]
                continue
            for at, (_, other) in enumerate(kept):
                if all(torch.equal(made[name], other[name]) for name in made):
                    classes[row] = at
                    break
            else:
                classes[row] = len(kept)
                kept.append((row, made))
        shares = [[{name: float((one[name] != other[name]).double().mean()) for name in one} for _, other in kept]
                  for _, one in kept]
        turned, straight = data.outputs(reference, backwards=True), kept[0][1]
        control = {name: round(float((turned[name] != straight[name]).double().mean()), 4) for name in turned}
        for path in own:
            table = {"deterministic": DETERMINISTIC} | rows_of(path)
            keys = [key for key, row in table.items() if row_of(row) in classes]
            own_class = {key: classes[row_of(table[key])] for key in keys}
            names = {number: chr(65 + at) for at, number in enumerate(dict.fromkeys(own_class.values()))}
            expected = predicted([row_of(row) for row in table.values()])
            found[label(path)] = {
                "table": path.name, "configurations": len(set(map(short, map(row_of, table.values())))),
                "rows": {key: short(row_of(row)) for key, row in table.items()},
                "classes": {key: names[number] for key, number in own_class.items()},
                "matrix": [[int(own_class[one] == own_class[other]) for other in keys] for one in keys],
                "differing_share_between_classes": {
                    f"{names[one]}{names[other]}": {name: round(share, 6) for name, share in shares[one][other].items()}
                    for one in names for other in names if one < other},
                "control_backwards": control,
                "failed": {short(row_of(row)): failed[short(row_of(row))] for row in table.values()
                           if short(row_of(row)) in failed},
                "predicted": expected, "as_predicted": len(names) == expected["classes"] and not failed,
            }
        del data, kept
        torch.cuda.empty_cache()
    return found


def show(found: dict[str, Any], briefly: bool = False) -> None:
    """A matrix a table: a row, and which others it equals (``=``) or not (``x``); ``briefly``: where some differ."""
    for name, table in found.items():
        classes = len(set(table["classes"].values()))
        print(f"\n{name}: {len(table['classes'])} rows, {table['configurations']} configurations, {classes} class(es), "
              f"predicted {table['predicted']['classes']}; backwards differs in {table['control_backwards']}")
        if briefly and classes == 1 and not table["failed"]:
            continue
        for (key, letter), line in zip(table["classes"].items(), table["matrix"], strict=True):
            print(f"  {key:>13} {table['rows'][key]:>20} {''.join('x='[same] for same in line)} {letter}")
        for row, why in table["failed"].items():
            print(f"  {row} did not run: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", help="tables' files or deployments (default: every table for 128 experts)")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for the JSON (default $OUT)")
    arguments = parser.parse_args()
    found = agreement([table_of(name) for name in arguments.tables] or shipped())
    show(found)
    result = {"environment": environment(["python", *sys.argv]), "columns": COLUMNS, "defaults": DEFAULTS,
              "tables": found}
    (Path(arguments.out) / "moe_rows.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
