"""``detent generate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import json_option
from detent.cli.output import show_json
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.engines.embedded.target import EmbeddedTarget
    from detent.engines.interface import Output

MODEL = "smollm2"


@click.command("generate", epilog="""\b
Examples:
  detent generate --prompt "The capital of France is"
  detent generate --model tiny-moe --prompt "abc" --arm stock --json
  detent generate --prompt "Once upon a time" --tokens 100 --temperature 0.8 --seed 7""")
@click.option("--model", metavar="M", default=MODEL, show_default=True,
              help="smollm2, tiny, tiny-moe, a GGUF file or a Hugging Face folder.")
@click.option("--prompt", metavar="TEXT", required=True, help="What the model is to continue.")
@click.option("--arm", type=click.Choice(("stock", "detent")), default="detent", show_default=True,
              help="Kernels selected for each batch, or under a commitment tuple.")
@click.option("--tuple", "commitment", metavar="FILE", help="Commitment tuple, instead of the default assignment.")
@click.option("--tokens", metavar="N", default=64, show_default=True, help="Output tokens at most.")
@click.option("--temperature", metavar="T", default=0.0, show_default=True, help="0 takes the likeliest token.")
@click.option("--seed", metavar="S", type=int, help="Seed of a temperature above 0; without one, one is drawn.")
@json_option
def generate_command(model: str, prompt: str, arm: str, commitment: str | None, tokens: int, temperature: float,
                     seed: int | None, as_json: bool) -> None:
    """Continue a text with the embedded engine, on this machine's processor."""
    from detent.engines.embedded.target import EmbeddedTarget
    from detent.engines.interface import Request, Sampling, Submission
    from detent.runtime.errors import BadInput

    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise BadInput("the prompt is no text: its bytes are not UTF-8", "write --prompt in UTF-8") from None
    with Steps("generate") as step:
        step(f"start the engine with {model}")
        target = EmbeddedTarget.open(model, arm=arm, commitment=commitment)
        step("compute")
        request = Request(target.encode(prompt), tokens, Sampling(temperature, seed=seed),
                          target.engine.model.config.eos)
        output = target.run([Submission(request)])[0]
    if as_json:
        show_json(_json(target, prompt, request.prompt, output))
    else:
        click.echo(prompt + target.decode(output.tokens))


def _json(target: EmbeddedTarget, prompt: str, ids: tuple[int, ...], output: Output) -> dict[str, Any]:
    import struct

    traits = target.traits
    return {
        "model": traits.model, "arm": traits.arm, "environment": dict(traits.environment), "prompt": prompt,
        "prompt_tokens": ids, "text": target.decode(output.tokens), "tokens": output.tokens,
        "logprobs": [struct.unpack(">d", bits)[0] for bits in output.logprobs],
        "logprob_bits": [bits.hex() for bits in output.logprobs],
        "finish": output.finish, "seconds": output.times[-1] - output.arrival,
        "selections": dict(output.steps[-1].selections or {}),
    }
