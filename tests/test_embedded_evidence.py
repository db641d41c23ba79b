"""Which selections an output rests on: by call site, in every step, for cached prefixes and after a pre-emption."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from embedded_support import LAYERS, SMALL, bits, engine, model, prompt, request, serve  # noqa: E402

from detent.battery.compare import compare  # noqa: E402
from detent.engines.embedded.config import Limits  # noqa: E402
from detent.engines.embedded.engine import Engine  # noqa: E402
from detent.engines.embedded.in_force import InForce  # noqa: E402
from detent.engines.embedded.ops import Ops  # noqa: E402
from detent.engines.interface import Output, Request, Submission  # noqa: E402

ROWS, KERNEL = "gemm-cpu.rows", "gemm-cpu.kernel.qkv"


def by_rows() -> Ops:
    """A stock selection: above 16 rows other tiles, above 1 row packed weights."""
    def gemm(rows: int) -> dict[str, Any]:
        return {"rows": 1024 if rows <= 16 else 128, "fill": False,
                **{f"kernel.{layer}": "packed" if rows > 1 else "plain" for layer in LAYERS}}

    select = {"gemm": gemm, "norm": lambda rows: {"kernel": "torch" if rows > 4 else "composed"},
              "attention": lambda *inputs: {"kernel": "whole", "query_rows": inputs[1], "split_stride": 64},
              "moe": lambda rows: {"kernel": "packed", "rows": 1024, "fill": False}}
    config = model("tiny").config
    return Ops(SimpleNamespace(hash="stock", select=select, shapes={"logits": (config.vocabulary, config.hidden)},  # type: ignore[arg-type]
                               router=None, constant={}, commitment=None, boundaries=lambda tokens: ()))


def stock(**limits: int) -> Engine:
    return engine("tiny", by_rows(), **limits)


def spans(output: Output, name: str) -> list[list[tuple[int, Any]]]:
    assert output.written is not None
    return [[(count, points[name]) for count, points in each.spans] for each in output.written]


def test_a_step_tells_the_layers_selections_and_the_logits() -> None:
    output = serve(stock(), request(40, 3))[0]
    first, later = output.steps[0].selections, output.steps[2].selections
    assert first is not None and later is not None
    assert (first[ROWS], first[f"{ROWS} (logits)"]) == (128, 1024)
    assert (first[KERNEL], first["gemm-cpu.kernel.logits"]) == ("packed", "plain")
    assert (first["norm-cpu.kernel"], first["norm-cpu.kernel (logits)"]) == ("torch", "composed")
    assert (later[ROWS], later[KERNEL]) == (1024, "plain") and f"{ROWS} (logits)" not in later
    assert first["attention-cpu.kernel"] == "whole" and "attention-cpu.query_rows" not in first  # it has no tiles


def test_every_distinct_selection_of_a_site_is_told() -> None:
    told = InForce({"norm": {"kernel": "torch"}})
    assert told.points() == {"norm-cpu.kernel": "torch"}
    for rows in (1, 2, 1, 3):
        told.note("gemm", "qkv", {"rows": rows, "kernel.qkv": "plain", "kernel.down": "packed"})
    assert told.points() == {"norm-cpu.kernel": "torch", ROWS: 1, f"{ROWS} (qkv, 2)": 2, f"{ROWS} (qkv, 3)": 3,
                             KERNEL: "plain"}
    told.begin()
    assert told.points() == {"norm-cpu.kernel": "torch"}


def test_every_chunk_of_a_prompt_is_told() -> None:
    output = serve(stock(budget=32), request(70, 3))[0]
    assert output.chunks == (32, 32, 6)
    assert spans(output, ROWS) == [[(64, 128), (6, 1024), (2, 1024)]]  # the last two with plain products
    assert spans(output, KERNEL) == [[(64, "packed"), (6, "packed"), (2, "plain")]]


def test_a_cached_prefix_tells_who_wrote_it() -> None:
    served = stock()
    serve(served, request(40, 2))
    again = serve(served, request(40, 2))[0]
    assert again.cached == 39 and spans(again, ROWS) == [[(39, 128), (2, 1024)]]
    part = serve(served, Request(prompt(40)[:20], 2))[0]  # a page, and three tokens that are copied
    assert part.cached == 19 and spans(part, ROWS) == [[(19, 128), (2, 1024)]]


def test_a_preemption_begins_anew() -> None:
    output = stock().run([Submission(request(20, 8), preempt=4), Submission(request(25, 8, 1))])[0]
    assert output.written is not None and [each.after for each in output.written] == [0, 4]
    assert [sum(count for count, _ in each.spans) for each in output.written] == [20 + 3, 20 + 7]
    scarce = serve(stock(pages=9), *(request(30, 20, salt) for salt in range(4)))
    assert any((each.preemptions or 0) > 0 for each in scarce)
    for each in scarce:
        assert each.written and sum(count for count, _ in each.written[-1].spans) == 30 + 19


def difference(reference: Output, perturbed: Output, at: int = 0, before: tuple[Output, ...] = ()) -> Any:
    """As if the bits of one token had changed."""
    changed = [*reference.logprobs]
    changed[at] = b"changed!"
    other = Output(**{**vars(perturbed), "tokens": reference.tokens, "logprobs": tuple(changed)})
    return compare(reference, other, 0, True, before=before)


def test_the_diagnosis_sees_what_the_layers_did() -> None:
    served = stock(budget=128)
    reference = serve(served, request(69, 2))[0]
    served.flush()
    first = serve(served, request(69, 1))[0]
    found = difference(reference, serve(served, request(69, 2))[0], before=(first,))
    assert found.diagnosis == "selection differs"
    assert (found.points[ROWS], found.points[KERNEL]) == ((0, 128, 1024), (0, "packed", "plain"))
    assert not any("logits" in name for name in found.points)  # they had one row both times


def test_the_diagnosis_sees_earlier_chunks_and_steps() -> None:
    whole, pieces = (serve(stock(budget=budget), request(60, 2))[0] for budget in (64, 16))
    found = difference(whole, pieces)
    assert found.diagnosis == "selection differs" and found.points[ROWS] == (-1, 128, 1024)
    alone = serve(stock(), request(12, 6))[0]
    joined = stock().run([Submission(request(12, 6)), Submission(request(40, 1, 1), start=2)])[0]
    assert difference(alone, joined, 5).points[ROWS] == (2, 1024, 128)  # the keys and values of a step before
    assert difference(alone, joined, 1).diagnosis == "selection constant, bits differ"


def test_a_head_of_other_rows_is_no_difference_of_later_tokens() -> None:
    """Its logits gave an earlier token, which was the same."""
    alone = serve(stock(), request(20, 4))[0]
    beside = stock().run([Submission(request(20, 4)), Submission(request(20, 1, 1))])[0]
    assert "gemm-cpu.kernel.logits" in difference(alone, beside, 0).points
    assert difference(alone, beside, 2).diagnosis == "selection constant, bits differ"


def test_a_constant_selection_is_said_of_chunks_and_prefixes_too() -> None:
    served = engine()
    whole = serve(served, request(70, 3))[0]
    again = serve(served, request(70, 3))[0]
    assert again.cached and whole.chunks == (64, 6) and bits(whole) == bits(again)
    assert difference(whole, again).diagnosis == "selection constant, bits differ"
    assert Limits.of(model("tiny").config, **SMALL).budget == 64
