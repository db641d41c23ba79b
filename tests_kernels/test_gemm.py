"""Rows of ``gemm``: their bits hang on no other row, whatever the tile. On a GPU all layers of three models, else small
products in Triton's interpreter, which shows indices and accuracy."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from detent.kernels import gemm as gemm_module
from detent.kernels.gemm import GEOMETRIC, IMPLEMENTATIONS, PADDINGS, gemm, grid, padded

gemm_triton = pytest.importorskip("detent.kernels.gemm_triton")
from detent.kernels import gemm_deep  # noqa: E402

GPU = torch.cuda.is_available()
DTYPE = torch.bfloat16 if GPU else torch.float32
SHAPES = {  # (N, K) of qkv, output, gate and up, down, head; Qwen's experts are not linear layers, its router is
    "llama-3.1-8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    "llama-3.1-70b tp2": ((5120, 8192), (8192, 4096), (28672, 8192), (8192, 14336), (64128, 8192)),
    "qwen3-30b-a3b": ((5120, 2048), (2048, 4096), (128, 2048), (151936, 2048)),
}
SMALL = ((80, 192), (128, 64), (48, 136))
LAYERS = [shape for shapes in SHAPES.values() for shape in shapes] if GPU else list(SMALL)
DEVICE = "cuda" if GPU else "cpu"


def bits(rows: torch.Tensor) -> torch.Tensor:
    return rows.contiguous().view(torch.int16 if rows.dtype == torch.bfloat16 else torch.int32)


def wide(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    """On a GPU values of very different sizes, so that another order of additions shows. The interpreter adds each
    fetched block by itself, which no GPU does: there small integers, whose sums are exact in any order."""
    if not GPU:
        return torch.randint(-8, 9, (rows, columns), generator=generator).to(DTYPE)
    values = torch.randn(rows, columns, generator=generator, device=DEVICE)
    return (values * torch.exp2(torch.randint(-12, 13, values.shape, generator=generator, device=DEVICE))).to(DTYPE)


def poisoned(rows: int, columns: int) -> torch.Tensor:
    return torch.full((rows, columns), float("nan"), dtype=DTYPE, device=DEVICE)


def counts(draw: random.Random) -> list[int]:
    if not GPU:
        return [1, 2, 17, 66, draw.randrange(3, 140)]
    few = [1, 2, 7, 8, 16, 17, 33, 64, 65, 127, 129, 256, 257, 700, 1024, 2047]
    return few + [draw.randrange(1, 2048) for _ in range(24)]


def check_rows(call: Any, n: int, k: int, seed: int) -> int:
    """Rows alone against the same rows anywhere among others, some of which are no numbers; how many were compared."""
    draw = random.Random(seed)
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    weight = wide(generator, n, k)
    known = wide(generator, 64 if GPU else 6, k)
    alone = torch.cat([call(row[None], weight, poisoned(1, n)) for row in known])
    assert bool(torch.isfinite(alone.float()).all())
    compared = 0
    for rows in counts(draw):
        x = wide(generator, rows, k)
        x[torch.rand(rows, generator=generator, device=DEVICE) < 0.1] = float("nan")
        chosen = draw.sample(range(rows), min(rows, len(known)))
        which = draw.sample(range(len(known)), len(chosen))
        x[chosen] = known[which]
        found = call(x, weight, poisoned(rows, n))
        assert torch.equal(bits(found[chosen]), bits(alone[which])), f"{rows} rows"
        compared += len(chosen)
    return compared


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_padded_count_is_the_grids_next(padding: int) -> None:
    counts = grid(padding, 3000)
    assert counts == tuple(sorted(set(counts))) and counts[-1] >= 3000
    for rows in (*range(1, 600), 1025, 2047, 2048, 2999):
        assert padded(rows, padding) == next(count for count in counts if count >= rows)


def test_the_geometric_grid_wastes_at_most_an_eighth() -> None:
    assert len(grid(GEOMETRIC, 8192)) == 56
    assert all(padded(rows, GEOMETRIC) - rows < max(16, rows / 8) for rows in range(1, 5000))


@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_rows_of_triton_hang_on_no_other_row(n: int, k: int) -> None:
    def call(x: Any, weight: Any, out: Any) -> Any:
        return gemm(x, weight, padding=1, implementation="triton", out=out)

    assert check_rows(call, n, k, n + k) >= (1200 if GPU else 15)


@pytest.mark.parametrize("tile", gemm_triton.TILES, ids=lambda t: "-".join(map(str, t)))
def test_every_tile_gives_a_row_the_same_bits(tile: Any) -> None:
    n, k = (4096 + 136, 2048 + 72) if GPU else (160, 136)
    generator = torch.Generator(device=DEVICE).manual_seed(k)
    weight, x = wide(generator, n, k), wide(generator, 300 if GPU else 70, k)
    processors = torch.cuda.get_device_properties(0).multi_processor_count if GPU else 3
    first, out = poisoned(1, n), poisoned(x.shape[0], n)
    for at in (0, 5, x.shape[0] - 1):
        gemm_triton.launch(x[at : at + 1], weight, first, gemm_triton.TILES[0], processors, not GPU)
        gemm_triton.launch(x, weight, out, tile, processors, not GPU)
        assert torch.equal(bits(out[at : at + 1]), bits(first))
    assert_accurate(x, weight, out)


def assert_accurate(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    want = x.double() @ weight.double().T
    stock = (x @ weight.T).double()
    ours, theirs = (float((part.double() - want).norm() / want.norm()) for part in (out, stock))
    assert ours <= 2 * theirs + 1e-9


@pytest.mark.parametrize("rows", [1, 3, 65, 130])
def test_a_view_of_a_wider_tensor_is_multiplied_in_place(rows: int) -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(rows)
    x, weight = wide(generator, rows, 2 * 128)[:, 128:], wide(generator, 96, 3 * 128)[:, :128]
    out = poisoned(rows, 128)
    assert gemm(x, weight, padding=64, implementation="triton", out=out[:, 16:112]) is not None
    assert_accurate(x, weight, out[:, 16:112])
    assert bool(out[:, :16].isnan().all()) and bool(out[:, 112:].isnan().all())


def test_a_lone_row_may_have_any_step() -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(3)
    x, weight = wide(generator, 2, 128), wide(generator, 48, 128)
    odd, out = x[1:].as_strided((1, 128), (1, 1), 128), poisoned(1, 48)
    assert gemm(odd, weight, padding=8, implementation="triton", out=out).data_ptr() == out.data_ptr()
    assert torch.equal(bits(out), bits(gemm(x, weight, padding=8, implementation="triton")[1:]))


def test_no_rows_give_no_rows() -> None:
    weight = torch.zeros(64, 64, dtype=DTYPE, device=DEVICE)
    assert gemm(weight[:0], weight, padding=1, implementation="triton").shape == (0, 64)


REFUSED: dict[str, dict[str, Any]] = {
    "padding 3 ": {"padding": 3}, "implementation cublas": {"implementation": "cublas"}, "K 60 ": {"k": 60},
    "N 8 ": {"n": 8}, "N 20 ": {"n": 20}, "not contiguous": {"turn": True}, "do not begin": {"shift": 1},
    "out is not": {"out": (3, 64)}, "float64|bf16": {"dtype": torch.float64}, "overlap": {"step": 8},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_kernels_do_not_take_is_refused(words: str) -> None:
    case = {"n": 64, "k": 64, "padding": 1, "implementation": "triton", "shift": 0, "dtype": DTYPE} | REFUSED[words]
    x = torch.zeros(64 * 64 + 8, dtype=case["dtype"], device=DEVICE)[case["shift"] :]
    x = x.as_strided((4, case["k"]), (case.get("step", 64), 1)) if "turn" not in case else x[: 64 * 64].view(64, 64).T
    weight = torch.zeros(case["n"], case["k"], dtype=case["dtype"], device=DEVICE)
    out = torch.zeros(case["out"], dtype=DTYPE, device=DEVICE) if "out" in case else None
    with pytest.raises(ValueError, match=words):
        gemm(x, weight, padding=case["padding"], implementation=case["implementation"], out=out)


def test_a_tile_that_would_use_other_instructions_is_refused() -> None:
    weight = torch.zeros(64, 64, dtype=DTYPE, device=DEVICE)
    for tile in (gemm_triton.Tile(16, 64, 64, 3, 4), gemm_triton.Tile(64, 16, 64, 3, 4, swap=True)):
        with pytest.raises(ValueError, match="other instructions"):
            gemm_triton.launch(weight, weight, weight, tile, 4, not GPU)


def test_the_table_of_tiles_is_what_was_measured() -> None:
    """Of every case's width and rows the tile that was fastest on H200; more rows than were measured take the last."""
    root = Path(__file__).resolve().parent.parent
    sys.path.insert(0, str(root / "benchmarks"))
    try:
        from gemm_tiles import table
    finally:
        sys.path.pop(0)
    assert table(json.loads((root / "results" / "gemm_h200.json").read_text())["times"]) == gemm_triton.CHOSEN
    most = max(gemm_triton.CHOSEN)
    for n, _ in [shape for shapes in SHAPES.values() for shape in shapes]:
        for m, like in ((3, 7), (most, most), (most + 1, most)):
            assert gemm_triton.tile(m, n) == gemm_triton.tile(like, n) in gemm_triton.TILES


