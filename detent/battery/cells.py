"""The paper's 26 cells and its 9 strong cells.

Section 8.1: two cells run the same batch again, fourteen change the co-batched requests, four move the request to
another row, six change how much of its prompt hits the prefix cache; nine strong cells place it next to 1 to 32
short, long or mixed requests and move it within the batch. The paper does not print the lengths; these are ours.
"""

from __future__ import annotations

from detent.battery import evidence
from detent.battery.scenario import PAPER, STRONG, Cell, Scenario, fixed
from detent.battery.workload import SHORT, Workload, alone, beside
from detent.engines.interface import Request

COMPANY = (("short", 1, "first"), ("long", 1, "last"), ("short", 3, "first"), ("short", 7, "middle"),
           ("mixed", 15, "last"), ("long", 7, "last"))
"""Co-batched requests of the paper's cells: what they are like, how many, and where the compared request stands."""
MOVES = (("short", 3, "last"), ("mixed", 7, "middle"), ("mixed", 7, "last"), ("short", 15, "last"))
"""Batches in which the compared request moves away from the first row."""
STRONGER = (("short", 1, "last"), ("short", 8, "middle"), ("short", 32, "first"),
            ("long", 1, "last"), ("long", 8, "middle"), ("long", 32, "last"),
            ("mixed", 1, "last"), ("mixed", 8, "first"), ("mixed", 32, "last"))
JOINED = 4
"""Output tokens that the compared request has when others join it."""


def paper(work: Workload) -> list[Cell]:
    """The 26 cells: ``rerun``, ``co-batch``, ``row`` and ``prefix``."""
    return [*_reruns(work), *_company(work), *_rows(work), *_prefixes(work)]


def too_many(work: Workload, requests: int) -> str:
    """Why a batch of this many requests cannot be; empty where it can."""
    most = work.traits.max_seqs
    return "" if most is None or requests <= most else f"the target serves at most {most} requests together"


def _reruns(work: Workload) -> list[Cell]:
    def cell(name: str, what: str, scenario: Scenario) -> Cell:
        return Cell(name, PAPER, "rerun", what, fixed(scenario, scenario), evidence.repeated(),
                    unfit=too_many(work, len(scenario.batch)))

    single, crowd = "rerun-alone", "rerun-batch"
    return [cell(single, "the request alone, again", alone(work.subject(work.sizes.subject, cell=single))),
            cell(crowd, "the same batch of 8, again",
                 beside(work.subject(work.sizes.subject, cell=crowd),
                        work.neighbours(work.lengths("mixed", 7), cell=crowd), "middle"))]


def _company(work: Workload) -> list[Cell]:
    cells = []
    for length, size in ((SHORT, "short"), (work.sizes.subject, "long")):
        for kind, count, place in COMPANY:
            name = f"{size}-beside-{count}-{kind}"
            cells.append(company(work, name, PAPER, length, kind, count, place))
        name = f"{size}-joined-by-3"
        subject = work.subject(length, cell=name)
        others = work.neighbours(work.lengths("mixed", 3), cell=name, start=JOINED)
        cells.append(Cell(name, PAPER, "co-batch", f"3 requests join after {JOINED} output tokens",
                          fixed(alone(subject), beside(subject, others)), evidence.batch(4),
                          unfit=too_many(work, 4)))
    return cells


def company(work: Workload, name: str, group: str, length: int, kind: str, count: int, place: str) -> Cell:
    """The request alone against the same request beside others."""
    subject = work.subject(length, cell=name)
    others = work.neighbours(work.lengths(kind, count), cell=name)
    what = f"alone, then {place} beside {count} {kind} request{'s' * (count > 1)}"
    return Cell(name, group, "co-batch", what, fixed(alone(subject), beside(subject, others, place)),
                evidence.batch(count + 1), unfit=too_many(work, count + 1))


def _rows(work: Workload) -> list[Cell]:
    cells = []
    for i, (kind, count, place) in enumerate(MOVES):
        name = f"row-{place}-of-{count + 1}-{kind}"
        subject = work.subject(SHORT if i % 2 == 0 else work.sizes.subject, cell=name)
        others = work.neighbours(work.lengths(kind, count), cell=name)
        cells.append(Cell(name, PAPER, "row", f"first, then {place} in the same batch of {count + 1}",
                          fixed(beside(subject, others), beside(subject, others, place)), evidence.moved,
                          unfit=too_many(work, count + 1)))
    return cells


def _prefixes(work: Workload) -> list[Cell]:
    page, length = work.sizes.page, work.sizes.subject
    half = max(page, length // 2 // page * page)
    hits = [("short-prefix-half", SHORT, SHORT // 2), ("short-prefix-whole", SHORT, SHORT),
            ("prefix-page", length, page), ("prefix-half", length, half),
            ("prefix-all-but-page", length, (length - 1) // page * page - page), ("prefix-whole", length, length)]
    return [prefix(work, name, PAPER, total, hit) for name, total, hit in hits]


def prefix(work: Workload, name: str, group: str, length: int, hit: int) -> Cell:
    """A request with an empty cache against one that finds its first ``hit`` prompt tokens there."""
    subject = work.subject(length, cell=name)
    first = Request(subject.prompt[:hit], 1, name=f"prefix of {hit}")
    return Cell(name, group, "prefix", f"{hit} of {length} prompt tokens cached",
                fixed(alone(subject), alone(subject, before=(first,))), evidence.cached(hit, work.traits.page))


def strong(work: Workload) -> list[Cell]:
    """The 9 strong cells."""
    return [company(work, f"strong-{count}-{kind}-{place}", STRONG, work.sizes.subject, kind, count, place)
            for kind, count, place in STRONGER]
