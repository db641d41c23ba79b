"""``detent bench kernels`` without a GPU: what is kept, how runs are accumulated, bounds and the table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_support import done, invoke, refused

from detent.bench.gpu import KERNELS, Bound, Case, NotHere, Options, attention, gemm
from detent.bench.gpu.environment import typed
from detent.bench.gpu.record import Record, geometric_mean, read
from detent.cli import bench_kernels
from detent.runtime.errors import BadFile, BadInput

ENVIRONMENT = {"gpu": "G", "torch": "1", "triton": "2", "cuda": "3",
               "code": dict.fromkeys(KERNELS, "triton abc"),
               "copy_tb_s": 4.0, "matrix_tflop_s": 800.0, "date": "2026-12-01", "command": "detent bench kernels"}


def case(name: str = "b1 c1024 32/8", group: str = "decode hd 128", arms: tuple[str, ...] = (
        "fa3 heuristic", "fa3 32", "stride 256", "stride 1024"), floor_us: float = 5.0) -> Case:
    stock = tuple(arm for arm in arms if arm.startswith("fa3"))
    return Case("attention", group, name, dict.fromkeys(arms, lambda turn: None), stock,
                tuple(arm for arm in arms if arm not in stock), floor_us, "bytes")


def times(*values: float) -> dict[str, float]:
    return dict(zip(("fa3 heuristic", "fa3 32", "stride 256", "stride 1024"), values, strict=True))


def test_ratios_are_taken_within_a_run() -> None:
    record = Record(None, ENVIRONMENT)
    for slow in (1.0, 2.0, 1.5):  # a slower machine slows all arms
        row = record.add(case(), times(12 * slow, 10 * slow, 11 * slow, 9 * slow))
    assert row.runs == 3 and row.best_stock == ("fa3 32", 15.0) and row.best == ("stride 1024", 13.5)
    assert row.ratio() == pytest.approx(0.9) and row.ratio("stride 256") == pytest.approx(1.1)


def test_without_a_stock_arm_there_is_no_ratio() -> None:
    record = Record(None, ENVIRONMENT)
    row = record.add(case(arms=("stride 256",)), {"stride 256": 3.0})
    assert row.ratio() is None and row.best_stock is None
    assert [(bound.value, bound.met, bound.open) for bound in attention.bounds(record)] == [(None, None, True)] * 4


def test_runs_are_accumulated_in_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "kernels.json")
    Record(path, ENVIRONMENT).add(case(), times(1, 2, 3, 4))
    again = Record(path, ENVIRONMENT | {"date": "later"})
    assert again.runs(case()) == 1 and again.runs(case("other")) == 0
    again.add(case(), times(3, 2, 1, 4))
    assert read(path).rows[case().key].us == {"fa3 heuristic": [1, 3], "fa3 32": [2, 2], "stride 256": [3, 1],
                                             "stride 1024": [4, 4]}
    assert again.runs(case(arms=("stride 256",))) == 0  # other arms: other runs
    again.add(case(arms=("stride 256",)), {"stride 256": 7.0})
    assert read(path).rows[case().key].us == {"stride 256": [7.0]}


def test_other_code_of_a_kernel_is_timed_anew_and_the_others_stay(tmp_path: Path) -> None:
    path = str(tmp_path / "kernels.json")
    before = Record(path, ENVIRONMENT)
    gemm_case = Case("gemm", "model", "m1", {"triton": lambda turn: None}, (), ("triton",), 1.0, "bytes")
    before.add(gemm_case, {"triton": 2.0})
    for name in ("one", "two"):
        before.add(case(name), times(1, 2, 3, 4))
    # The next run is about attention alone, of which it knows the code.
    after = Record(path, ENVIRONMENT | {"code": {"attention": "sm90 def"}})
    assert after.runs(case("one")) == 0 and after.earlier("attention") == 2
    after.add(case("one"), times(5, 6, 7, 8))
    found = read(path)
    assert found.rows[case("one").key].us["stride 1024"] == [8] and found.rows[case("two").key].us["fa3 32"] == [2]
    assert found.earlier("attention") == 1 and found.earlier("gemm") == 0
    assert Record(path, ENVIRONMENT).runs(gemm_case) == 1


@pytest.mark.parametrize("part", ["gpu", "torch", "triton", "cuda"])
def test_times_of_another_environment_are_not_mixed(part: str, tmp_path: Path) -> None:
    path = str(tmp_path / "kernels.json")
    Record(path, ENVIRONMENT).add(case(), times(1, 2, 3, 4))
    with pytest.raises(BadInput, match=rf"another environment: {part} was .*give another --out"):
        Record(path, ENVIRONMENT | {part: "new"})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "environment": {}}',
                                  '{"format": 9, "environment": {}, "rows": []}',
                                  '{"format": 2, "environment": {}, "rows": [{"kernel": "a"}]}'])
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(text)
    with pytest.raises(BadFile, match="no record of kernels' times"):
        read(str(path))


def test_a_time_that_is_not_above_0_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    Record(str(path), ENVIRONMENT).add(case(), times(1, 2, 3, 0.25))
    path.write_text(path.read_text().replace("0.25\n", "0.0\n"))
    with pytest.raises(BadFile, match="b1 c1024 32/8 has a time that is not above 0"):
        read(str(path))


def test_a_floor_below_what_the_table_shows_is_told_as_none(tmp_path: Path) -> None:
    """One row of 4096 elements takes 0.004 microseconds of the memory's time."""
    path = str(tmp_path / "kernels.json")
    record = Record(path, ENVIRONMENT)
    for name, floor in (("small", 0.0038532), ("none", 0.0), ("large", 1234.5678), ("seen", 0.0501)):
        record.add(case(name, floor_us=floor), times(12, 10, 11, 5))
    assert [row.floor_us for row in read(path).of("attention")] == [0.003853, 0.0, 1235.0, 0.0501]
    lines = {line.split()[0]: line.split() for line in invoke("bench", "kernels", "--kernel", "attention", "--show",
                                                              path).output.splitlines() if line.split()}
    assert lines["small"][1] == lines["none"][1] == "–" and lines["small"][-2] == lines["none"][-2] == "–"
    assert lines["seen"][1] == "0.1" and lines["seen"][-2] == "99.80" and lines["large"][1] == "1235.0"


