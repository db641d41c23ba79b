"""Programs for the front end's tests, as text: ``== title``, then the lines before the selection and ``--`` if there
are any, then the selection's statements."""

from __future__ import annotations


def cases(text: str) -> dict[str, tuple[str, str]]:
    """Title -> lines before the selection, statements of the selection."""
    found: dict[str, tuple[str, str]] = {}
    for block in text.strip().removeprefix("== ").split("\n== "):
        title, _, rest = block.partition("\n")
        before, line, body = rest.rpartition("\n--\n")
        found[title] = (before if line else "", body)
    return found


ACCEPTED = r"""
== arithmetic
return {'a': facts.n + 2 * facts.m - 1, 'b': -facts.n // 2, 'c': facts.n % -4, 'd': facts.n / 2}
== power
return {'a': 2 ** facts.m, 'b': pow(facts.n, 2), 'c': -2 ** 2}
== negative zero
return {'a': -0.0, 'b': 0.0, 'c': -(-3)}
== comparison
return {'a': facts.n < 8, 'b': facts.n >= 8, 'c': facts.n == 7, 'd': facts.n != 7, 'e': facts.n > 6}
== chain
return {'a': 1 <= facts.m < facts.n <= 7, 'b': 1 < facts.m > 5 < facts.n, 'c': 0 < facts.m in (3, 4)}
== membership
return {'a': facts.n in (1, 7), 'b': facts.n not in facts.table, 'c': 8 in facts.table.keys()}
== none
return {'a': facts.missing is None, 'b': facts.table is not None, 'c': facts.missing}
== and or
return {'a': facts.on and facts.n > 9 or facts.m == 3, 'b': facts.n > 9 and facts.m // 0 == 1}
== not
return {'a': not facts.on, 'b': not facts.n > 9}
== conditional
return {'a': 1 if facts.on else facts.n // 0, 'b': 2 if facts.n > 9 else 3 if facts.n > 6 else 4}
== f-string
k = 'x'
return {f'{k}.{facts.n}': 1, f'': 2, f'{{}}': 3, 'a' 'b': 4}
== tuple
t = (facts.n, [facts.m, 'x'], (True,))
return {'a': t[0], 'b': t[1][1], 'c': t[-1][0], 'd': len(t)}
== dict
d = {1: 'a', 'k': facts.n}
return {'a': d[1], 'b': d['k'], 'c': d.get(2), 'd': d.get(1, 0), 'e': len(d)}
== union
return {'a': 1, 'b': 2} | {'b': 3} | {f'c{k}': k for k in (1, 2)}
== dict methods
t = facts.table
return {'a': max(t.keys()), 'b': sum(r['a'] for r in t.values()), 'c': len(t.items())}
== unpack
a, (b, c), [d] = facts.n, (1, 2), [3]
return {'a': a, 'b': b, 'c': c, 'd': d}
== several targets
a = b = facts.n
a += 1
return {'a': a, 'b': b}
== augmented
a = facts.n
a -= 1
a *= 3
a //= 2
a %= 5
a **= 2
b = a
b /= 2
return {'a': a, 'b': b}
== annotated
a: int = facts.n
return {'a': a}
== pass
'''Doc.'''
pass
return {'a': 1}
== if
a = 1
if facts.on:
    a = 2
    b = 3
else:
    b = 4
return {'a': a, 'b': b}
== elif
if facts.n > 9:
    a = 1
elif facts.n > 6:
    a = 2
else:
    a = 3
return {'a': a}
== if without else
a = 1
if not facts.on:
    a = 2
return {'a': a}
== early return
if facts.n > 9:
    return {'a': 1}
a = 2
if facts.on:
    return {'a': a}
return {'a': 3}
== arms of an early return stay apart
a = 0
if facts.n > 9:
    a = 5
    if facts.on:
        return {'a': 1}
return {'a': a}
== truth of ints
return {'a': 1 if facts.n else 2, 'b': bool(facts.n), 'c': not facts.n}
== lambda
t = facts.table
return {'a': min(t, key=lambda k: abs(k - facts.n)), 'b': sorted((3, 1), key=lambda k: -k)[0]}
== comprehension
xs = [k * j for k in range(4) if k % 2 for j in (1, 2) if j]
return {'a': sum(xs), 'b': len(xs), 'c': xs[1]}
== scope of a comprehension
k = 1
xs = [k for k in (5, 6)]
return {'a': k, 'b': xs[0], 'c': [k for _ in (1,)][0]}
== unpacking comprehension
return {f'{k}.{f}': v for k, row in facts.table.items() for f, v in row.items()}
== reductions
xs = (4, 2)
return {
    'a': min(xs), 'b': max(1, 5, 2), 'c': sum(xs, 1), 'd': any(x > 3 for x in xs),
    'e': all([True, False]), 'f': min((), default=9), 'g': sum(xs, start=2),
}
== next
return {'a': next(c for c in (2, 4, 8) if c >= facts.m), 'b': next((c for c in (2,) if c > 5), -1)}
== collections
return {
    'a': tuple(range(2, 9, 3))[2],
    'b': list(reversed((1, 2)))[0],
    'c': [i * x for i, x in enumerate((5, 6), start=1)][1],
    'd': [a + b for a, b in zip((1, 2), (3, 4))][1],
    'e': sorted((2, 1), reverse=True)[0],
}
== numbers
return {'a': ceil(1.5), 'b': math.floor(-1.5), 'c': int(-1.5), 'd': float(facts.n), 'e': abs(-facts.n)}
== single precision
return {'a': ceil(f32(facts.n) / f32(3) * F32(0.1))}
== knob
return {'a': knob('k', (1, 2), default=2) if facts.n < 0 else 3}
== call
def cdiv(a, b):
    return -(-a // b)
--
return {'a': cdiv(facts.n, 2), 'b': cdiv(b=2, a=facts.m)}
== defaults
LIMIT = 4
def f(a, b=LIMIT * 2, *, c='x'):
    return a * b if c == 'x' else b
--
return {'a': f(2), 'b': f(2, 3), 'c': f(2, c='y'), 'd': f(b=1, a=5)}
== positional only
def f(a, /, b):
    return a - b
--
return {'a': f(5, 3), 'b': f(5, b=2)}
== helper as a value
def far(k):
    return -k
--
return {'a': min((1, 2), key=far)}
== lambda to a helper
def best(xs, key):
    return min(xs, key=key)
--
return {'a': best((1, 2), lambda k: -k)}
== conditions
def check(a):
    require(a > 0, 'positive')
    if a > 100:
        return
    require(a > 1)
--
check(facts.n)
assume(facts.m > 0)
return {'a': 1}
== nested
def f(x):
    return g(x) + 1
def g(x):
    return x * 2
--
return {'a': f(facts.n) + g(1)}
== all paths
def f(a, b):
    if a > 5:
        if b:
            return 1
        c = 2
    elif a > 3:
        return 7
    else:
        c = 3
        if b:
            c = 4
    d = c * 10
    if d > 25:
        return d
    return -d
--
return {f'{a}.{b}': f(a, b) for a in (1, 4, 6) for b in (True, False)}
== constants
A, B = 2, -1.5
T = {1: (A, [True, None]), 'k': 'v'}
N: int = A * 8 ** 2 // 3 % 10
C = A < 3
U = {1: 2} | {3: 4}
--
return {'a': A + N, 'b': B, 'c': T[1][1][1], 'd': T['k'], 'e': C, 'f': U[3]}
== local over global
A = 1
def f(A):
    return A
--
max = 3
return {'a': f(2), 'b': max}
"""

