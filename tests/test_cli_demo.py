"""``detent demo``: what it says to look at next."""

from __future__ import annotations

import pytest

from detent.cli.demo import where_next


def test_where_to_look_next_names_the_model_and_its_deployment() -> None:
    assert where_next("smollm2", "smollm2-135m-cpu") == (
        "detent verify --engine embedded --set all        every cell, with evidence",
        "detent explain --in-force -d smollm2-135m-cpu    what is pinned, and to what",
        "detent generate --prompt 'Hello'                 talk to it")
    verify, explain, generate = where_next("tiny-moe", "/a folder/tiny-moe-cpu-1.toml")
    assert verify.startswith("detent verify --engine embedded --model tiny-moe --set all  ")
    assert explain.startswith("detent explain --in-force -d '/a folder/tiny-moe-cpu-1.toml'  ")
    assert generate.startswith("detent generate --model tiny-moe --prompt 'Hello'  ")


@pytest.mark.parametrize("arm", ["stock", "detent"])
def test_an_engine_tells_its_deployment(arm: str) -> None:
    pytest.importorskip("torch")
    from detent.engines.embedded.target import EmbeddedTarget
    from detent.runtime.deployment import load

    target = EmbeddedTarget.open("tiny-moe", arm=arm, limits={"pages": 8})
    facts = load(target.deployment).facts
    assert facts["model"]["name"] == target.traits.model and "moe" in facts
