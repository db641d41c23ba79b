"""One arm of vLLM on a GPU: times of decode steps and of first tokens, and the battery.

    python benchmarks/gpu_vllm.py MODEL --arm detent --tuple FILE --label "stride 1024" [--time] [--verify paper ...]

MODEL is a folder; without weights in it (``--dummy``) they are random, of a size that keeps activations near one.
Results of several runs are kept in one file (--out), by model, arm and label. Every arm has the same limits; all else
is vLLM's default. A decode step's time is the median of the times between two steps, once all requests of the batch
decode; a first token's is the median of several prompts that are not in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from detent.bench.gpu.environment import environment
from detent.runtime.encoding import write_atomic

LIMITS = {"max_model_len": 40960, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
DECODE = ((1, 1024, 97), (1, 8192, 97), (1, 32768, 65), (8, 1024, 97), (8, 8192, 65), (64, 1024, 65), (256, 512, 49),
          (32, 8192, 49))
"""Requests, tokens of a prompt, output tokens."""
PREFILL, PROMPTS = (2048, 8192), 5
SPREAD = 0.035
"""Random weights lie between minus and plus this, those of norms are one."""


def random_weights() -> None:
    """Have vLLM fill a model without weights with values that keep activations near one."""
    import vllm.model_executor.model_loader.dummy_loader as loader  # type: ignore[import-not-found, unused-ignore]

    original = loader.initialize_dummy_weights

    def fill(model: Any, *arguments: Any, **named: Any) -> None:
        original(model, *arguments, **{**named, "low": -SPREAD, "high": SPREAD})
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                if parameter.dim() == 1 and parameter.is_floating_point():
                    parameter.data.fill_(1.0)

    loader.initialize_dummy_weights = fill


def engine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {**LIMITS, "gpu_memory_utilization": 0.85, "seed": 0,
                               "attention_config": {"backend": "FLASH_ATTN"}}
    if arguments.dummy:
        options |= {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16"}
    return options


class Timed:
    """vLLM's engine in this process, stepped by hand."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.count = engine, 0

    def serve(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[float, int]]:
        """Serve prompts together: the time of every step and how many requests it gave a token."""
        from vllm.sampling_params import (  # type: ignore[import-not-found, unused-ignore]
            RequestOutputKind,
            SamplingParams,
        )

        parameters = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False,
                                    output_kind=RequestOutputKind.DELTA)
        for prompt in prompts:
            self.count += 1
            self.engine.add_request(f"timed{self.count}", {"prompt_token_ids": list(prompt)}, parameters)
        steps = [(time.perf_counter(), 0)]
        while self.engine.has_unfinished_requests():
            given = sum(len(output.outputs[0].token_ids) for output in self.engine.step())
            steps.append((time.perf_counter(), given))
        return steps


def decode_ms(timed: Timed, draw: random.Random, vocabulary: int, batch: int, length: int, tokens: int) -> float:
    prompts = [[draw.randrange(100, vocabulary) for _ in range(length)] for _ in range(batch)]
    timed.serve(prompts, 1)  # their keys and values are in the cache now: what follows decodes
    found = []
    for _ in range(2):
        steps = timed.serve(prompts, tokens)
        whole = [after - before for (before, was), (after, given) in zip(steps, steps[1:], strict=False)
                 if was == given == batch]
        found += whole[2:]
    return statistics.median(found) * 1e3


def first_ms(timed: Timed, draw: random.Random, vocabulary: int, length: int) -> float:
    found = []
    for _ in range(PROMPTS):
        steps = timed.serve([[draw.randrange(100, vocabulary) for _ in range(length)]], 1)
        found.append(next(at for at, given in steps if given) - steps[0][0])
    return statistics.median(found[1:]) * 1e3


def times(arguments: argparse.Namespace, keep: Any) -> None:
    from detent.engines.vllm.target import enter

    enter(arguments.arm, arguments.tuple)
    import vllm  # type: ignore[import-not-found, unused-ignore]

    if arguments.dummy:
        random_weights()
    began = time.perf_counter()
    engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(
        model=arguments.model, disable_log_stats=True, **engine_options(arguments)))
    result: dict[str, Any] = {"start_s": round(time.perf_counter() - began, 1), "decode_ms": {}, "first_ms": {}}
    keep("times", result)
    vocabulary = engine.vllm_config.model_config.get_vocab_size()
    timed, draw = Timed(engine), random.Random(0)
    timed.serve([[draw.randrange(100, vocabulary) for _ in range(64)] for _ in range(4)], 8)
    for length in PREFILL:
        result["first_ms"][str(length)] = round(first_ms(timed, draw, vocabulary, length), 3)
        keep("times", result)
    for batch, length, tokens in DECODE[:2] if arguments.quick else DECODE:
        result["decode_ms"][f"b{batch} {length}"] = round(
            decode_ms(timed, draw, vocabulary, batch, length, tokens), 4)
        keep("times", result)
    print(arguments.arm, arguments.label, json.dumps(result), flush=True)


def verify(arguments: argparse.Namespace, keep: Any) -> None:
    from detent.battery import Settings
    from detent.battery import verify as battery
    from detent.engines.vllm.target import VllmTarget, enter

    enter(arguments.arm, arguments.tuple)
    if arguments.dummy:
        random_weights()
    target = VllmTarget(arguments.model, arm=arguments.arm, commitment=arguments.tuple, **engine_options(arguments))
    report = battery(target, Settings(tuple(arguments.verify), arguments.random, arguments.seed, arguments.long, None),
                     lambda number, count, name: print(f"cell {number} of {count}, {name}", file=sys.stderr))
    verdicts: dict[str, int] = {}
    for each in report.results:
        verdicts[each.verdict] = verdicts.get(each.verdict, 0) + 1
    keep("battery", {"sets": arguments.verify, "random": arguments.random, "seed": arguments.seed,
                     "verdicts": verdicts, "report": report.as_json()})
    print(arguments.arm, arguments.label, verdicts, flush=True)
    for each in report.results:
        if each.verdict != "same":
            print(" ", each.name, each.verdict, each.reason, [str(d)[:200] for d in each.differences[:1]], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="folder with config.json")
    parser.add_argument("--name", required=True, help="what the results call the model")
    parser.add_argument("--arm", choices=("stock", "detent", "vllm-det"), required=True)
    parser.add_argument("--tuple", help="commitment tuple of the arm detent")
    parser.add_argument("--label", default="", help="what the results call the tuple")
    parser.add_argument("--dummy", action="store_true", help="random weights")
    parser.add_argument("--time", action="store_true", help="measure")
    parser.add_argument("--quick", action="store_true", help="two decode shapes")
    parser.add_argument("--verify", nargs="*", default=[], help="sets of the battery")
    parser.add_argument("--random", type=int, default=0, help="random batches of the battery")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--long", type=int, help="tokens of the battery's long prompts")
    parser.add_argument("--out", required=True, help="JSON file to keep results in")
    arguments = parser.parse_args()

    def keep(part: str, result: Any) -> None:
        content: dict[str, Any] = {}
        if os.path.isfile(arguments.out):
            with open(arguments.out, encoding="utf-8") as file:
                content = json.load(file)
        place = content.setdefault(arguments.name, {}).setdefault(f"{arguments.arm} {arguments.label}".strip(), {})
        place[part] = {**result, "environment": environment(["python", *sys.argv])}
        write_atomic(arguments.out, (json.dumps(content, indent=1, default=str) + "\n").encode(), mode=0o644)

    if arguments.time:
        times(arguments, keep)
    if arguments.verify or arguments.random:
        verify(arguments, keep)


if __name__ == "__main__":
    main()
