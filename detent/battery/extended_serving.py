"""Extended cells about what an engine does besides computing a batch: sampling, stop strings, pre-emption, restarts
and long outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from detent.battery import evidence
from detent.battery.cells import too_many
from detent.battery.sampling import perturbed_sampled
from detent.battery.scenario import EXTENDED, Cell, Lab, Scenario, fixed
from detent.battery.workload import COMPARED, GREEDY, SHORT, Workload, alone, beside
from detent.engines.interface import Request, Sampling, Submission

SEEDED = Sampling(temperature=1.0, seed=7)
TOP_P, TOP_K = Sampling(temperature=1.0, top_p=0.5, seed=11), Sampling(temperature=1.0, top_k=20, seed=11)
UNSEEDED = Sampling(temperature=1.0)
LONG_OUTPUTS = (128, 1024)
PREEMPTED = 4
"""Output tokens that a request has when it is pre-empted."""
PRINTABLE = re.compile(r"[!-~]([ -~]{0,6}[!-~])?")
"""Text that a stop string can be, whatever the tokenizer makes of the rest."""


def serving(work: Workload) -> list[Cell]:
    """These cells, the slow ones last."""
    return [*_sampling(work), *_stops(work), *_preemption(work), *_restarts(work), *_long_outputs(work)]


def _sampling(work: Workload) -> list[Cell]:
    cells = []
    kinds = (("greedy", GREEDY), ("seeded", SEEDED), ("top-p", TOP_P), ("unseeded", UNSEEDED))
    for size, own, others in (("greedy", GREEDY, kinds[1:]), ("seeded", SEEDED, kinds)):
        for kind, sampling in others:
            name = f"{size}-beside-{kind}"
            subject = work.subject(work.sizes.subject, cell=name, sampling=own)
            if sampling == own:  # the same noise for both would hide that it is keyed by the seed alone
                sampling = replace(sampling, seed=13)
            neighbours = work.neighbours(work.lengths("short", 3), cell=name, sampling=sampling)
            cells.append(_beside(work, name, f"a {size} request beside 3 {kind} ones", subject, neighbours))
    for size, own in (("top-p", TOP_P), ("top-k", TOP_K)):
        name = f"{size}-beside-mixed"
        subject = work.subject(work.sizes.subject, cell=name, sampling=own)
        mixed = tuple(replace(each, request=replace(each.request, sampling=sampling)) for each, sampling in
                      zip(work.neighbours(work.lengths("short", 3), cell=name),
                          (GREEDY, replace(SEEDED, seed=13), UNSEEDED), strict=True))
        cells.append(_beside(work, name, f"a {size} request beside a greedy, a seeded and an unseeded one", subject,
                             mixed))
    return cells


def _beside(work: Workload, name: str, what: str, subject: Request, neighbours: Sequence[Submission]) -> Cell:
    return Cell(name, EXTENDED, "sampling", what, fixed(alone(subject), beside(subject, neighbours, "middle")),
                evidence.batch(4), unfit=too_many(work, 4), control=perturbed_sampled)


def _stops(work: Workload) -> list[Cell]:
    """A neighbour ends at a stop string instead of its length; the string is cut from what it says without."""
    cells = []
    for name, what in (("stop-string-beside", "a neighbour ends at a stop string"),
                       ("stop-string-before", "after a batch that ended at a stop string")):
        apart = name == "stop-string-before"
        subject = work.subject(work.sizes.subject, cell=name)
        (talker,) = work.neighbours((SHORT,), cell=name, tokens=COMPARED)

        def plan(lab: Lab, subject: Request = subject, talker: Submission = talker,
                 apart: bool = apart) -> tuple[Scenario, Scenario]:
            def scenario(other: Submission) -> Scenario:
                return Scenario((Submission(subject),), before=((other,),)) if apart else beside(subject, (other,))

            served = lab.serve(scenario(talker))
            said = served.before[0][0] if apart else served.outputs[1]
            stop = _stop_string(lab.decode(said.tokens) if said.text is None else said.text)
            stopping = replace(talker, request=replace(talker.request, stop=(stop,) if stop else ()))
            return scenario(talker), scenario(stopping)

        judge = evidence.stopped("before") if apart else evidence.all_of(evidence.batch(2, changed=False),
                                                                         evidence.stopped())
        cells.append(Cell(name, EXTENDED, "stop string", what, plan, judge, unfit="" if apart else too_many(work, 2)))
    return cells


def _stop_string(text: str) -> str:
    """A printable part of a text, from its middle on if there is one; empty where nothing is printable."""
    found = PRINTABLE.search(text, len(text) // 3) or PRINTABLE.search(text)
    return found[0] if found else ""


def _preemption(work: Workload) -> list[Cell]:
    unfit = "" if work.traits.can_preempt else "the target cannot be asked to pre-empt"
    cells = []
    for name, what in (("preempted", f"pre-empted after {PREEMPTED} output tokens"),
                       ("preempted-seeded", f"seeded, and pre-empted after {PREEMPTED} output tokens"),
                       ("preempted-neighbour", f"beside one that is pre-empted after {PREEMPTED} output tokens"),
                       ("preempted-before", "after a batch with a pre-emption")):
        seeded = name == "preempted-seeded"
        subject = work.subject(work.sizes.subject, cell=name, sampling=SEEDED if seeded else GREEDY)
        others = work.neighbours(work.lengths("short", 3), cell=name)
        put_off = (replace(others[0], preempt=PREEMPTED), *others[1:])
        crowd = beside(subject, others)
        judge = evidence.preempted()
        if seeded or name == "preempted":
            reference = crowd
            perturbed = replace(crowd, batch=(Submission(subject, preempt=PREEMPTED), *others))
        elif name == "preempted-neighbour":
            reference, perturbed = crowd, beside(subject, put_off)
            judge = evidence.all_of(evidence.batch(4, changed=False), evidence.preempted("a neighbour"))
        else:
            reference, perturbed = (replace(alone(subject), before=(batch,)) for batch in (others, put_off))
            judge = evidence.preempted("before")
        cells.append(Cell(name, EXTENDED, "pre-emption", what, fixed(reference, perturbed), judge,
                          unfit=unfit or too_many(work, 4), control=perturbed_sampled if seeded else None))
    return cells


def _restarts(work: Workload) -> list[Cell]:
    single, crowd = "restart-alone", "restart-batch"
    subject = work.subject(work.sizes.subject, cell=single)
    batch = beside(work.subject(SHORT, cell=crowd), work.neighbours(work.lengths("mixed", 7), cell=crowd), "middle")
    return [Cell(name, EXTENDED, "restart", f"{what} in a new process with cold compile caches",
                 fixed(scenario, replace(scenario, fresh=True)), evidence.repeated("served by a new process"),
                 unfit=too_many(work, len(scenario.batch)))
            for name, what, scenario in ((single, "the request alone", alone(subject)),
                                         (crowd, "the same batch of 8", batch))]


def _long_outputs(work: Workload) -> list[Cell]:
    """Neighbours come and go while the request decodes for long."""
    cells = []
    for tokens in LONG_OUTPUTS:
        name = f"output-{tokens}"
        subject = work.subject(SHORT, cell=name, tokens=tokens)
        starts = range(1, tokens, max(24, tokens // 16))
        unfit = too_many(work, 2)
        if subject.max_tokens < tokens:
            unfit = f"{SHORT} + {tokens} tokens are longer than a context of {work.sizes.context}"
        cells.append(Cell(name, EXTENDED, "long output", f"{tokens} output tokens while others come and go",
                          fixed(alone(subject), beside(subject, _visitors(work, name, starts))), evidence.batch(2),
                          unfit=unfit))
    return cells


def _visitors(work: Workload, cell: str, starts: Sequence[int]) -> tuple[Submission, ...]:
    prompts = work.lengths("mixed", len(starts))
    return tuple(replace(each, start=start)
                 for each, start in zip(work.neighbours(prompts, cell=cell, tokens=20), starts, strict=True))
