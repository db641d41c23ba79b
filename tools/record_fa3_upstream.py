"""Records what FlashAttention-3's own selection says: ``python -m detent.tools.record_fa3_upstream HOPPER OUT``.

``HOPPER`` is the folder ``hopper`` of a checkout of Dao-AILab/flash-attention. Its selection is plain C++: two headers
and three functions of ``flash_api.cpp`` are compiled (``c++`` must be there) around a loop that reads the inputs of the
files recorded from SGLang's library and writes the same columns with this library's outputs.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from detent.programs.fa3_conform import HOST_COLUMNS, HOST_OUTPUTS, TILE_COLUMNS, TILE_OUTPUTS

COMMIT = "0251105a"
GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
FUNCTIONS = ("get_pagedkv_tma", "get_pack_gqa", "get_num_splits")

# The members of Flash_fwd_params that the three functions read; a pointer is only asked whether it is null.
PARAMETERS = """
#include <algorithm>
#include <cmath>
#include <cstdio>
#include "tile_size.h"
#include "heuristics.h"
struct Flash_fwd_params {
    int b, seqlen_q, seqlen_k, total_q, h, h_k, d, dv, d_rounded, dv_rounded, page_size, num_sm;
    int arch = 90, num_splits = 0;
    int window_size_left, window_size_right;
    bool is_causal, is_local, is_e4m3, pagedkv_tma;
    float softcap;
    bool cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, knew_ptr, page_table, num_splits_dynamic_ptr;
};
"""

# Rounded head dims as mha_fwd rounds them before it fills the parameters.
MAIN = """
static int rounded(int d) { for (int size : {64, 96, 128, 192, 256}) if (d <= size) return size; return 512; }
int main(int argc, char **) {
    if (argc > 1) {
        int d, dv, causal, local, bytes, colmajor, gathered, softcap, one_wg;
        while (scanf("%d %d %d %d %d %d %d %d %d", &d, &dv, &causal, &local, &bytes, &colmajor, &gathered, &softcap,
                     &one_wg) == 9) {
            auto t = tile_size_fwd_sm90(rounded(d), dv == d ? rounded(d) : rounded(dv), causal, local, bytes, colmajor,
                                        gathered, softcap);
            printf("%d,%d,%d,%d\\n", std::get<0>(t), std::get<1>(t), std::get<2>(t), std::get<3>(t));
        }
        return 0;
    }
    int v[24];
    for (;;) {
        for (int &x : v) if (scanf("%d", &x) != 1) return 0;
        Flash_fwd_params p;
        p.b = v[0]; p.seqlen_q = v[1]; p.seqlen_k = v[2]; p.total_q = v[3]; p.h = v[4]; p.h_k = v[5];
        p.d = v[6]; p.dv = v[7];
        p.d_rounded = rounded(p.d); p.dv_rounded = p.dv == p.d ? p.d_rounded : rounded(p.dv);
        p.is_causal = v[8]; p.is_local = v[9]; p.is_e4m3 = v[10]; p.softcap = v[11] ? 1.f : 0.f;
        p.cu_seqlens_q = v[12]; p.cu_seqlens_k = v[13]; p.seqused_q = v[14]; p.seqused_k = v[15]; p.leftpad_k = v[16];
        p.knew_ptr = v[17]; p.page_table = v[18]; p.page_size = v[19]; p.num_splits_dynamic_ptr = v[20];
        p.window_size_left = v[21]; p.window_size_right = v[22]; p.num_sm = v[23];
        p.pagedkv_tma = get_pagedkv_tma(p);
        p.num_splits = get_num_splits(p);
        printf("0,%d,%d,%d\\n", p.pagedkv_tma, p.num_splits, get_pack_gqa(p));
    }
}
"""


def function(source: str, name: str) -> str:
    """The text of one function of ``flash_api.cpp``: it ends at the first brace in the first column."""
    start = source.index(f" {name}(Flash_fwd_params const& params)")
    start = source.rindex("\n", 0, start) + 1
    return source[start:source.index("\n}", start) + 3]


def build(hopper: Path, folder: Path) -> Path:
    """Compile the selection; returns the program."""
    source = (hopper / "flash_api.cpp").read_text(encoding="utf-8")
    text = PARAMETERS + "\n".join(function(source, name) for name in FUNCTIONS) + MAIN
    (folder / "select.cpp").write_text(text, encoding="utf-8")
    program = folder / "select"
    subprocess.run(["c++", "-std=c++17", "-O1", "-ffp-contract=off", "-I", hopper, folder / "select.cpp", "-o",
                    program], check=True)
    return program


def record(command: Sequence[str | Path], rows: Sequence[Mapping[str, str]], inputs: Sequence[str],
           outputs: Sequence[str], path: Path) -> None:
    """Write the rows' inputs and what ``command`` prints for them."""
    lines = "\n".join(" ".join(row[name] for name in inputs) for row in rows)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout.split()
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*inputs, *(f"->{name}" for name in outputs)])
        writer.writerows([*(row[name] for name in inputs), *found.split(",")]
                         for row, found in zip(rows, done, strict=True))


def main() -> None:
    """Record both files."""
    hopper, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        program = build(hopper, Path(folder))
        with open(GOLDEN / "fa3_sglang-0.5.17.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        record([program], rows, HOST_COLUMNS, HOST_OUTPUTS, out / f"fa3_upstream-{COMMIT}.csv")
        with open(GOLDEN / "fa3_tiles_sglang-0.5.17.csv", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["use_one_mma_wg"] == "0"]
        record([program, "tiles"], rows, TILE_COLUMNS, TILE_OUTPUTS, out / f"fa3_tiles_upstream-{COMMIT}.csv")


if __name__ == "__main__":
    main()