REFUSED_STATEMENTS = r"""
== Assert
«assert facts.on»
== ClassDef
class «Inner»:
    pass
== Delete
a = 1
«del a»
== For
«for k in range(3)»:
    a = k
== FunctionDef
def «inner»(x):
    return x
== Global
«global X»
== Import
«import math»
== ImportFrom
«from math import ceil»
== Match
«match facts.n»:
    case 1:
        pass
== Raise
«raise ValueError('x')»
== Try
«try»:
    a = 1
finally:
    b = 2
== TryStar
«try»:
    a = 1
except* ValueError:
    b = 2
== TypeAlias
«type Alias = int»
== While
«while facts.on and facts.n»:
    a = 1
== With
«with facts.on as x, facts.n»:
    a = 1
== aliasing update
a = {}
«a |= {1: 2}»
== bare annotation
«a: int»
== expression statement
«facts.n»
== attribute target
«facts.n» = 1
== item target
a = (1,)
«a[0]» = 1
== starred target
a, «*b» = (1, 2)
"""

ERRORS = r"""
== unknown name | UnknownName | 'facst' is not defined
return {'x': «facst».n}
== unknown function | UnknownName | 'cdiv' is not defined
return {'x': «cdiv»(1)}
== unknown in a module | UnknownName | module 'math' has no 'ceiling'
return {'x': «math.ceiling»(1)}
== read before assigned | UnknownName | 'a' is read before
a = 1
--
b = «a»
a = 2
return {'x': b}
== own target of a comprehension | UnknownName | 'j' is read before
j = 1
return {'x': [i for i in (1,) for j in «j»][0]}
== module as a value | UnsupportedSyntax | 'math' is a module
return {'x': «math»}
== function as a value | UnsupportedSyntax | 'abs' can only be called
return {'x': min((1,), key=«abs»)}
== class called | UnsupportedSyntax | 'Facts' is a class
return {'x': «Facts»(n=1)}
== built-in of C | UnsupportedSyntax | 'sqrt' is no plain Python function
return {'x': «math.sqrt»(2)}
== constant of a class | UnsupportedSyntax | 'Limits' is a class
class Limits:
    MOST = 3
--
return {'x': «Limits».MOST}
== helper with a default handed on | WrongArguments | 'far' has parameters with defaults
def far(k, scale=2):
    return -k * scale
--
return {'x': min((1, 2), key=«far»)}
== local value called | UnsupportedSyntax | call of a value
f = 1
return {'x': «f»(1)}
== selection called | UnsupportedSyntax | 'other' is a selection
@selection(family='o')
def other(facts: Facts):
    return {'y': 1}
--
return {'x': «other»(facts)}
== language's own helpers | UnsupportedSyntax | 'report' is not for use
from detent.lang import report
--
return {'x': «report»()}
== lambda as helper | UnsupportedSyntax | a helper is a lambda
f = lambda x: x
--
return {'x': «f»(1)}
== closure as helper | CapturedGlobal | variables of an enclosing function: y
def make(y):
    def «f»(x):
        return x + y
    return f
f = make(1)
--
return {'x': f(1)}
== wrapped helper | UnsupportedSyntax | a helper is a decorated function
import functools
def d(g):
    @functools.wraps(g)
    def h(x):
        return g(x)
    return h
@d
def f(x):
    return x
--
return {'x': «f»(1)}
== cached helper | UnsupportedSyntax | 'f' is no plain Python function
import functools
@functools.cache
def f(x):
    return x
--
return {'x': «f»(1)}
== default that is not literal | CapturedGlobal | a default is a literal constant
def f(x, y=«len('ab')»):
    return x
--
return {'x': f(1)}
== helper made by exec | SourceUnavailable | there is no Python text
exec('def f(x):\n    return x')
--
return {'x': «f»(1)}
== too many | WrongArguments | f() takes 1 positional arguments, not 2
def f(x):
    return x
--
return {'x': «f(1, 2)»}
== missing | WrongArguments | f() misses y
def f(x, y):
    return x
--
return {'x': «f(1)»}
== twice | WrongArguments | f() gets 'x' twice
def f(x):
    return x
--
return {'x': f(1, «x=2»)}
== no such keyword | WrongArguments | f() has no parameter 'z'
def f(x):
    return x
--
return {'x': f(1, «z=2»)}
== positional only by name | WrongArguments | f() has no parameter 'x'
def f(x, /):
    return x
--
return {'x': f(«x=2»)}
== keyword only by place | WrongArguments | f() takes 0 positional
def f(*, x):
    return x
--
return {'x': «f(2)»}
== built-in arity | WrongArguments | abs() takes 1 argument, not 2
return {'x': «abs(1, 2)»}
== method arity | WrongArguments | get() takes 1 to 2 arguments, not 0
return {'x': «facts.table.get()»}
== built-in keyword | WrongArguments | sorted() takes no argument 'cmp'
return {'x': «sorted((1,), cmp=1)»}
== default of several | WrongArguments | takes a default only with one collection
return {'x': «min(1, 2, default=3)»}
== knob without default | WrongArguments | knob() misses its default
return {'x': «knob('k', (1, 2))»}
== condition without arguments | WrongArguments | require() takes a condition
«require()»
return {'x': 1}
== condition with a keyword | WrongArguments | takes no argument 'msg'
require(facts.on, «msg='x'»)
return {'x': 1}
== message of a value | UnsupportedSyntax | 'facts' is a value of the selection
require(facts.on, «f'{facts.n}'»)
return {'x': 1}
== message of a number | UnsupportedSyntax | a message is a string
require(facts.on, «3»)
return {'x': 1}
== condition in a lambda | UnsupportedSyntax | assume or require inside
return {'x': min((1,), key=lambda k: «require(k)»)}
== knob in a condition | UnsupportedSyntax | knob cannot be inside a condition
require(«knob('k', (1,), default=1)» > 0)
return {'x': 1}
== knob in a comprehension | UnsupportedSyntax | knob cannot be inside a comprehension
return {'x': [«knob('k', (1,), default=1)» for _ in (1,)][0]}
== helper with conditions in a lambda | UnsupportedSyntax | 'f' contains require, which cannot be inside a lambda
def f(x):
    require(x > 0)
    return x
--
return {'x': min((1,), key=lambda k: «f(k)»)}
== helper of a helper in a condition | UnsupportedSyntax | 'g' contains assume and knob
def f(x):
    assume(x > 0)
    return knob('k', (1,), default=1)
def g(x):
    return f(x)
--
require(«g(facts.n)» > 0)
return {'x': 1}
== helper with conditions handed on | UnsupportedSyntax | a function handed on
def f(x):
    require(x > 0)
    return x
--
return {'x': min((1,), key=«f»)}
== view kept | UnsupportedSyntax | an iterator or view
a = «facts.table.items()»
return {'x': 1}
== length of an iterator | UnsupportedSyntax | an iterator or view
return {'x': len(«zip((1,), (2,))»)}
== iterator to a helper | UnsupportedSyntax | a generator
def f(x):
    return x
--
return {'x': f(«(k for k in (1,))»)}
== value of a set method | UnsupportedSyntax | a method call
return {'x': «'a'.join»(('b',))}
== call that does nothing | UnsupportedSyntax | value is not used
«abs(1)»
return {'x': 1}
== string in the middle | UnsupportedSyntax | value is not used
a = 1
«'text'»
return {'x': a}
== falls off the end | MissingReturn | a path through 'f' reaches its end
def f(x):
    «if x»:
        return 1
--
return {'x': f(1)}
== falls off an else | MissingReturn | a path through 'f' reaches its end
def f(x):
    if x:
        return 1
    else:
        «y = 2»
--
return {'x': f(1)}
== bare return beside a value | MissingReturn | 'f' returns a value elsewhere
def f(x):
    if x:
        «return»
    return 1
--
return {'x': f(1)}
== unreachable | UnreachableCode | never reached
return {'x': 1}
«a = 1»
== unreachable behind a branch | UnreachableCode | never reached
def f(x):
    if x:
        return 1
    else:
        return 2
    «return 3»
--
return {'x': f(1)}
== a loop as last statement | UnsupportedSyntax | a 'for' loop
def f(x):
    «for k in (1,)»:
        return k
--
return {'x': f(1)}
== direct recursion | RecursionRefused | 'f' calls itself: f -> f
def f(x):
    return «f»(x - 1) if x else 0
--
return {'x': f(1)}
== mutual recursion | RecursionRefused | 'f' calls itself: f -> g -> f
def f(x):
    return g(x)
def g(x):
    return «f»(x)
--
return {'x': f(1)}
== recursion through a reduction | RecursionRefused | 'f' calls itself
def f(x):
    return min((x,), key=«f»)
--
return {'x': f(1)}
"""
