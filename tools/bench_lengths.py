"""Write ``detent/bench/data/lengths.json``: quantiles of lengths in public traces, from which workloads are drawn.

Run as ``python -m detent.tools.bench_lengths --azure FILE --mooncake FILE --arxiv FILE``; detent/bench/data/SOURCES.md
says where the files come from.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "detent" / "bench" / "data" / "lengths.json"
STEPS = 200
"""Quantiles are kept at 0, 1/STEPS, ..., 1."""
BLOCK = 512
"""Tokens of a block of Mooncake's ``hash_ids``."""
LONGEST_MESSAGE = 1024
"""A follow-up that adds more tokens than this brings a document, and is no chat message."""


def quantiles(values: Iterable[int]) -> list[int]:
    """STEPS + 1 quantiles, each one of the values."""
    ranked = sorted(values)
    return [ranked[round(step / STEPS * (len(ranked) - 1))] for step in range(STEPS + 1)]


def messages(requests: Sequence[dict[str, Any]]) -> list[int]:
    """New tokens of follow-up turns in Mooncake's trace.

    A request follows the one whose blocks its own repeat furthest; what it adds beyond that one's prompt and answer
    is the new message.
    """
    latest: dict[int, int] = {}
    found = []
    for index, request in enumerate(requests):
        blocks = request["hash_ids"]
        # Block 0 is a preamble that all requests share.
        before = next((latest[block] for block in reversed(blocks[1:]) if block in latest), None)
        if before is not None:
            previous = requests[before]
            full = previous["input_length"] // BLOCK
            new = request["input_length"] - previous["input_length"] - previous["output_length"]
            if full > 1 and blocks[:full] == previous["hash_ids"][:full] and 0 < new <= LONGEST_MESSAGE:
                found.append(new)
        for block in blocks[1:]:
            latest[block] = index
    return found


def main() -> None:
    """Read the traces and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("azure", "mooncake", "arxiv"):
        parser.add_argument(f"--{name}", required=True, type=Path, metavar="FILE")
    given = parser.parse_args()
    with open(given.azure, encoding="utf-8", newline="") as file:
        replies = [int(row["GeneratedTokens"]) for row in csv.DictReader(file)]
    with open(given.mooncake, encoding="utf-8") as file:
        chats = messages([json.loads(line) for line in file])
    with open(given.arxiv, encoding="utf-8", newline="") as file:
        papers = list(csv.DictReader(file))
    prompts, summaries = ([int(row[f"num_{part}_tokens"]) for row in papers] for part in ("prefill", "decode"))
    tables = {
        "message": ("new tokens of follow-up turns, Mooncake conversation trace, Apache-2.0", chats),
        "reply": ("generated tokens, Azure LLM inference trace 2023 (conversation), CC-BY 4.0", replies),
        "document": ("prompt tokens, arXiv summarization in Vidur, MIT", prompts),
        "summary": ("output tokens, arXiv summarization in Vidur, MIT", summaries),
    }
    content = {name: {"source": source, "count": len(values), "quantiles": quantiles(values)}
               for name, (source, values) in tables.items()}
    lines = ",\n".join(f' "{name}": {json.dumps(table)}' for name, table in content.items())
    TARGET.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
