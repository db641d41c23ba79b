"""One-line faults that some test must notice: what ``python -m detent.tools.mutate`` tries.

Each breaks one rule: an entry of the semantics table, a fold, a trap's rule, the cut, a cast, a guard, a domain, a
verdict. The old text stands exactly once in its file. ``tests`` are run in order until one fails.
"""

from __future__ import annotations

from typing import NamedTuple

TRAPS, RANDOM = "tests/test_end_traps.py", "tests/test_end_random_programs.py"
LEGALITY = "tests/test_end_legality.py::test_trying_everything_in_plain_python_agrees"
CUT, DOMAINS = "tests/test_passes_cut.py", "tests/test_passes_input_domains.py"
JUDGE, WITNESS = "tests/test_passes_legality.py", "tests/test_passes_witness.py"
DEFAULTS, LOWERING = "tests/test_passes_defaults.py", "tests/test_passes_lowering.py"
SEMANTICS, FLATTEN = "dialects/selir/semantics.py", "passes/control_dependence.py"
SWEEP, RULES, EVALUATOR = "passes/sweep.py", "passes/rules.py", "passes/evaluator.py"


class Mutation(NamedTuple):
    """``old`` becomes ``new`` in ``file``; ``what`` says in a few words what is broken then."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = (TRAPS, RANDOM)


MUTATIONS = (
    # The table of semantics.
    Mutation("floor division rounds towards zero", SEMANTICS, "return a // b if b", "return type(a)(a / b) if b",
             (RANDOM,)),
    Mutation("a remainder loses its sign rule", SEMANTICS, "return a % b if b", "return abs(a) % b if b", (RANDOM,)),
    Mutation("a single's product is not rounded", SEMANTICS, 'operator.mul, "({0} * {1})", rounds=True',
             'operator.mul, "({0} * {1})", rounds=False'),
    Mutation("ceil of a whole number is the next one", SEMANTICS, "return math.ceil(a) if", "return math.floor(a) + 1 if"),
    Mutation("<= is emitted as <", SEMANTICS, '"({0} <= {1})"', '"({0} < {1})"'),
    Mutation("not (a < b) is a > b", SEMANTICS, 'NEGATED = {"lt": "ge"', 'NEGATED = {"lt": "gt"', (JUDGE, RANDOM, WITNESS)),
    Mutation("a missing key reads the last row", SEMANTICS, "return table[0][1]", "return table[-1][1]", (LOWERING, WITNESS)),
    # Casts and short circuits.
    Mutation("single and double give a single", "passes/emitter.py", 'target = "float" if "float" in kinds else "f32"',
             'target = "f32" if "f32" in kinds else "float"'),
    Mutation("an int is compared with a single exactly", "passes/emitter.py", 'elif kinds == {"int", "f32"}:',
             'elif kinds == {"str", "f32"}:'),
    Mutation("what follows 'or' is guarded by its first operand", EVALUATOR,
             'self.guards.append(first if logical == "and" else self.negate(first))', "self.guards.append(first)"),
    Mutation("what follows 'and' is not guarded", EVALUATOR, "        self.guards.append(condition)\n", "        pass\n"),
    Mutation("arms that give 1 and True give one value", EVALUATOR, "self.equal_arms and same_known(a, b)",
             "self.equal_arms and a == b"),
    Mutation("of equal keys min takes the last", "passes/reductions.py", 'better = "lt"', 'better = "le"'),
    Mutation("sum counts what a filter removed", "passes/reductions.py",
             "        if guard is not True:\n            value = ev.scalar", "        if False:\n            value = ev.scalar"),
    Mutation("next finds the last", "passes/reductions.py", "in reversed(found):", "in found:"),
    # Control dependence.
    Mutation("a branch's arms change places", FLATTEN, "operands=[branch.cond, on_true, on_false]",
             "operands=[branch.cond, on_false, on_true]"),
    Mutation("an else arm's guard is the condition itself", FLATTEN,
             'self.condition if self.taken else _insert("not"', 'self.condition if True else _insert("not"'),
    Mutation("a nested arm forgets the outer branch", FLATTEN, "            if self.outer is not None:", "            if False:"),
    Mutation("a require in a branch holds everywhere", FLATTEN, "                _restrict(op, path)\n", "                pass\n"),
    # Simplification.
    Mutation("trap 1: a condition's computation merges with the selection's", SWEEP,
             "self._seen, self._own, self._blind = {}, set(), isinstance", "self._own, self._blind = set(), isinstance"),
    Mutation("trap 8: a condition trusts what its values were unpinned", SWEEP, "        for value in named:\n",
             "        for value in ():\n"),
    Mutation("assumes are folded by what they say", SWEEP, "set(), isinstance(op, AssumeOp)", "set(), False",
             (DOMAINS, TRAPS, RANDOM)),
    Mutation("an operation that could fail is folded", SWEEP, "not may_fail(kind, [self.abstract(v) for v in operands]))\n"
             "        constants", "True)\n        constants"),
    Mutation("a false guard is dropped like a true one", SWEEP, "self.known(guard) == (True,) or not may_fail",
             "self.known(guard) is not None or not may_fail"),
    Mutation("equal operations merge under any guard", SWEEP, "id(guard) if guard is not None else 0", "0",
             (RANDOM, TRAPS)),
    Mutation("0.0 folds to whichever zero comes first", SWEEP, 'not (type in ("float", "f32") and 0.0 in values)', "True",
             (RANDOM,)),
    Mutation("max of equal floats gives the second", RULES,
             'if a.high < b.low or (a.high == b.low and (kind == "min" or type == "int")):', "if a.high <= b.low:"),
    Mutation("a or (a and b) is (a and b)", RULES, "return one if inner == kind else other",
             "return other if inner == kind else one", (RANDOM, TRAPS)),
    Mutation("False if c else b is c and b", RULES, 'ctx.build("and", (ctx.build("not", (condition,), "bool"), on_false)',
             'ctx.build("and", (condition, on_false)', (RANDOM,)),
    Mutation("x * 0 is x", RULES, '            return ctx.constant(0, "int")\n        if (kind in', "            return a\n"
             "        if (kind in", (RANDOM, TRAPS)),
    Mutation("a negated condition narrows like a plain one", "passes/narrow.py", "stack.append((operands[0], not wanted))",
             "stack.append((operands[0], wanted))"),
    Mutation("values of two roots are tabulated as one", "passes/correlate.py",
             "(root is not None and table[0] is not root)", "False", (RANDOM,)),
    Mutation("a range's < is decided by <=", "passes/domains.py", "always, never = a.high < b.low, a.low >= b.high",
             "always, never = a.high <= b.low, a.low >= b.high", (WITNESS, TRAPS)),
    Mutation("a failing dead value is no failure", "detent/solver/compiled.py",
             "        check_failures(bound, sweep.sets)\n    delete_dead(bound.block)\n",
             "        delete_dead(bound.block)\n        check_failures(bound, sweep.sets)\n"),
    # The cut.
    Mutation("trap 2: what conditions name is no sink", "passes/cut.py", "            named.update(graph.args[node])",
             "            pass"),
    Mutation("trap 3: a condition reads its input's pin", "passes/min_cut.py",
             "if isinstance(owner, InputOp) and _in_condition(user, program):", "if False:"),
    Mutation("trap 4: an unpinnable input is pinned", "passes/cut.py", '.source == "unpinnable"', '.source == "none"'),
    Mutation("a branch's condition is no dependence", "passes/cut.py", 'if kind == "select" and not control',
             'if kind == "select"'),
    Mutation("a runtime input is not the batch's", "passes/cut.py", 'BATCH_DEPENDENT = ("runtime", "unpinnable")',
             'BATCH_DEPENDENT = ("unpinnable",)', (TRAPS, CUT)),
    Mutation("every batch-dependent sink is pinned itself", "passes/min_cut.py", "found.nodes if cut else found.sinks",
             "found.sinks", (TRAPS, LEGALITY)),
    Mutation("the earliest cut instead of the latest", "passes/cut.py",
             "        if len(ways) == 1 and node not in ends:\n            (gate,) = ways\n        elif ways or",
             "        if ways or", (CUT,)),
    Mutation("flow is not taken back", "passes/cut.py", "entered = node if follow[node] == _NONE else follow[node]",
             "entered = node", (CUT,)),
    # Domains, candidates, legality, defaults.
    Mutation("x < 8 allows 8", "passes/input_domains.py", 'math.ceil(constant) - 1 if kind == "lt"',
             'math.ceil(constant) if kind == "lt"', (DOMAINS, RANDOM)),
    Mutation("a congruence begins at the lower bound", "passes/input_domains.py",
             "first = known.low + (known.residue - known.low) % known.modulus", "first = known.low", (DOMAINS, RANDOM)),
    Mutation("assumes that relate inputs are forgotten", "passes/input_domains.py", "            found.append(index)\n",
             "            pass\n", (DOMAINS, LEGALITY)),
    Mutation("a pin's greatest candidate is missing", "passes/candidates.py",
             "found[node] = Candidates(ordered(values), True)", "found[node] = Candidates(ordered(values)[:-1], True)"),
    Mutation("a violation beyond the assumes counts", "passes/legality_condition.py",
             "            if isinstance(whole, dict):", "            if isinstance(whole, dict) or whole is None:", (LEGALITY, JUDGE)),
    Mutation("conditions are tried at the first point only", "passes/legality_condition.py",
             "            if check(*values, *point):\n                continue",
             '            if check(*values, *point):\n                return "exhaustive"', (TRAPS,)),
    Mutation("an undecided box counts as decided", "passes/question.py", "everywhere = everywhere and value == frozenset((wanted,))",
             "everywhere = everywhere and value is not None", (WITNESS, JUDGE)),
    Mutation("integer rows are rounded outwards", "passes/linear.py", "term: -(-coefficient // shared)",
             "term: coefficient // shared", (WITNESS, JUDGE)),
    Mutation("a key outside the table reaches no row", "passes/boxes.py",
             "reached if complete else reached | {table[0][1]}", "reached", (WITNESS,)),
    Mutation("trap 9: the default's pins are the most frequent one by one", "passes/defaults.py",
             "    return legality.default([*frequent, knob_defaults])",
             "    return {n: Counter(v[n] for v in frequent).most_common(1)[0][0] for n in places}", (TRAPS, DEFAULTS)),
    # Lowering.
    Mutation("what may fail is emitted as what cannot", "passes/lowering.py",
             "return {*before, *(node for node in range(len(graph)) if node in fails)}", "return {*before}", (RANDOM, LOWERING)),
    Mutation("an assume is reported and not enforced", "passes/lowering.py", '"assume"]\n    requires', '""]\n    requires'),
)
