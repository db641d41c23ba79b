"""Sums of all ranks in ascending order, bit for bit, by both algorithms, for every size.

On a GPU ranks are simulated as buffers; without one, threads of the CPU run the device code at their own pace, under a
sanitizer that reports what the handshakes leave unordered."""

from __future__ import annotations

import math
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from all_reduce_cases import KINDS, OWNER_FIRST, ascending, messages, owner_first, raw, wrong

from detent.kernels import all_reduce, build_cuda

GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
SOURCE = Path(all_reduce.__file__).parent
SIZES = (1, 7, 8, 9, 4096, 4097, 8191, 100003, 1 << 20, (1 << 20) + 13)  # elements


def test_python_and_cuda_name_the_same_arguments() -> None:
    source = (SOURCE / "all_reduce_sm90.cuh").read_text(encoding="utf-8")
    found = re.search(r"struct Call \{(.*?)\n\};", source, re.DOTALL)
    assert found
    code = re.sub(r"//.*", "", found[1]).replace("[MAX_RANKS]", "")
    names = [name for line in code.split(";") for name in re.findall(r"(\w+)(?=\s*(?:,|$))", line.strip())]
    assert names == [field[0] for field in all_reduce.Call._fields_]


def test_sources_include_one_another_and_nothing_else_of_ours() -> None:
    included = {name for source in all_reduce.SOURCES
                for name in re.findall(r'#include "(.*)"', (SOURCE / source).read_text(encoding="utf-8"))}
    assert included == set(all_reduce.SOURCES[1:])


def test_a_failing_build_is_an_error_with_the_compilers_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\n[ $1 = --version ] && echo 1 && exit\necho no such luck; exit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(RuntimeError, match="all_reduce: nvcc failed\nno such luck"):
        build_cuda.build("all_reduce", "all_reduce", [SOURCE / all_reduce.SOURCES[0]], (), str(fake))
    with pytest.raises(RuntimeError, match="CUDA_HOME"):
        build_cuda.build("all_reduce", "all_reduce", [], (), None)