def test_the_environment_chooses_the_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = gemm_module.implementation.__wrapped__
    for name in IMPLEMENTATIONS:
        monkeypatch.setenv("DETENT_GEMM", name)
        assert chosen() == name
    monkeypatch.setenv("DETENT_GEMM", "cublas")
    with pytest.raises(ValueError, match="cublas"):
        chosen()
    monkeypatch.delenv("DETENT_GEMM")
    monkeypatch.setattr(gemm_deep, "available", lambda: False)
    assert chosen() == "triton"


needs_deep = pytest.mark.skipif(not (GPU and gemm_deep.available()), reason="no GPU with DeepGEMM here")
FEW = (1, 17, 64, 65, 300, 700, 2047)  # DeepGEMM compiles for each


@needs_deep
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_rows_of_deep_gemm_hang_on_no_other_row_and_not_on_padding(
    n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "counts", lambda draw: [draw.choice(FEW) for _ in range(40)])
    gemm_deep.compile_all([(n, k)], [padded(m, p) for m in FEW for p in PADDINGS], processes=2)
    draw = random.Random(n)

    def call(x: Any, weight: Any, out: Any) -> Any:
        padding = draw.choice(PADDINGS)
        given = draw.random() < 0.5
        found = gemm(x, weight, padding=padding, implementation="deep_gemm", out=out if given else None)
        assert not given or found.data_ptr() == out.data_ptr()
        return found

    assert check_rows(call, n, k, n + k) >= 1000


@needs_deep
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (128, 2048)])
def test_both_implementations_give_a_row_the_same_bits(n: int, k: int) -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(n)
    x, weight = wide(generator, 130, k), wide(generator, n, k)
    ours, theirs = (gemm(x, weight, padding=1, implementation=name) for name in IMPLEMENTATIONS)
    assert torch.equal(bits(ours), bits(theirs))


@pytest.mark.skipif(not GPU, reason="no GPU here")
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_captured_call_replays_with_other_contents(name: str) -> None:
    if name == "deep_gemm" and not gemm_deep.available():
        pytest.skip("no DeepGEMM here")
    generator = torch.Generator(device=DEVICE).manual_seed(7)
    x, weight, out = wide(generator, 40, 4096), wide(generator, 4096, 4096), poisoned(40, 4096)
    gemm(x, weight, padding=64, implementation=name, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(x, weight, padding=64, implementation=name, out=out)
    for _ in range(5):
        x.copy_(wide(generator, 40, 4096))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(bits(out), bits(gemm(x, weight, padding=1, implementation=name)))
