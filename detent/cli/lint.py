"""``detent lint``."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import deployment_option, json_option, program_argument
from detent.cli.output import show, show_json
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.solver.lint import Finding
    from detent.solver.views.sections import Section


@click.command("lint", epilog="""\b
Rules:
  unread-table    a table of facts that no path of the selection reads
  unreached-row   rows of a table that no input selects
  untuned-row     a row that serves inputs outside of the tuned range, or only such
  tie             inputs whose row the order of keys in the table's file decides
  dead-knob       a knob on which no point and no condition hangs
  pinned-count    a pinned number of parts while the batch decides how large they are:
                  the pin replaces an int that derives from a maximum over the batch,
                  an input called max_... or listed in the program's MAXIMA
  constant-point  points that facts alone decide
  settled-point   a point with one value under every legal assignment
  identical       legal assignments that behave alike: equal points, or equal keys of
                  the program's function behaviour(points, facts)
\b
Examples:
  detent lint moe -d qwen3-30b-a3b-tp4-h100
  detent lint norm.py:rms_norm -d my.toml --strict""")
@program_argument
@deployment_option
@click.option("--strict", is_flag=True, help="Exit code 1 if there is a warning; notes do not count.")
@json_option
def lint_command(program: str, deployment: str, strict: bool, as_json: bool) -> int:
    """Say what is suspicious about a program on a deployment, though it is solved and sound.

    A warning is about something without effect, or with one its author hardly wants; a note says what is easily
    missed. Exit code 0, whatever is found, unless --strict.
    """
    from detent.solver.lint import WARNING, lint

    # The program's function behaviour(points, facts) may print.
    with Steps(f"{program} for {deployment}") as step, redirect_stdout(sys.stderr):
        findings = lint(program, deployment, progress=step)
    warnings = sum(finding.severity == WARNING for finding in findings)
    if as_json:
        show_json({"program": program, "deployment": deployment, "warnings": warnings,
                   "notes": len(findings) - warnings, "findings": [_json(finding) for finding in findings]})
    else:
        show(_sections(program, deployment, findings, warnings))
    return 1 if strict and warnings else 0


def _json(finding: Finding) -> dict[str, Any]:
    return {"rule": finding.rule, "severity": finding.severity, "subject": finding.subject,
            "place": finding.place or None, "explanation": finding.explanation, "details": finding.details}


def _sections(program: str, deployment: str, findings: list[Finding], warnings: int) -> list[Section]:
    from detent.solver.views.sections import Paragraph, Table
    from detent.solver.views.wording import count

    head = f"{program} for {deployment}: {count(warnings, 'warning')}, {count(len(findings) - warnings, 'note')}"
    sections: list[Section] = [Paragraph((head,))]
    if findings:
        rows = tuple((f"{finding.severity}\n{finding.rule}", f"{finding.subject}: {finding.explanation}",
                      finding.place) for finding in findings)
        sections.append(Table("Findings", ("rule", "finding", "place"), rows, whole=("rule", "place")))
    return sections
