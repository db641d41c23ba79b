"""One-line faults that some test must notice: what ``python -m detent.tools.mutate`` tries.

Each breaks one rule: an entry of the semantics table, a fold, a trap's rule, the cut, a cast, a guard, a domain, a
verdict. The old text stands exactly once in its file. ``tests`` are run in order until one fails.
"""

from __future__ import annotations

from typing import NamedTuple

LANGUAGE, TRAPS = "tests/test_end_language.py", "tests/test_end_traps.py"
RANDOM = "tests/test_end_random_programs.py"
LEGALITY = "tests/test_end_legality.py::test_trying_everything_in_plain_python_agrees"
CUT, DOMAINS = "tests/test_passes_cut.py", "tests/test_passes_input_domains.py"
JUDGE, WITNESS = "tests/test_passes_legality.py", "tests/test_passes_witness.py"
COPIES = "tests/test_passes_copies.py"
DEFAULTS, LOWERING = "tests/test_passes_defaults.py", "tests/test_passes_lowering.py"


class Mutation(NamedTuple):
    """``old`` becomes ``new`` in ``file``; ``what`` says in a few words what is broken then."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = (LANGUAGE, TRAPS, RANDOM)


def _in(file: str, *rows: tuple[str, str, str] | tuple[str, str, str, tuple[str, ...]]) -> list[Mutation]:
    return [Mutation(row[0], file, *row[1:]) for row in rows]


MUTATIONS = (
    *_in(
        "dialects/selir/semantics.py",
        ("floor division rounds towards zero", "return a // b if b", "return type(a)(a / b) if b"),
        ("a remainder loses its sign rule", "return a % b if b", "return abs(a) % b if b"),
        ("a single's product is not rounded", '"({0} * {1})", rounds=True', '"({0} * {1})", rounds=False'),
        ("ceil of a whole number is the next one", "return math.ceil(a) if", "return math.floor(a) + 1 if"),
        ("<= is emitted as <", '"({0} <= {1})"', '"({0} < {1})"'),
        ("not (a < b) is a > b", 'NEGATED = {"lt": "ge"', 'NEGATED = {"lt": "gt"', (TRAPS, JUDGE, RANDOM)),
        ("a missing key reads the last row", "return table[0][1]", "return table[-1][1]", (LOWERING, WITNESS)),
    ),
    *_in(
        "passes/emitter.py",
        (
            "single and double give a single",
            'target = "float" if "float" in kinds else "f32"',
            'target = "f32" if "f32" in kinds else "float"',
        ),
        ("an int is compared with a single exactly", 'elif kinds == {"int", "f32"}:', 'elif kinds == {"str", "f32"}:'),
    ),
    *_in(
        "passes/evaluator.py",
        (
            "what follows 'or' is guarded by its first operand",
            'self.guards.append(first if logical == "and" else self.negate(first))',
            "self.guards.append(first)",
        ),
        ("bool and int give a bool", "        if only_truth(op.res[0]):\n", "        if True:\n", (COPIES,)),
        ("what a filter lets through is not guarded", "        self.guards.append(condition)\n", "        pass\n"),
        (
            "arms that give 1 and True give one value",
            "self.equal_arms and same_known(a, b)",
            "self.equal_arms and a == b",
            (RANDOM,),
        ),
    ),
    *_in(
        "passes/uses.py",
        (
            "a variable that holds an input is the input",
            'value.owner.source.data.value == "runtime"',
            "False",
            (COPIES,),
        ),
    ),
    *_in(
        "passes/check_failures.py",
        (
            "any guard asks for a lookup's key",
            "    return any(all(is_row(part)",
            "    return any(all(True or is_row(part)",
            ("tests/test_passes_check_failures.py",),
        ),
    ),
    *_in(
        "passes/reductions.py",
        ("of equal keys min takes the last", 'better = "lt"', 'better = "le"'),
        (
            "sum counts what a filter removed",
            "        if guard is not True:\n            value = ev.scalar",
            "        if False:\n            value = ev.scalar",
        ),
        ("next finds the last", "in reversed(found):", "in found:"),
    ),
    *_in(
        "passes/control_dependence.py",
        (
            "a branch's arms change places",
            "operands=[branch.cond, on_true, on_false]",
            "operands=[branch.cond, on_false, on_true]",
        ),
        (
            "an else arm's guard is the condition itself",
            'self.condition if self.taken else _insert("not"',
            'self.condition if True else _insert("not"',
        ),
        ("a nested arm forgets the outer branch", "            if self.outer is not None:", "            if False:"),
        ("a require in a branch holds everywhere", "                _restrict(op, path)\n", "                pass\n"),
        (
            "a branch's test in a require is the selection's value",
            "if value.name_hint or not isinstance",
            "if True or not isinstance",
            (COPIES,),
        ),
        ("a branch does not guard what its require computes", "    for inner in can_fail:\n", "    for inner in ():\n",
         (COPIES,)),
    ),
    *_in(
        "passes/sweep.py",
        (
            "trap 1: a condition's computation merges with the selection's",
            "self._seen, self._own, self._blind = {}, set(), isinstance",
            "self._own, self._blind = set(), isinstance",
            (TRAPS,),
        ),
        (
            "a value that equals an input is the true input in a require",
            "        if not named:\n            return False\n",
            "        return False\n",
            (COPIES,),
        ),
        (
            "trap 8: a condition trusts what its values were unpinned",
            "        for value in named:\n",
            "        for value in ():\n",
            (TRAPS,),
        ),
        ("assumes are folded by what they say", "set(), isinstance(op, AssumeOp)", "set(), False"),
        (
            "an operation that could fail is folded",
            "not may_fail(kind, [self.abstract(v) for v in operands]))\n        constants",
            "True)\n        constants",
        ),
        (
            "a false guard is dropped like a true one",
            "self.known(guard) == (True,) or not may_fail",
            "self.known(guard) is not None or not may_fail",
        ),
        ("equal operations merge under any guard", "id(guard) if guard is not None else 0", "0"),
        ("0.0 folds to whichever zero comes first", 'not (type in ("float", "f32") and 0.0 in values)', "True"),
    ),
    *_in(
        "passes/rules.py",
        (
            "max of equal floats gives the second",
            'if a.high < b.low or (a.high == b.low and (kind == "min" or type == "int")):',
            "if a.high <= b.low:",
        ),
        (
            "trap 8: a choice by range trusts what its operands were unpinned",
            "a, b = (hull(ctx.independent(v)) for v in operands)",
            "pass",
            (TRAPS,),
        ),
        (
            "a or (a and b) is (a and b)",
            "return one if inner == kind else other",
            "return other if inner == kind else one",
        ),
        (
            "False if c else b is c and b",
            'ctx.build("and", (ctx.build("not", (condition,), "bool"), on_false)',
            'ctx.build("and", (condition, on_false)',
        ),
        (
            "x * 0 is x",
            '            return ctx.constant(0, "int")\n        if (kind in',
            "            return a\n        if (kind in",
        ),
    ),
    *_in(
        "passes/narrow.py",
        (
            "a negated condition narrows like a plain one",
            "stack.append((operands[0], not wanted))",
            "stack.append((operands[0], wanted))",
            (TRAPS,),
        ),
    ),
    *_in(
        "passes/correlate.py",
        ("values of two roots are tabulated as one", "(root is not None and table[0] is not root)", "False"),
    ),
    *_in(
        "passes/domains.py",
        (
            "a range's < is decided by <=",
            "always, never = a.high < b.low, a.low >= b.high",
            "always, never = a.high <= b.low, a.low >= b.high",
            (WITNESS,),
        ),
    ),
    *_in(
        "detent/solver/compiled.py",
        (
            "a dead value that fails is no failure",
            "        check_failures(bound, sweep.sets)\n    delete_dead(bound.block)\n",
            "        delete_dead(bound.block)\n        check_failures(bound, sweep.sets)\n",
        ),
        (
            "trap 8: an assignment that makes an operation fail is legal",
            "        require_no_failures(flat.graph, pin_sets(flat, sweep.sets), domains)\n",
            "        pass\n",
            (TRAPS,),
        ),
    ),
    *_in(
        "passes/check_failures.py",
        (
            "a guard that reads a request's input is no guard",
            '== "input" and graph.data[leaf].source in BATCH_DEPENDENT',
            '== "input"',
        ),
    ),
    *_in(
        "passes/cut.py",
        (
            "trap 2: what conditions name is no sink",
            "            named.update(graph.args[node])",
            "            pass",
            (TRAPS,),
        ),
        ("trap 4: an unpinnable input is pinned", '.source == "unpinnable"', '.source == "none"', (TRAPS,)),
        (
            "a branch's condition is no dependence",
            'if kind == "select" and not control',
            'if kind == "select"',
            (TRAPS,),
        ),
        (
            "a runtime input is not the batch's",
            'BATCH_DEPENDENT = ("runtime", "unpinnable")',
            'BATCH_DEPENDENT = ("unpinnable",)',
            (TRAPS,),
        ),
        (
            "a request's input is the batch's",
            'BATCH_DEPENDENT = ("runtime", "unpinnable")',
            'BATCH_DEPENDENT = ("runtime", "unpinnable", "request")',
            (TRAPS, CUT),
        ),
        (
            "a sink that feeds another is no end of the cut",
            "if len(ways) == 1 and node not in ends:",
            "if len(ways) == 1:",
            (TRAPS, CUT),
        ),
        (
            "an unpinnable input has room for one unit",
            "            if node not in fixed:",
            "            if True:",
            (CUT,),
        ),
    ),
    *_in(
        "passes/min_cut.py",
        (
            "trap 3: a condition reads its input's pin",
            "if isinstance(owner, InputOp) and _in_condition(user, program):",
            "if False:",
            (TRAPS,),
        ),
        ("every batch-dependent sink is pinned itself", "found.nodes if cut else found.sinks", "found.sinks", (TRAPS,)),
    ),
    *_in(
        "passes/input_domains.py",
        (
            "x < 8 allows 8",
            'math.ceil(constant) - 1 if kind == "lt"',
            'math.ceil(constant) if kind == "lt"',
            (DOMAINS, RANDOM),
        ),
        (
            "a congruence begins at the lower bound",
            "first = known.low + (known.residue - known.low) % known.modulus",
            "first = known.low",
            (DOMAINS, RANDOM),
        ),
        (
            "assumes that relate inputs are forgotten",
            "            found.append(index)\n",
            "            pass\n",
            (DOMAINS, LEGALITY),
        ),
    ),
    *_in(
        "passes/candidates.py",
        (
            "a pin's greatest candidate is missing",
            "found[node] = Candidates(ordered(values), True)",
            "found[node] = Candidates(ordered(values)[:-1], True)",
            (TRAPS,),
        ),
    ),
    *_in(
        "passes/legality_condition.py",
        (
            "conditions are tried at the first point only",
            "            if check(*values, *point):\n                continue",
            '            if check(*values, *point):\n                return "exhaustive"',
            (TRAPS,),
        ),
    ),
    *_in(
        "passes/witness.py",
        (
            "a witness need not satisfy the assumes",
            "            if found is None:\n                return None\n",
            "            if found is None:\n                continue\n",
            ("tests/test_end_legality.py::test_only_whole_inputs_are_violations",),
        ),
    ),
    *_in(
        "passes/question.py",
        (
            "an undecided box counts as decided",
            "everywhere and value == frozenset((wanted,))",
            "everywhere and value is not None",
            (WITNESS, JUDGE),
        ),
    ),
    *_in(
        "passes/linear.py",
        (
            "integer rows are rounded outwards",
            "term: -(-coefficient // shared)",
            "term: coefficient // shared",
            (WITNESS, JUDGE),
        ),
        (
            "a strict comparison of integers is not sharpened",
            'if kind in ("lt", "gt") else row]',
            "if False else row]",
            (WITNESS, JUDGE),
        ),
    ),
    *_in(
        "passes/boxes.py",
        (
            "a key outside the table reaches no row",
            "reached if complete else reached | {table[0][1]}",
            "reached",
            (WITNESS,),
        ),
    ),
    *_in(
        "passes/defaults.py",
        (
            "trap 9: the default's pins are the most frequent one by one",
            "    return legality.default([*frequent, knob_defaults])",
            "    return {n: Counter(v[n] for v in frequent).most_common(1)[0][0] for n in places}",
            (TRAPS, DEFAULTS),
        ),
    ),
    *_in(
        "passes/lowering.py",
        (
            "what may fail is emitted as what cannot",
            "return {*before, *(node for node in range(len(graph)) if node in fails)}",
            "return {*before}",
        ),
        (
            "an assume is reported and not enforced",
            'if condition.kind == "assume"]\n    requires',
            'if condition.kind == "never"]\n    requires',
            (TRAPS,),
        ),
    ),
)
