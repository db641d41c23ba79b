"""The host's side of DeepGEMM, without a GPU: which configurations there are, and a cache that travels."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from detent.kernels import gemm, gemm_deep
from detent.kernels.gemm_deep import Configuration, adopt, configuration, configurations, entry_name

FLAGS = "-std=c++20 -I{} --gpu-architecture=sm_90a -O3"
MANIFEST = {"flags": FLAGS.format("/there/include"), "include": "/there/include", "compiler": "NVCC13.0"}


def test_configurations_are_deep_gemms_own() -> None:
    """Recorded from vLLM 0.26.0's library (``DG_PRINT_CONFIGS``), which ran on stubs of the driver."""
    with (Path(__file__).parent / "deep_gemm_configurations.csv").open(encoding="utf-8") as file:
        rows = [[int(value) for value in row.values()] for row in csv.DictReader(file)]
    assert len(rows) == 300
    for m, n, k, *want in rows:
        assert configuration(m, n, k) == Configuration(*want), (m, n, k)


def test_every_count_of_a_grid_is_covered_by_the_fewest_rows_of_its_configuration() -> None:
    shapes = ((6144, 4096), (128, 2048))
    for padding in (1, 64, gemm.GEOMETRIC):
        counts = gemm.grid(padding, 520)
        found = configurations(shapes, counts)
        every: dict[tuple[int, int, Configuration], int] = {}
        for n, k in shapes:
            for m in counts:
                every.setdefault((n, k, configuration(m, n, k)), m)
        assert found == every


def test_a_coarser_grid_has_fewer_configurations() -> None:
    sizes = [len(configurations([(4096, 4096)], gemm.grid(p, 4096))) for p in (1, 64, 128, 256, 512)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < sizes[0] / 2


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n", encoding="utf-8")
    nvcc.chmod(0o755)
    monkeypatch.setenv("DG_JIT_NVCC_COMPILER", str(nvcc))
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "here"))
    (tmp_path / "here").mkdir()
    for source in ("one", "two"):
        entry = tmp_path / "carried" / "cache" / entry_name(source, MANIFEST, "/there/include")
        entry.mkdir(parents=True)
        (entry / "kernel.cu").write_text(source, encoding="utf-8")
        (entry / "kernel.cubin").write_text(f"binary of {source}", encoding="utf-8")
    (tmp_path / "carried" / gemm_deep.MANIFEST).write_text(json.dumps(MANIFEST), encoding="utf-8")
    return tmp_path / "carried"


def test_a_carried_cache_gets_this_machines_names(carried: Path, tmp_path: Path) -> None:
    assert adopt(carried, "/here/include") == 2
    here = MANIFEST | {"flags": FLAGS.format("/here/include"), "include": "/here/include"}
    for source in ("one", "two"):
        entry = tmp_path / "here" / "cache" / entry_name(source, here, "/here/include")
        assert (entry / "kernel.cubin").read_text() == f"binary of {source}"
    assert json.loads((tmp_path / "here" / gemm_deep.MANIFEST).read_text()) == here
    assert adopt(carried, "/here/include") == 0
    assert adopt(tmp_path / "here", "/here/include") == 0  # and it may be carried on
    assert len(list((tmp_path / "here" / "cache").iterdir())) == 2


def test_names_change_with_headers_source_flags_and_compiler() -> None:
    names = {entry_name("one", MANIFEST, "/there/include"), entry_name("two", MANIFEST, "/there/include"),
             entry_name("one", MANIFEST, "/here/include"),
             entry_name("one", MANIFEST | {"compiler": "NVCC13.1"}, "/there/include"),
             entry_name("one", MANIFEST | {"flags": FLAGS.format("/there/include") + " -g"}, "/there/include")}
    assert len(names) == 5


def test_an_entry_that_is_named_otherwise_is_an_error(carried: Path) -> None:
    entry = next((carried / "cache").iterdir())
    (entry / "kernel.cu").write_text("another", encoding="utf-8")
    with pytest.raises(ValueError, match="not named"):
        adopt(carried, "/here/include")


def test_kernels_of_another_compiler_stay_behind(
    carried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvcc").write_text("#!/bin/sh\necho release 12.9, V12.9.1\n", encoding="utf-8")
    assert adopt(carried, "/here/include") == 0
    assert not (tmp_path / "here" / "cache").exists()


def test_a_failing_process_is_an_error_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setattr(gemm_deep, "_spec", lambda: "deep_gemm")
    monkeypatch.setattr(gemm_deep.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="compiling failed"):
        gemm_deep.compile_all([(4096, 4096)], [1, 64], processes=2)


def test_without_deep_gemm_an_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_deep, "_spec", lambda: None)
    assert not gemm_deep.available()
    with pytest.raises(ImportError, match="sgl-deep-gemm"):
        gemm_deep.module.__wrapped__()
    with pytest.raises(ImportError, match="not installed"):
        gemm_deep.compile_all([(4096, 4096)], [1])
