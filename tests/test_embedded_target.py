"""The embedded engine as a target, in this process and in a new one, and ``detent generate``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from embedded_support import bits, request  # noqa: E402

from detent.cli.app import detent  # noqa: E402
from detent.engines.embedded.engine import Refused  # noqa: E402
from detent.engines.embedded.target import EmbeddedTarget  # noqa: E402
from detent.engines.interface import Submission  # noqa: E402
from detent.engines.remote import RemoteTarget  # noqa: E402
from detent.runtime.errors import DetentError  # noqa: E402
from detent.runtime.tuple import CommitmentTuple  # noqa: E402

MODEL = "tiny"


@pytest.fixture(scope="module")
def target(own_cache: None) -> EmbeddedTarget:
    """The random Llama under the default assignment, its programs solved."""
    return EmbeddedTarget.open(MODEL)


def test_traits_tell_what_the_engine_is(target: EmbeddedTarget) -> None:
    traits = target.traits
    assert (traits.engine, traits.arm, traits.model) == ("embedded", "detent", "tiny")
    assert (traits.vocabulary, traits.context, traits.page, traits.budget) == (272, 4096, 16, 1024)
    assert traits.environment["tuple"] == target.engine.ops.hash and len(target.engine.ops.hash) == 64
    assert 0 < len(traits.boundaries) and traits.special == tuple(range(256, 272))
    assert target.decode(target.encode("Grüße, 世界")) == "Grüße, 世界"


def test_a_tuple_is_taken_up_while_serving(target: EmbeddedTarget) -> None:
    first = target.engine.ops.selectors.commitment
    assert first is not None
    before = target.run([Submission(request())])[0]
    families = {name: {**part, "knobs": dict(part["knobs"]), "pins": dict(part["pins"])}
                for name, part in first.families.items()}
    families["gemm"]["knobs"]["fill"] = not families["gemm"]["knobs"]["fill"]
    other = CommitmentTuple(first.deployment, families, first.environment)
    target.engine.set_tuple(other)
    assert target.traits.environment["tuple"] == other.hash != first.hash
    assert target.run([Submission(request())])[0].cached == 0  # not what the first tuple wrote
    target.engine.set_tuple(first)
    again = target.run([Submission(request())])[0]
    assert again.cached == 0 and bits(again) == bits(before)
    with pytest.raises(DetentError, match="deployment"):
        target.engine.set_tuple(CommitmentTuple("elsewhere", families, first.environment))
    assert target.traits.environment["tuple"] == first.hash


def test_an_engine_that_is_given_a_tuple_is_of_another_arm(target: EmbeddedTarget) -> None:
    stock = EmbeddedTarget.open(MODEL, arm="stock")
    assert (stock.traits.arm, stock.traits.name) == ("stock", "embedded stock")
    stock.engine.set_tuple(target.engine.ops.selectors.commitment)
    assert (stock.arm, stock.traits.arm, stock.traits.name) == ("detent", "detent", "embedded detent")
    assert stock.traits == target.traits
    fresh = stock.fresh()
    try:
        assert fresh.traits == target.traits
    finally:
        fresh.close()
        stock.close()


def test_a_new_process_gives_the_same_bits_and_errors(target: EmbeddedTarget) -> None:
    submissions = [Submission(request(20, 4)), Submission(request(30, 4, 1, temperature=0.7, seed=3), start=2)]
    fresh = target.fresh()
    try:
        assert fresh.traits == target.traits
        target.flush()
        assert [bits(output) for output in fresh.run(submissions)] == [bits(o) for o in target.run(submissions)]
        assert fresh.decode(fresh.encode("abc")) == "abc"
        with pytest.raises(Refused, match="more than the context of 4096"):
            fresh.run([Submission(request(5000))])
        fresh.flush()
        assert isinstance(fresh, RemoteTarget)
        fresh._process.kill()
        with pytest.raises(DetentError, match="ended before it answered"):
            fresh.run(submissions)
    finally:
        fresh.close()


def test_a_new_process_that_cannot_start_says_why() -> None:
    with pytest.raises(DetentError, match="model 'nowhere' does not exist"):
        RemoteTarget("detent.engines.embedded.target:EmbeddedTarget.open", {"model": "nowhere"})


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    for options, why in (({"arm": "other"}, "unknown arm 'other'"), ({"dtype": "int8"}, "unknown dtype 'int8'"),
                         ({"arm": "stock", "commitment": "t.json"}, "takes no tuple"),
                         ({"commitment": str(tmp_path / "t.json")}, "t.json"),
                         ({"limits": {"pages": 0}}, "pages is 0"),
                         ({"limits": {"context": 5000}}, "longer than the 4096 tokens of tiny")):
        with pytest.raises(DetentError, match=why):
            EmbeddedTarget.open(MODEL, **options)  # type: ignore[arg-type]


def test_generate(target: EmbeddedTarget, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = detent.main(["generate", "--model", MODEL, *arguments], standalone_mode=False)
        out, err = capsys.readouterr()
        return code, out, err

    code, out, _ = run("--prompt", "abc", "--tokens", "5", "--json")
    content = json.loads(out)
    assert code == 0 and content["prompt_tokens"] == [97, 98, 99] and len(content["tokens"]) == 5
    assert [len(text) for text in content["logprob_bits"]] == [16] * 5
    assert content["environment"]["tuple"] == target.engine.ops.hash
    assert run("--prompt", "abc", "--tokens", "5")[1] == f"abc{content['text']}\n"
    code, _, err = run("--prompt", "abc", "--tokens", "5000")
    assert code == 2 and err.splitlines()[-1].startswith("error: ") and "context of 4096" in err
    code, _, err = run("--prompt", "abc", "--arm", "stock", "--tuple", "t.json")
    assert code == 2 and "takes no tuple" in err
    code, out, err = run("--prompt", os.fsdecode(b"\xff\xfe"))
    assert (code, out) == (2, "") and err == ("error: the prompt is no text: its bytes are not UTF-8; "
                                              "write --prompt in UTF-8\n")