def test_bounds_of_attention() -> None:
    record = Record(None, ENVIRONMENT)
    record.add(case(), times(12, 10, 11, 9))
    record.add(case("b32 c8192 32/8", floor_us=90.0), times(100, 110, 120, 105))
    record.add(case("b1 c2048 q2048 32/8", "prefill hd 128"), times(10, 10, 14, 15))
    record.add(case("b1 c1024 32/8", "decode hd 64"), times(10, 10, 20, 30))
    found = {bound.what: bound for bound in attention.bounds(record)}
    worst = found["decode, head dim 128, best stride over FA3, worst case"]
    assert worst.value == pytest.approx(1.05) and worst.met and "b32 c8192" in worst.detail
    single = found["decode, head dim 128, one stride over FA3, geometric mean"]
    assert single.value == pytest.approx(geometric_mean([0.9, 1.05])) and single.detail == "stride 1024"
    assert found["prefill, head dim 128, best stride over FA3, worst case"].met is False
    bandwidth = found["decode bandwidth, head dim 128, b32 c8192 32/8, of the copy's"]
    assert bandwidth.value == pytest.approx(90 / 105) and bandwidth.met is False and bandwidth.least
    assert found["decode, head dim 64, best stride over FA3, worst case"].met is None


def test_pages_of_one_token_beside_longer_ones() -> None:
    record = Record(None, ENVIRONMENT)
    for group, ours in (("decode hd 128", 10.0), ("decode hd 128 page 1", 12.0)):
        record.add(case("b32 c8192 32/8", group), times(12, 16, ours, ours + 1))
    found = {bound.what: bound for bound in attention.bounds(record) if "page" in bound.what}
    over_fa3, over_longer = found.values()
    assert over_fa3.value == pytest.approx(1.0) and over_longer.value == pytest.approx(1.2)
    assert list(found)[1] == "decode hd 128, page size 1 over 16, worst case" and over_longer.must is None
    record.rows["attention/decode hd 128/b32 c8192 32/8"].code = "other"  # times of other code are not compared
    assert [bound.what for bound in attention.bounds(record) if "over 16" in bound.what] == []


def test_bounds_of_gemm() -> None:
    record = Record(None, ENVIRONMENT)
    for model, deep, triton in (("llama-3.1-8b", 11.0, 12.0), ("qwen3-30b-a3b", 9.0, 8.0)):
        arms = ("cublas", "deep 1", "triton", "early 1", "fastest 1")
        record.add(Case("gemm", model, "m1 8x8", dict.fromkeys(arms, lambda turn: None), arms[:1], arms[1:], 5.0,
                        "bytes"),
                   {"cublas": 10.0, "deep 1": deep, "triton": triton, "early 1": deep * 0.7, "fastest 1": triton})
    found = {bound.what: bound for bound in gemm.bounds(record)}
    every = found["gemm over cuBLAS, geometric mean, best padding"]
    assert every.value == pytest.approx(geometric_mean([1.1, 0.9])) and every.met and every.detail == "2 cases"
    assert found["gemm, the faster of both over cuBLAS"].value == pytest.approx(geometric_mean([1.1, 0.8]))
    assert found["gemm over cuBLAS, llama-3.1-8b"].value == pytest.approx(1.1)
    assert found["gemm in Triton over cuBLAS"].value == pytest.approx(geometric_mean([1.2, 0.8]))
    fastest = found["gemm, the fastest arm of each case over cuBLAS"]
    assert fastest.value == pytest.approx(geometric_mean([0.77, 0.63]))
    assert found["gemm, the table's choice over cublas"].value == pytest.approx(geometric_mean([1.2, 0.8]))
    assert found["gemm, DeepGEMM launched early over deep 1"].value == pytest.approx(0.7)


