"""Workloads: the paper's shapes, the same replay for every arm, and recorded traces as they are."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from detent.bench.traces import recorded
from detent.bench.workloads import GROUPS, LOADS, Load, Shape, Traffic, loads, replay, traffic
from detent.runtime.errors import BadFile, DetentError, UnknownName
from detent.tools.bench_lengths import messages, quantiles

OFFLINE = Load("offline", "W-A", offline=True)


def tokens(source: Traffic) -> list[int]:
    return [shape.tokens for shape in source.shapes]


@pytest.mark.parametrize("seed", range(8))
def test_chats_have_the_papers_shape(seed: int) -> None:
    chats = traffic("W-A", 1.0, seed)
    assert len(chats.shapes) == 600
    assert len({shape.name.split(" turn ")[0] for shape in chats.shapes}) == 160
    assert sum(chats.shared()) / sum(tokens(chats)) == pytest.approx(0.64, abs=0.005)  # "about 64 %"
    assert statistics.median(tokens(chats)) < 1024 and chats.longest <= chats.context


def test_turns_follow_each_other_and_repeat_the_one_before() -> None:
    chats = traffic("W-A", 1.0, 0)
    last: dict[str, Shape] = {}
    for shape, shared in zip(chats.shapes, chats.shared(), strict=True):
        chat, turn = shape.name.split(" turn ")
        before = last.get(chat)
        assert int(turn) == (1 if before is None else int(before.name.split(" turn ")[1]) + 1)
        assert shared == (0 if before is None else before.tokens)
        if before is not None:  # the answer that the generator wrote is as long as the one that was asked for
            assert shape.segments[len(before.segments)][1] == before.output
        last[chat] = shape


def test_documents_have_the_papers_shape() -> None:
    documents, closed = traffic("W-B", 1.0, 0), traffic("W-B-c", 1.0, 0)
    assert len(documents.shapes) == 200 and closed.shapes == documents.shapes[:64]
    assert 7_500 < statistics.median(tokens(documents)) < 8_700
    assert documents.context == 32_768 and documents.longest <= documents.context
    assert not any(documents.shared())


def test_loads_are_the_papers() -> None:
    assert [(load.name, load.workload, load.fraction, load.concurrency) for load in GROUPS["all"]] == [
        ("A1", "W-A", 0.25, None), ("A2", "W-A", 0.5, None), ("A3", "W-A", 0.75, None), ("A4", "W-A", 1.0, None),
        ("B1", "W-B", 0.33, None), ("B2", "W-B", 0.67, None), ("B3", "W-B", 1.0, None),
        ("C1", "W-B-c", None, 1), ("C2", "W-B-c", None, 8)]
    assert [(load.name, load.fraction) for load in GROUPS["own"]][:3] == [("A67", 0.67), ("A83", 0.83), ("A100", 1.0)]


def test_loads_by_name_and_group() -> None:
    assert [load.name for load in loads(["C1", "W-B-c", "A67"])] == ["C1", "C2", "A67"]
    with pytest.raises(UnknownName, match="unknown workload 'A5'"):
        loads(["A5"])


@pytest.mark.parametrize("name", ["W-A", "W-B"])
def test_scale_is_the_share_of_the_tokens(name: str) -> None:
    full, small = traffic(name, 1.0, 3), traffic(name, 0.04, 3)
    assert len(small.shapes) == len(full.shapes) / 5
    assert 0.02 < sum(tokens(small)) / sum(tokens(full)) < 0.06
    assert small.longest < full.longest / 3


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5, float("nan")])
def test_a_scale_that_is_none(scale: float) -> None:
    with pytest.raises(DetentError, match="is not above 0 and at most 1"):
        traffic("W-A", scale, 0)


def test_replays_are_identical_and_the_salt_changes_token_ids_only() -> None:
    source = traffic("W-A", 0.01, 1)

    def made(**changes: object) -> object:
        how = {"rate": 2.0, "seed": 1, "salt": "", "vocabulary": 300, "special": (0, 5)} | changes
        return replay(source, LOADS["A1"], **how)  # type: ignore[arg-type]

    first, again, salted = made(), made(), made(salt="run 2")
    assert first == again
    assert first.digest != salted.digest  # type: ignore[attr-defined]
    assert [len(r.prompt) for r in first.requests] == [len(r.prompt) for r in salted.requests]  # type: ignore[attr-defined]
    assert first.arrivals == salted.arrivals  # type: ignore[attr-defined]
    assert first.digest == made(rate=3.0).digest  # type: ignore[attr-defined]
    assert first.digest != made(seed=2).digest  # type: ignore[attr-defined]
    ids = {token for request in first.requests for token in request.prompt}  # type: ignore[attr-defined]
    assert not ids & {0, 5} and max(ids) == 299


def test_arrivals_keep_the_rate_and_what_is_shared_is_shared() -> None:
    source = traffic("W-A", 0.05, 0)
    sent = replay(source, LOADS["A2"], rate=4.0, seed=0, salt="", vocabulary=1000, special=())
    assert sent.arrivals is not None and list(sent.arrivals) == sorted(sent.arrivals)
    assert sent.arrivals[-1] == pytest.approx(len(source.shapes) / 4.0)
    seen: set[tuple[int, ...]] = set()
    for request, shared in zip(sent.requests, sent.shared, strict=True):
        assert shared == 0 or request.prompt[:shared] in seen
        seen.add(request.prompt)
    assert replay(source, OFFLINE, rate=None, seed=0, salt="", vocabulary=9, special=()).arrivals == (0.0,) * len(
        source.shapes)


def test_the_tables_are_those_of_the_traces(root: Path) -> None:
    tables = json.loads((root / "detent/bench/data/lengths.json").read_text(encoding="utf-8"))
    assert {name: (table["count"], table["quantiles"][100]) for name, table in tables.items()} == {
        "message": (2768, 22), "reply": (19_366, 129), "document": (28_257, 2_730), "summary": (28_257, 167)}
    for table in tables.values():
        assert len(table["quantiles"]) == 201 and table["quantiles"] == sorted(table["quantiles"])


def test_a_message_is_what_a_turn_adds_to_prompt_and_answer() -> None:
    first = {"input_length": 1200, "output_length": 100, "hash_ids": [0, 1, 2]}
    second = {"input_length": 1350, "output_length": 10, "hash_ids": [0, 1, 3]}
    other = {"input_length": 1400, "output_length": 10, "hash_ids": [0, 4, 5]}  # block 0 alone is no chat
    document = {"input_length": 3000, "output_length": 10, "hash_ids": [0, 1, 3, 6, 7, 8]}
    assert messages([first, second, other]) == [50]
    assert messages([first, second, document]) == [50]  # 1,640 tokens are no message
    assert quantiles(range(401))[:3] == [0, 2, 4]


@pytest.fixture
def mooncake(root: Path) -> str:
    return str(root / "tests/data/bench/mooncake.jsonl")


@pytest.fixture
def azure(root: Path) -> str:
    return str(root / "tests/data/bench/azure.csv")


def test_mooncake_as_recorded(mooncake: str) -> None:
    rows = [json.loads(line) for line in Path(mooncake).read_text(encoding="utf-8").splitlines()]
    source = recorded("mooncake", mooncake, 1.0, 200_000)
    assert tokens(source) == [row["input_length"] for row in rows]
    assert [shape.output for shape in source.shapes] == [row["output_length"] for row in rows]
    sent = replay(source.first(20, "mooncake"), LOADS["mooncake"], rate=None, seed=0, salt="", vocabulary=100,
                  special=())
    assert sent.arrivals == pytest.approx([row["timestamp"] / 1000 for row in rows[:20]])
    assert rows[0]["hash_ids"][0] == rows[1]["hash_ids"][0]
    assert sent.requests[0].prompt[:512] == sent.requests[1].prompt[:512] != sent.requests[1].prompt[512:1024]
    assert sent.shared[:2] == (0, 512)


def test_azure_as_recorded(azure: str) -> None:
    source = recorded("azure", azure, 1.0, 100_000)
    assert (tokens(source)[:2], source.shapes[0].output) == ([374, 396], 44)
    assert source.gaps[:2] == pytest.approx((0.0, 4.314579), abs=1e-6)
    assert not any(source.shared())


def test_requests_that_do_not_fit_are_left_out_and_counted(mooncake: str) -> None:
    whole, some = recorded("mooncake", mooncake, 1.0, 200_000), recorded("mooncake", mooncake, 1.0, 8_000)
    assert some.left_out > 0 and some.left_out + len(some.shapes) == len(whole.shapes)
    assert some.longest <= 8_000


def test_a_recorded_trace_shrinks(mooncake: str) -> None:
    whole, small = recorded("mooncake", mooncake, 1.0, 200_000), recorded("mooncake", mooncake, 0.01, 200_000)
    assert len(small.shapes) == 20
    assert tokens(small) == [round(count / 10) for count in tokens(whole)[:20]]


@pytest.mark.parametrize("name, text, told", [
    ("mooncake", '{"timestamp": 0}\n', "line 1: lacks 'input_length'"),
    ("mooncake", "nonsense\n", "line 1: "),
    ("mooncake", '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n', "not 1 blocks of 512"),
    ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n", "line 2: "),
    ("azure", "a,b\n1,2\n", "line 2: lacks 'TIMESTAMP'"),
    ("mooncake", '{"timestamp": NaN, "input_length": 6, "output_length": 1, "hash_ids": [1]}\n', "timestamp nan"),
    ("mooncake", '{"timestamp": 0, "input_length": 1e999, "output_length": 1, "hash_ids": [1]}\n', "line 1: "),
    ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests; give the azure trace as published"),
    ("azure", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{'1' * 200_000},1,2\n", "line 2: field larger than"),
    ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,9000,2\n", "none of its requests"),
])
def test_a_file_that_is_no_trace(name: str, text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadFile, match=told):
        recorded(name, str(file), 1.0, 4_096)
    with pytest.raises(BadFile, match="there is no such file"):
        recorded(name, str(tmp_path / "none"), 1.0, 4_096)
