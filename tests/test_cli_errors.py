"""Bad input ends with exit code 2 and one line that names the place and the remedy; nothing is half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import DEPLOYMENT, done, invoke, refused

from detent.cli import main
from detent.cli.app import COMMANDS

PROGRAM = """\
from detent.lang import Runtime, Unpinnable, assume, record, require, selection

@record
class Gpu:
    num_sm: int

@record
class Call:
    tokens: Unpinnable[int]
    graph: Runtime[bool]

{helpers}
@selection(family="own")
def own(gpu: Gpu, call: Call):
{body}
"""
FACTS = "[gpu]\nnum_sm = 132\n"
BOUND = "assume(1 <= call.tokens <= 64)\n"
RETURN = 'return {"block": 16 if call.tokens < gpu.num_sm // 4 else 32}\n'

MISTAKES = {
    "missing fact": (BOUND + RETURN, "", "[gpu]\nnum_sms = 132\n",
                     ("no fact 'num_sm' in [gpu]", "did you mean 'num_sms'")),
    "missing section": (BOUND + RETURN, "", "[engine]\nname = 'x'\n", ("has no facts [gpu]", "does not apply")),
    "wrong type of fact": (BOUND + RETURN, "", "[gpu]\nnum_sm = 'many'\n", ("[gpu] num_sm: 'many' is not an int",)),
    "table key": (BOUND + RETURN, "", "[gpu]\nnum_sm = 132\ntable = { a = { x = 1 } }\n",
                  ("gpu.table", "not an integer")),
    "no domain": (RETURN, "", FACTS, ("tokens", "assume")),
    "empty domain": ("assume(65 <= call.tokens <= 64)\n" + RETURN, "", FACTS, ("own.py:15", "tokens")),
    "contradicting assumes": (BOUND + "assume(call.tokens * call.tokens >= 9000)\n" + RETURN, "", FACTS,
                              ("own.py:16", "assume holds nowhere", "loosen it")),
    "infeasible cut": (BOUND + 'return {"tokens": call.tokens}\n', "", FACTS,
                       ("own.py:9", "'tokens' reaches selection point 'tokens'", "mark it Runtime or Request")),
    "division by zero": (BOUND + 'return {"block": 16 if 64 // (call.tokens - 3) > 4 else 32}\n', "", FACTS,
                         ("own.py:1", "zero")),
    "recursion": (BOUND + "return {'block': deep(call.tokens)}\n", "def deep(n):\n    return deep(n - 1)\n", FACTS,
                  ("own.py:1", "deep")),
    "no point": (BOUND + "return {}\n", "", FACTS, ("no points", 'return {"name": value, ...}')),
    "unbounded pin": ("assume(1 <= call.tokens <= 100000)\n" + 'return {"large": call.tokens * 2.5}\n', "", FACTS,
                      ("own.py:16", "pin 'large' has no finite set of values", "bound it: require")),
    "loop": (BOUND + "for i in range(3):\n    pass\n" + RETURN, "", FACTS, ("own.py:16", "for")),
    "assume names a selection": (BOUND + "block = 16 if call.tokens < 9 else 32\nassume(block < 64)\n"
                                 'return {"block": block}\n', "", FACTS, ("own.py:1", "use require")),
}


def written(folder: Path, body: str, helpers: str, facts: str) -> tuple[str, str]:
    """A program and a deployment in files, as their command-line arguments."""
    program, deployment = folder / "own.py", folder / "mine.toml"
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    program.write_text(PROGRAM.format(helpers=helpers, body=indented), encoding="utf-8")
    deployment.write_text(facts, encoding="utf-8")
    return f"{program}:own", str(deployment)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_programs_and_facts(mistake: str, tmp_path: Path) -> None:
    body, helpers, facts, expected = MISTAKES[mistake]
    program, deployment = written(tmp_path, body, helpers, facts)
    line = refused("solve", program, "-d", deployment, "--json")
    for fragment in expected:
        assert fragment in line


def test_nothing_wrong_with_the_template(tmp_path: Path) -> None:
    program, deployment = written(tmp_path, BOUND + RETURN, "", FACTS)
    assert json.loads(done("solve", program, "-d", deployment, "--json"))["legal"] == 2


@pytest.mark.parametrize(("arguments", "expected"), [
    (["solve", "atention", "-d", DEPLOYMENT], ["unknown program 'atention'", "did you mean 'attention'?"]),
    (["solve", "missing.py:f", "-d", DEPLOYMENT], ["unknown program 'missing.py:f'", "there is no file missing.py"]),
    (["explain", "missing.py", "-d", DEPLOYMENT], ["there is no file missing.py", "give path.py:function"]),
    (["lint", ".", "-d", DEPLOYMENT], ["unknown program '.'"]),
    (["solve", "./", "-d", DEPLOYMENT], ["./ is no Python file"]),
    (["solve", "moe", "-d", "qwen3-30b-a3b-tp4-h20"], ["unknown deployment", "did you mean 'qwen3-30b-a3b-tp4-h200'?"]),
    (["solve", "moe", "-d", "missing.toml"], ["missing.toml: No such file"]),
    (["solve", "moe", "-d", "llama-3.1-70b-tp4-h200"], ["has no facts [moe]", "does not apply to this deployment"]),
    (["solve", "moe", "-d", DEPLOYMENT, "--ablate", "cat"], ["'cat' is not one of", "'control-dependence'"]),
    (["solve", "moe"], ["missing option '--deployment'", "see detent solve --help"]),
    (["solv", "moe"], ["unknown command 'solv'", "did you mean 'solve'?"]),
    (["explain", "moe", "-d", DEPLOYMENT, "--pin", "rows"], ["unknown pin 'rows'", "did you mean 'row'?"]),
    (["explain", "moe", "-d", DEPLOYMENT, "--point", "algn"], ["unknown point 'algn'", "did you mean 'align'?"]),
    (["explain", "moe", "-d", DEPLOYMENT, "--dot", "--pin", "row"], ["--pin and --dot exclude each other"]),
    (["explain", "moe", "-d", DEPLOYMENT, "--html", "no/such/folder/x.html"],
     ["no/such/folder/x.html: cannot be written: there is no folder"]),
    (["select", "moe", "-d", DEPLOYMENT], ["no value for num_tokens", "for example: --inputs num_tokens=1"]),
    (["select", "moe", "-d", DEPLOYMENT, "--inputs", "num_token=1"], ["did you mean 'num_tokens'?"]),
    (["select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens=1.5"], ["num_tokens is '1.5'", "write an integer"]),
    (["select", "moe", "-d", DEPLOYMENT, "--inputs", f"num_tokens={'9' * 5000}"], ["… (5,000 characters); write an"]),
    (["select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens"], ["'num_tokens' gives no input a value"]),
    (["select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens=1,num_tokens=2"], ["num_tokens is given twice"]),
    (["select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens=1", "--tuple", "no.json"], ["no.json: No such file"]),
    (["conform", "moe", "x.csv"], ["moe names nothing to compare", "take the stock program"]),
    (["conform", "fa3-vllm-stock", "missing.csv"], ["missing.csv: No such file", "give the path of a CSV file"]),
    (["cache", "why", "atention", "-d", DEPLOYMENT], ["did you mean 'attention'?"]),
    (["tuple", "show", "missing.json"], ["missing.json: No such file"]),
])
def test_mistakes_on_the_command_line(arguments: list[str], expected: list[str]) -> None:
    line = refused(*arguments)
    for fragment in expected:
        assert fragment in line


def test_a_file_without_its_function_is_told_which_it_has(tmp_path: Path) -> None:
    program, deployment = written(tmp_path, BOUND + RETURN, "", FACTS)
    path = program.removesuffix(":own")
    assert refused("solve", path, "-d", deployment) == (
        f"unknown program {path!r}: it names no function of the file; write {path}:own")


@pytest.mark.parametrize(("decorator", "expected"), [
    ("@selection", "@selection needs the kernel family by name"),
    ("@selection()", 'write @selection(family="norm")'),
    ("@selection(family=3)", "family=3 is no name of a kernel family"),
    ("@selection(family='a b/c.d')", "write letters, digits, '_' and '-'")])
def test_a_family_that_is_none(decorator: str, expected: str, tmp_path: Path) -> None:
    program, deployment = written(tmp_path, BOUND + RETURN, "", FACTS)
    path = Path(program.removesuffix(":own"))
    path.write_text(path.read_text(encoding="utf-8").replace('@selection(family="own")', decorator), encoding="utf-8")
    line = refused("solve", program, "-d", deployment)
    assert "own.py:13:" in line and expected in line and "TypeError" not in line


def test_debug_shows_the_traceback_before_the_line() -> None:
    for arguments in (["--debug", "solve", "x", "-d", DEPLOYMENT], ["solve", "x", "-d", DEPLOYMENT, "--debug"]):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("Traceback") and "error: unknown program 'x'" in result.stderr.splitlines()[-1]


def test_a_fault_of_ours_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("detent.runtime.sources.registry", broken)
    assert refused("programs") == ("a fault in Detent: KeyError: 'lost'; run it again with --debug and report "
                                   "the traceback")


def test_main_returns_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["solve", "x", "-d", DEPLOYMENT]) == 2
    assert capsys.readouterr().err.startswith("error: unknown program 'x'")


def test_every_command_explains_itself() -> None:
    assert all(name in done("--help") for name in COMMANDS)
    for name in COMMANDS:
        assert done(name, "-h").startswith(f"Usage: detent {name}")


def test_python_m_detent(root: Path) -> None:
    run = subprocess.run([sys.executable, "-m", "detent", "solve", "x", "-d", DEPLOYMENT], cwd=root,
                         capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == ""
    assert len(run.stderr.splitlines()) == 1 and run.stderr.startswith("error: unknown program 'x'")