def test_a_bound_at_its_limit_is_met() -> None:
    assert Bound("x", 1.0, 1.0, None).met and Bound("x", 1.0, 1.0, None, least=True).met
    assert not Bound("x", 1.01, 1.0, None).met and not Bound("x", 0.99, 1.0, None, least=True).met


def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    timed: list[str] = []

    def cases(options: Options) -> Iterator[Case]:
        yield from (case(), case(attention.BANDWIDTH_AT), case("b1 c2048 q2048 32/8", "prefill hd 128"))

    def microseconds(arms: Mapping[str, Any], floor_us: float) -> dict[str, float]:
        timed.append("x")
        return times(12, 10, 11, 5)

    monkeypatch.setattr(attention, "cases", cases)
    monkeypatch.setattr(bench_kernels, "environment", lambda arguments, kernels: ENVIRONMENT)
    monkeypatch.setattr("detent.bench.gpu.timing.microseconds", microseconds)
    return timed


def test_the_command_goes_on_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timed, path = fake(monkeypatch), tmp_path / "kernels.json"
    arguments = ("bench", "kernels", "--kernel", "attention", "--out", path)
    text = done(*arguments)
    assert len(timed) == 3 and "0.500" in text and "≤ 1.10" in text and "MISSED" not in text and "not meas" not in text
    done(*arguments)
    assert len(timed) == 3
    done(*arguments, "--runs", "3")
    assert len(timed) == 9
    document = json.loads(done("bench", "kernels", "--kernel", "attention", "--show", path, "--json"))
    assert [row["ratio"] for row in document["rows"]] == [0.5] * 3 and len(timed) == 9
    assert {bound["met"] for bound in document["bounds"]} == {True}


def test_only_some_cases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was not measured is no met bound: the exit code is 2, and the table says so."""
    timed, path = fake(monkeypatch), tmp_path / "kernels.json"
    arguments = ("bench", "kernels", "--kernel", "attention", "--out", path, "--only")
    result = invoke(*arguments, "prefill", "--only", "b1 c1024")
    assert len(timed) == 2 and result.exit_code == 2 and "not measured" in result.output and "met" in result.output
    assert invoke(*arguments, "nothing of that name").exit_code == 2 and len(timed) == 2
    done(*arguments, attention.BANDWIDTH_AT)
    assert len(timed) == 3


def test_a_kernel_that_cannot_be_timed_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def cases(options: Options) -> Iterator[Case]:
        raise NotHere("it needs two GPUs")
        yield

    fake(monkeypatch)
    monkeypatch.setattr(attention, "cases", cases)
    result = invoke("bench", "kernels", "--kernel", "attention")
    assert result.exit_code == 2 and "attention: not measured, it needs two GPUs" in result.output
    document = json.loads(invoke("bench", "kernels", "--kernel", "attention", "--json").output)
    assert document["not_here"] == {"attention": "it needs two GPUs"}
    assert {(bound["value"], bound["met"]) for bound in document["bounds"]} == {(None, None)}


def test_a_missed_bound_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    Record(str(path), ENVIRONMENT).add(case(), times(10, 10, 12, 13))
    result = invoke("bench", "kernels", "--kernel", "attention", "--show", path)
    assert result.exit_code == 1 and "MISSED" in result.output


def test_rows_of_other_code_are_told(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    Record(str(path), ENVIRONMENT).add(case(), times(10, 10, 12, 13))
    Record(str(path), ENVIRONMENT | {"code": {"attention": "sm90 def"}}).save()
    shown = invoke("bench", "kernels", "--kernel", "attention", "--show", path).output
    assert "attention: 1 of 1 cases were timed with other code" in " ".join(shown.split())


def test_libraries_are_files(tmp_path: Path) -> None:
    for value, told in (("fa3", "give NAME=FILE"), ("other=x", "give NAME=FILE"), ("fa3=nowhere.so", "no file")):
        assert told in refused("bench", "kernels", "--library", value)


def test_without_a_gpu_it_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert "no CUDA device here" in refused("bench", "kernels")


@pytest.mark.parametrize(("words", "shown"), [
    (["detent", "bench", "--out", "/home/me/k.json"], "detent bench --out k.json"),
    (["python", "benchmarks/gpu.py", "--library", "fa3=/lib/fa3.so.xz"], "python gpu.py --library fa3=fa3.so.xz"),
    (["--out", "./folder/", "--runs=3", "a=b"], "--out folder --runs=3 a=b"),
])
def test_a_command_is_kept_without_this_machines_folders(words: list[str], shown: str) -> None:
    assert typed(words) == shown
