"""What the language refuses, and what to write instead: one table.

Names with a capital are classes of Python's ``ast``; the others are uses of an accepted class that are refused.
A class in neither this table nor the front end's own tables is refused as unknown, so syntax that a later Python
adds is never accepted by accident.
"""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """``what`` begins the message (``... is not part of the language``), ``instead`` is the help."""

    what: str
    instead: str


LOOP = "use a comprehension or a reduction (min, max, sum, any, all, next) over a static collection"
CONDITION = "state what must hold as require(condition, message), or choose with 'if'"
TOP = "move it to the top of the file; only functions and literal constants of other modules may be used"
PURE = "a program is pure; do this outside, around the call of the selector"
LOGIC = "write 'and', 'or', 'not' on bools; on ints use // and % by powers of two"
ITERATE = "put it where it is consumed, such as min(...), tuple(...), sorted(...) or a comprehension"

REFUSALS: dict[str, Refusal] = {
    # statements
    "AsyncFunctionDef": Refusal("an async function", "write a plain function; a selection waits for nothing"),
    "Assert": Refusal("'assert'", "write require(condition, message), or assume(condition) for what bounds an input"),
    "ClassDef": Refusal("a class inside a function", "define records with @record at the top of the file"),
    "Delete": Refusal("'del'", "leave the name alone; values never change and are dropped when nothing uses them"),
    "For": Refusal("a 'for' loop", LOOP),
    "FunctionDef": Refusal("a function inside a function", "define it at the top of the file and pass what it needs"),
    "Global": Refusal("'global'", "return the value, or make it a deployment fact"),
    "Import": Refusal("an import inside a function", TOP),
    "ImportFrom": Refusal("an import inside a function", TOP),
    "Match": Refusal("'match'", "use if/elif/else, or a dict display with the cases as keys"),
    "Nonlocal": Refusal("'nonlocal'", "pass the value as an argument and return it"),
    "Raise": Refusal("'raise'", CONDITION),
    "Try": Refusal("'try'", "nothing in a program raises; test beforehand with 'if' or table.get(key, default)"),
    "TryStar": Refusal("'try'", "nothing in a program raises; test beforehand with 'if' or table.get(key, default)"),
    "TypeAlias": Refusal("a type alias inside a function", "leave it out; types of local values are not declared"),
    "While": Refusal("a 'while' loop", LOOP),
    "With": Refusal("a 'with' block", PURE),
    "aliasing update": Refusal("'|=', which changes a dict that others may share,", "write a = a | b"),
    "bare annotation": Refusal("a declaration without a value", "assign a value, or leave the line out"),
    "expression statement": Refusal(
        "an expression whose value is not used", "assign or return it; only conditions and calls of helpers stand alone"
    ),
    "attribute target": Refusal("assignment to an attribute", "records do not change; assign to a new name"),
    "item target": Refusal("assignment to an item", "build it at once: a display, a comprehension, or a | b"),
    "starred target": Refusal("a starred target", "name every element, or use items: first = values[0]"),
    # expressions
    "NamedExpr": Refusal("':='", "assign to the name in a statement before"),
    "Set": Refusal("a set display", "use a tuple: (a, b)"),
    "SetComp": Refusal("a set comprehension", "use a list comprehension"),
    "Slice": Refusal("a slice", "use a comprehension over range(...), or name the elements by unpacking"),
    "Starred": Refusal("'*' unpacking", "write the elements out"),
    "TemplateStr": Refusal("a template string", "use an f-string"),
    "Yield": Refusal("'yield'", "return a tuple, or use a comprehension"),
    "YieldFrom": Refusal("'yield from'", "return a tuple, or use a comprehension"),
    "bytes": Refusal("a bytes literal", "use a string"),
    "complex": Refusal("a complex number", "use ints and floats"),
    "ellipsis": Refusal("'...'", "use 'pass' for an empty body, None for an absent value"),
    "conversion": Refusal("a conversion (!r, !s, !a, =) in an f-string", "write the plain value: {value}"),
    "format spec": Refusal("a format specification in an f-string", "write the plain value: {value}"),
    "dict unpacking": Refusal("'**' in a dict display", "join dicts with a | b"),
    "identity": Refusal("'is' with anything but None", "compare with =="),
    "equality with None": Refusal("'==' or '!=' with None", "write 'is None' or 'is not None'"),
    "lambda": Refusal("a lambda that is not an argument of a call", "define a helper at the top of the file"),
    "lambda parameters": Refusal(
        "a lambda with anything but plain parameters", "use plain parameters; it sees the values around it"
    ),
    "generator": Refusal("a generator that is not consumed where it stands", "write a list: [...]"),
    "iterator": Refusal("an iterator or view that is kept as a value", ITERATE),
    "next of a collection": Refusal("next(...) of anything but a generator", "write next((x for x in xs), default)"),
    "computed callee": Refusal("a call of a value", "call functions by name, and choose between their results"),
    "argument unpacking": Refusal("'*' or '**' in a call", "write the arguments out"),
    "condition inside": Refusal("assume or require inside an expression", "make it a statement of its own"),
    "method": Refusal("a method call", "dicts have items, values, keys and get; for anything else write a helper"),
    # operators
    "BitAnd": Refusal("'&'", LOGIC),
    "BitXor": Refusal("'^'", "write a != b on bools; on ints use // and % by powers of two"),
    "Invert": Refusal("'~'", "write 'not' on bools, -x - 1 on ints"),
    "LShift": Refusal("'<<'", "multiply by a power of two: x * 2 ** n"),
    "MatMult": Refusal("'@'", "a program computes with scalars; write the sum of products out"),
    "RShift": Refusal("'>>'", "divide by a power of two: x // 2 ** n"),
    "UAdd": Refusal("unary '+'", "leave the sign out"),
    # functions
    "decorator": Refusal("a decorator on a helper", "call a plain function"),
    "selection decorator": Refusal("a decorator besides @selection", "leave it out; the text is what is read"),
    "variadic parameter": Refusal("a '*' or '**' parameter", "name every parameter"),
    "selection default": Refusal("a default of a selection's parameter", "write the value in the deployment"),
    "type parameter": Refusal("a type parameter", "leave it out; a helper takes values of any type"),
}
"""Refusals by class name of ``ast`` (capital) or by use (lower case)."""

FUNCTIONS: dict[str, str] = {
    "dict": "write a dict display {...} or a dict comprehension",
    "divmod": "write a // b and a % b",
    "filter": "write a comprehension with 'if'",
    "frozenset": "use a tuple",
    "isinstance": "types are fixed by the records; test 'is None' for an optional fact",
    "iter": "use a generator expression: (x for x in values)",
    "map": "write a comprehension",
    "print": "return what you want to see as a selection point",
    "repr": "use an f-string",
    "round": "use floor, ceil or int",
    "set": "use a tuple",
    "str": "use an f-string: f'{value}'",
    "type": "types are fixed by the records; test 'is None' for an optional fact",
}
"""Python's own functions that are refused with special advice."""

PARTS = frozenset(
    """alias arg arguments comprehension keyword match_case withitem ExceptHandler Interpolation
    AsyncFor AsyncWith Await Break Continue
    Module Expression Interactive FunctionType TypeIgnore Load Store Del ParamSpec TypeVar TypeVarTuple
    MatchAs MatchClass MatchMapping MatchOr MatchSequence MatchSingleton MatchStar MatchValue""".split()
)
"""Classes of ``ast`` that Python allows only inside others (``break`` in a loop, ``await`` in an async function), and
that are accepted or refused with them."""