@pytest.fixture(scope="module")
def on_threads(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds the device code for threads, changed by a pattern and its replacement, and runs it: its output."""
    compiler = shutil.which("g++")
    if compiler is None or GPU:
        pytest.skip("needs g++; a GPU runs the code itself")
    built: dict[tuple[str, ...], Path] = {}

    def run(ranks: int, seed: int, *change: str, calls: int = 40) -> str:
        if change not in built:
            folder = tmp_path_factory.mktemp("threads")
            for name in all_reduce.SOURCES[:2]:
                text = (SOURCE / name).read_text(encoding="utf-8")
                (folder / name).write_text(text.replace(*change) if change else text, encoding="utf-8")
            for path in (Path(__file__).parent / "all_reduce_threads").iterdir():
                shutil.copy(path, folder)
            if change:
                assert any(change[1] in (folder / name).read_text(encoding="utf-8") for name in all_reduce.SOURCES[:2])
            made = subprocess.run(
                [str(compiler), "-x", "c++", "-std=c++17", "-O1", "-fsanitize=thread", "-Wno-unknown-pragmas",
                 "-pthread", "-o", str(folder / "program"), str(folder / all_reduce.SOURCES[0])],
                capture_output=True, text=True)
            if "tsan" in made.stderr:
                pytest.skip("g++ has no thread sanitizer")
            assert made.returncode == 0, made.stderr
            built[change] = folder / "program"
        ran = subprocess.run([str(built[change]), str(ranks), str(calls), str(seed)], capture_output=True, text=True,
                             env={"TSAN_OPTIONS": "halt_on_error=1"}, timeout=300)
        return ran.stdout + ran.stderr

    return run


@pytest.mark.parametrize("ranks", (2, 3, 4, 8))
def test_ranks_at_their_own_pace(on_threads: Any, ranks: int) -> None:
    """Random calls, both algorithms by turns, longer than the workspace or not, in place or not: right, and no race."""
    assert on_threads(ranks, ranks) == f"0 of {40 * ranks} outputs wrong\n"


@pytest.mark.parametrize(("change", "sign"), [
    (("#define DETENT_RANK_AT(i, owner, ranks) (i)", OWNER_FIRST.splitlines()[0]), "outputs wrong"),
    (("(epoch & 1)", "(epoch & 0)"), "data race"),
    (("Handshake{c, rank, 0}.meet(epoch);", "__syncthreads();  //"), "data race"),
    (("Handshake{c, rank, 1}.meet(epoch);", "__syncthreads();  //"), "data race"),
], ids=("owner first", "one half", "no first handshake", "no second handshake"))
def test_what_would_be_wrong_is_seen(on_threads: Any, change: tuple[str, str], sign: str) -> None:
    got = on_threads(3, 1, *change)
    assert sign in got and not got.startswith("0 of")


@needs_gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("ranks", range(2, 9))
def test_bits_are_those_of_the_ascending_sum(ranks: int, kind: torch.dtype) -> None:
    """Odd sizes too, with a workspace that holds them and one that cuts them into many steps; outputs poisoned."""
    for workspace, channels in ((32 << 20, 16), (1 << 15, 8), (64 * 1000, 3)):
        simulated = all_reduce.SimulatedAllReduce(ranks, "cuda", workspace=workspace, channels=channels)
        for elements in SIZES if workspace > 1 << 20 else SIZES[:-2]:
            inputs = messages(ranks, elements, kind, seed=elements + ranks)
            want = ascending(inputs)
            for algorithm in all_reduce.ALGORITHMS:
                whole = [torch.full((elements + 16,), math.nan, dtype=kind, device="cuda") for _ in inputs]
                outs = simulated(inputs, algorithm, outs=[x[:elements] for x in whole])
                assert wrong(outs, want) == 0, f"{algorithm} {elements} elements, workspace {workspace}"
                assert all(bool(x[elements:].isnan().all()) for x in whole), "something behind the end was written"


@needs_gpu
@pytest.mark.parametrize("ranks", (2, 4, 8))
def test_the_longest_messages(ranks: int) -> None:
    """64 MiB, in steps through the workspace that engines would have."""
    inputs = messages(ranks, 1 << 25, torch.bfloat16, seed=ranks)
    simulated, want = all_reduce.SimulatedAllReduce(ranks, "cuda"), ascending(inputs)
    for algorithm in all_reduce.ALGORITHMS:
        assert wrong(simulated(inputs, algorithm), want) == 0, algorithm


@needs_gpu
@pytest.mark.parametrize("ranks", (2, 4, 8))
def test_random_calls_share_one_workspace(ranks: int) -> None:
    """Sizes, types and algorithms mixed without a wait between calls, some in place."""
    draw = random.Random(ranks)
    simulated = all_reduce.SimulatedAllReduce(ranks, "cuda", workspace=1 << 18, channels=11)
    cases = []
    for seed in range(150):
        elements, kind = draw.choice((draw.randint(1, 3000), draw.randint(1, 400000))), draw.choice(KINDS)
        inputs = messages(ranks, elements, kind, seed)
        cases.append((inputs, ascending(inputs), draw.choice(all_reduce.ALGORITHMS), seed % 3 == 0))
    torch.cuda.synchronize()
    results = [simulated(inputs, algorithm, outs=inputs if in_place else None)
               for inputs, _, algorithm, in_place in cases]
    for (_, want, algorithm, in_place), outs in zip(cases, results, strict=True):
        assert wrong(outs, want) == 0, f"{algorithm}, {len(want)} elements, in place {in_place}"


@needs_gpu
@pytest.mark.parametrize("ranks", (2, 4, 8))
def test_graph_replays_among_other_calls(ranks: int) -> None:
    simulated = all_reduce.SimulatedAllReduce(ranks, "cuda", workspace=1 << 20)
    inputs = messages(ranks, 300007, torch.bfloat16, seed=0)
    outs = {algorithm: [torch.empty_like(x) for x in inputs] for algorithm in all_reduce.ALGORITHMS}
    for algorithm in all_reduce.ALGORITHMS:  # kernels are loaded when first called, which a capture may not like
        simulated(inputs, algorithm)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for algorithm in all_reduce.ALGORITHMS:
            simulated(inputs, algorithm, outs=outs[algorithm])
    for seed in range(1, 21):
        fresh = messages(ranks, 300007, torch.bfloat16, seed)
        for x, y in zip(inputs, fresh, strict=True):
            x.copy_(y)
        for out in [*outs["push"], *outs["pull"]]:
            out.fill_(math.nan)
        graph.replay()
        want = ascending(fresh)
        assert wrong(outs["push"], want) == 0 and wrong(outs["pull"], want) == 0, f"replay {seed}"
        if seed % 3 == 0:
            assert wrong(simulated(fresh, "pull"), want) == 0


@needs_gpu
def test_a_sum_that_starts_at_the_owner_is_seen(tmp_path: Path) -> None:
    """With 4 and 8 ranks; with 2 it is the same sum."""
    code = all_reduce.library(owner_first(tmp_path))
    for ranks in (2, 4, 8):
        mutated = all_reduce.SimulatedAllReduce(ranks, "cuda", code=code)
        inputs = messages(ranks, 100000, torch.float32, seed=ranks)
        want = ascending(inputs)
        for algorithm in all_reduce.ALGORITHMS:
            assert (wrong(mutated(inputs, algorithm), want) > 0) == (ranks > 2), f"{algorithm}, {ranks} ranks"


@needs_gpu
def test_zeros_keep_their_sign_and_infinities_pass() -> None:
    simulated = all_reduce.SimulatedAllReduce(4, "cuda")
    for kind in KINDS:
        inputs = [torch.tensor([-0.0, 0.0, math.inf, -0.0, 1.0, 3e4, -math.inf, 2.0**-24], dtype=kind, device="cuda")
                  for _ in range(4)]
        inputs[2][3] = 0.0
        for algorithm in all_reduce.ALGORITHMS:
            assert wrong(simulated(inputs, algorithm), ascending(inputs)) == 0


@needs_gpu
def test_more_blocks_than_the_gpu_holds_are_refused() -> None:
    simulated = all_reduce.SimulatedAllReduce(8, "cuda", channels=128)
    with pytest.raises(RuntimeError, match="cooperative|too many|resources"):
        simulated(messages(8, 1 << 20, torch.float32, seed=0), "pull")
    assert wrong(simulated(inputs := messages(8, 5, torch.float32, seed=1), "pull"), ascending(inputs)) == 0


def test_the_reference_rounds_as_torch_does() -> None:
    for kind in KINDS:
        inputs = messages(5, 5000, kind, seed=3, device="cpu")
        total = inputs[0].float()
        for x in inputs[1:]:
            total = total + x.float()
        assert numpy.array_equal(ascending(inputs), raw(total.to(kind)))


def base(elements: int = 64, kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(elements, dtype=kind)


@pytest.mark.parametrize(("algorithm", "x", "out", "message"), [
    ("ring", base(), base(), "ring"),
    ("push", base(kind=torch.float64), base(kind=torch.float64), "float64"),
    ("push", base(), base(32), "shape"),
    ("push", base(), base(kind=torch.float16), "type"),
    ("push", base()[::2], base(32), "not contiguous"),
    ("push", base()[1:33], base(32), "16 bytes"),
    ("push", base().to("meta"), base(), "x is on"),
])
def test_what_the_kernels_do_not_take_is_refused(algorithm: str, x: torch.Tensor, out: torch.Tensor,
                                                 message: str) -> None:
    with pytest.raises(ValueError, match=message):
        all_reduce.check(algorithm, x, out, torch.device("cpu"))


def test_overlapping_outputs_and_impossible_workspaces_are_refused() -> None:
    whole = base(64)
    with pytest.raises(ValueError, match="overlaps"):
        all_reduce.check("pull", whole[:32], whole[8:40], torch.device("cpu"))
    assert all_reduce.check("pull", whole[:32], whole[32:], torch.device("cpu")) == 0
    assert all_reduce.check("pull", whole, whole, torch.device("cpu")) == 0
    for ranks, workspace, channels in ((1, 1 << 20, 8), (9, 1 << 20, 8), (2, 1 << 20, 0), (2, 1 << 20, 129),
                                       (8, 2000, 8)):
        with pytest.raises(ValueError, match="all_reduce"):
            all_reduce.region_of(ranks, workspace, channels)
    assert all_reduce.region_of(8, 2048, 8) == 128
