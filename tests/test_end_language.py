"""Each construct by itself: plain Python, the selector and every simplification agree; what fails is refused."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from end_support import EVERYTHING, Emitted, Plain, Written, bound, evaluated, product

from detent.passes.check_failures import Reachable
from detent.passes.control_dependence import flatten_branches
from detent.passes.flatten import flatten
from detent.passes.rules import Options
from detent.passes.sweep import Simplifier, program_domains

FIELDS = """n: Request[int]
    m: Request[int]
    flag: Request[bool]
    name: Request[str]
    x: Request[float]
    s: Request[F32]"""
INPUTS = {"n": (0, 1, 2, 3), "m": (-2, 0, 1, 2), "flag": (False, True), "name": ("a", "b"), "x": (-0.5, 0.0, 2.5),
          "s": (0.10000000149011612, 3.0)}
BODY = """assume(0 <= call.n <= 3)
    assume(call.m in (-2, 0, 1, 2))
    assume(call.name in ("a", "b"))
    assume(call.x in (-0.5, 0.0, 2.5))
    assume(call.s in (f32(0.1), f32(3)))
    n, m, flag, name, x, s = call.n, call.m, call.flag, call.name, call.x, call.s
    """
INTS = """n + m | n - m | n * m | m // 2 | m // -2 | m % 3 | m % -3 | -m | abs(m) | min(n, m) | max(n, m, 2) | n * 0
    0 * n | n * 1 | 1 * n | n + 0 | 0 + n | n - 0 | n - n | n // 1 | n % 1 | min(n, n) | int(flag) | flag + n | 3 * flag
    n and m | n or m | 1 if flag else 1 | (n if flag else m) if flag else 7 | 7 if flag else (n if flag else m)
    5 if not flag else 6 | 2 if n > 1 else 2 if m else 3 | m if m < 1 else 1 | min(m, 5) | max(n, -1) | n % (m % 3 + 1)
    ceil(s * 10) | floor(x) | int(x) | int(s * 100) | ceil(n / 2) | floor(-n / 2) | ceil(f32(n) * 0.75) | int(-x * 3)
    sum(k < n for k in (1, 2)) | sum(k for k in (1, 2, 5) if k > n) | sum((k * m for k in (1, 2)), n)
    next(k for k in (3, 1, 2) if k >= 0) | next((k for k in (3, 1, 2) if k < n), 9)
    next((k * m for k in (1, 2) if k > n), m)
    min((1, 4, 2), key=lambda k: abs(k - n)) | min((4, 2, 1), key=lambda k: abs(k - 3 * flag))
    max((1, 3, 2), key=lambda k: (k - n) * (k - n)) | max((1, m), (2, n), key=lambda pair: pair[1])[0]
    min((k * m for k in (1, 2, 3)), default=4) | max(k if k < n else 0 for k in (1, 2)) | (4, 1, 6, 8)[n]
    {1: 2, 2: 5}.get(n, 7) | {0: m, 1: n, 2: 5, 3: 4}[n] | {"a": 1, "b": 2}[name]
    {0: {"w": 1}, 1: {"w": 2}}[int(flag)]["w"]
    sorted((3, 1, 2))[0] + n | len((1, 2, 3)) * n | sum(i * k for i, k in enumerate((2, 5))) - m
    sum(i * k for i, k in zip((1, 2), (n, m))) | sum(k for k in reversed((1, n))) | sum({1: n, 2: m}.values())"""
BOOLS = """n < m <= 3 | n == m != 1 | 0 < n > m | n == n | n < n | flag == (n > 1) | flag != (m > 0) | n == 1.0 | x < n
    s == n | s < 0.1 | s <= f32(0.1) | s == 3 | x >= m | name == "a" | name != "b" | name in ("a", "c") | n in (1, m, 3)
    n not in (0, 2) | n in range(1, 3) | flag == 1 | flag and n > 1 | flag or n > 1 | not flag | not not flag
    not n < m | not n <= m | not n == m | not n > m | (flag and n > 1) or flag | flag and (flag or n > 1)
    flag or (flag and n > 1) | (flag or n > 1) and flag | flag and not flag | flag or not flag
    False if flag else n > 1
    True if flag else n > 1 | n > 1 if flag else False | n > 1 if flag else True | bool(m) | bool(name) | bool(x)
    any(k < n for k in (1, 2)) | all(k < n for k in (1, 2)) | any(k == m for k in (1, 2) if k != n) | n in {1: 2, 3: 4}
    all(k == m for k in (1, 2) if k != n) | any(k > 5 for k in (1, 2)) | n < 2 and m < 1 and flag | n > 7 | n >= 0
    f32(n) / f32(3) == n / 3 | f32(0.1) * n == 0.1 * n | f32(16777217) == 16777217
    f32(n) + 16777216 == n + 16777216"""
FLOATS = """x * s | n / 3 | x // 0.7 | x % -0.7 | float(n) | -x | abs(-x) | 0 * x | x + 0 | x - x | max(-abs(x), abs(x))
    min(abs(x), -abs(x)) | max(-float(3 - n), abs(x)) | min(float(n), -0.0) | x or 1.5 | x if flag else -0.0
    sum(k * x for k in (1, 2)) | f32(0.1) * 0.1 | s * 0.85 | n * 0.1 | x / 0.3"""
SINGLES = """s * s | s + 1 | 1 - s | s / 3 | f32(x) | f32(n) / f32(3) | -s | abs(s - 1) | max(s, f32(1)) | f32(0.1) * n
    s if flag else f32(-0.0) | 0 * f32(m) | f32(n) * f32(0.1) + f32(0.2) | f32(flag) / 7 | min(f32(m), f32(-0.0))"""
TEXTS = """name or "c" | "a" if flag else name | "x" if n > 1 else "y" if m > 0 else name | ("a", "b", "c", "d")[n]
    {"a": "q", "b": "r"}[name] | next((t for t in ("a", "b") if t != name), "c")"""
EXPRESSIONS = [" ".join(part.split()) for text in (INTS, BOOLS, FLOATS, SINGLES, TEXTS) for line in text.split("\n")
               for part in line.split(" | ")]


def test_every_expression_agrees(tmp_path: Path) -> None:
    points = ", ".join(f"'{index}': {text}" for index, text in enumerate(EXPRESSIONS))
    written = Written(tmp_path, FIELDS, f"{BODY}return {{{points}}}")
    plain, emitted = Plain(written.function, {}), Emitted(written.solve())
    program = bound(written.function, {})
    flatten_branches(program.block)
    graphs = {"as bound": flatten(program)}
    domains = program_domains(program)
    for options in (EVERYTHING.options, *(replace(Options(), **{option: False}) for option in vars(Options()))):
        copy = program.clone()
        Simplifier(copy, options, domains).run()
        copy.verify()
        graphs[str(options)] = flatten(copy)
    inputs = list(product(INPUTS))
    few = random.Random(1).sample(inputs, 30)
    for point in inputs:
        expected, _ = plain(point)
        found = {"emitted": emitted(point)[0]}
        if point in few:
            found |= {name: evaluated(graph, point)[0] for name, graph in graphs.items()}
        for way, points_found in found.items():
            wrong = [f"{EXPRESSIONS[int(name)]} is {points_found[name]}, not {value}"
                     for name, value in expected.items() if points_found[name] != value]
            assert not wrong, (way, point, wrong)


STATEMENTS = [
    "v = 1\nif flag:\n    v = 2\nelif n > 1:\n    v += m\nreturn {'v': v}",
    "if n > 1:\n    return {'v': n}\nif flag:\n    return {'v': m}\nv = n + m\nreturn {'v': v * 2}",
    "if flag:\n    if n > 1:\n        v, w = 1, m\n    else:\n        v, w = 2, n\nelse:\n    v, w = 3, 4\n"
    "return {'v': v, 'w': w}",
    "if flag:\n    only = 1\nv = n if n > m else m\nreturn {'v': v} | {'w': -v}",
    "v = n\nv -= m\nv *= 2\nv //= 3\nv %= 2\nreturn {'v': v}",
    "if flag:\n    require(n > 1, 'above one')\n    v = 1\nelse:\n    require(n < 2, 'below two')\n    v = 2\n"
    "return {'v': v}",
    "if flag:\n    if n > 1:\n        require(m > 0, 'positive')\nrequire(n != 3 or not flag, 'no three')\n"
    "return {'v': n}",
    "low = m <= 0\nif low:\n    v = 7 // n if n > 0 else 0\nelse:\n    v = 7 % m\nreturn {'v': v, 'low': low}",
]


@pytest.mark.parametrize("body", STATEMENTS)
def test_every_statement_agrees(tmp_path: Path, body: str) -> None:
    written = Written(tmp_path, FIELDS, BODY + body.replace("\n", "\n    "))
    plain, emitted = Plain(written.function, {}), Emitted(written.solve())
    for point in product({**INPUTS, "x": (0.0,), "s": (3.0,)}):
        assert emitted(point) == plain(point), point


# ---- what Python refuses -----------------------------------------------------------------------------------------

FAIL = ["7 // call.n", "7 % call.n", "7 / call.n", "f32(7) / call.n", "7.0 // (call.n - call.n)", "7 // (call.n * 0)",
        "0 * (7 // call.n)", "(7 // call.n > 1) and False", "{1: 2, 2: 3}[call.n]", "(5, 6, 7)[call.n + 1]",
        "ceil(f32(3e38) * call.n * 10 - f32(3e38) * 100)", "int(1e308 * 10 * (call.n - 1))", "7 // (call.n - k)",
        "7 // call.n if call.n < 1 else 0", "0 if call.n > 0 else 7 // call.n", "call.n > 1 or 7 // call.n > 1",
        "10 ** 400 * call.n / 3", "float(10 ** 400 + call.n)"]
USES = ["return {{'point': {0}}}", "unused = {0}\n    return {{'point': 1}}",
        "return {{'point': 1 if call.n > 7 or ({0}) == 5 else 2}}",
        "require(({0}) != 77, 'rule')\n    return {{'point': 1}}",
        "safe = 7 // call.n if call.n > 0 else 0\n    return {{'safe': safe, 'point': {0}}}"]


def guarded(folder: Path, body: str) -> Written:
    return Written(folder, "n: Unpinnable[int]",
                   f"assume(0 <= call.n <= 2)\n    k = knob('k', (3, 2), default=3)\n    {body}")


@pytest.mark.parametrize(("expression", "use"), [*itertools.product(FAIL, USES[:1]), *itertools.product(FAIL[:1], USES),
                                                 *itertools.product(FAIL[7:10], USES)])
def test_what_python_refuses_at_some_input_is_refused(tmp_path: Path, expression: str, use: str) -> None:
    with pytest.raises(Reachable, match="at n=[012]|not finite|too large"):
        guarded(tmp_path, use.format(expression)).solve()


HOLD = ["7 // call.n if call.n else 0", "call.n != 0 and 7 // call.n > 1", "call.n == 0 or 7 % call.n > 1",
        "0 if call.n == 0 else 7 // call.n", "7 // max(1, call.n)", "{1: 2, 2: 3}.get(call.n, 0)",
        "call.n in (1, 2) and {1: 2, 2: 3}[call.n] > 2", "sum(7 // x for x in (1, 2) if x == call.n)",
        "7 // call.n if call.n % 3 != 0 and not call.n < 1 else 5",
        "any(7 // call.n == x for x in (3, 7) if call.n > 0)",
        "call.n > 5 and 7 // (call.n - call.n) > 1", "(7 // call.n if call.n < 2 else 7 % call.n) if call.n > 0 else 1"]


@pytest.mark.parametrize("expression", HOLD)
def test_what_python_computes_at_every_input_is_not(tmp_path: Path, expression: str) -> None:
    written = guarded(tmp_path, f"return {{'point': {expression}}}")
    plain, emitted = Plain(written.function, {}), Emitted(written.solve())
    for point in product({"n": (0, 1, 2)}):
        assert emitted(point) == plain(point)
