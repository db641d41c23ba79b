"""The views of a solved selection, on one small graph whose pins, legal values and paths are known by hand."""

from __future__ import annotations

import ast
import copy
import itertools
import json
import math
import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.passes.graph import Condition, Graph, Input, Knob, Location
from detent.solver import views
from detent.solver.graph_json import graph_document, graph_from_document
from detent.solver.views import wording
from detent.solver.views.cut_view import cut_view
from detent.solver.views.dot import dot
from detent.solver.views.layout import layout, separate
from detent.solver.views.legal import legal_values, outcomes
from detent.solver.views.mermaid import mermaid
from detent.solver.views.one import pin_table, point_table
from detent.solver.views.page import origins, page, payload
from detent.solver.views.sections import Section, Table, render
from detent.solver.views.select_table import select_table
from detent.solver.views.table import cut_table
from detent.solver.views.why import why, why_sections

FILE = "programs/attention.py"
NASTY = 'x["</script><!--"] & <b>"q"</b> #5; `c` \\ [bold]not markup[/bold] {y}'
STRIDES = (64, 128, 256)


def at(line: int, text: str = "") -> Location:
    return Location(FILE, line, 4, text)


def selection() -> tuple[Graph, dict[str, int]]:
    """Points behind one pin, a knob and a request input; a condition reads the pin, the knob and an input."""
    g = Graph("attention", "attention")
    n: dict[str, int] = {}
    n["b"] = g.add("input", data=Input("b", "unpinnable"), name="b", location=at(10, "b: Unpinnable[int]"))
    n["k"] = g.add("input", data=Input("k", "runtime"), name="k", location=at(11, "k: Runtime[int]"))
    n["own"] = g.add("input", data=Input("own", "request"), name="own", location=at(12, "own: Request[int]"))
    n["spare"] = g.add("input", data=Input("spare", "runtime"), name="spare", location=at(13, "spare: Runtime[int]"))
    n["stride"] = g.add("knob", data=Knob("stride", STRIDES, 64), name="stride", location=at(20, 'knob("stride")'))
    one, eight, block, limit = (g.add("constant", data=v) for v in (1, 8, 128, 992))
    n["blocks"] = g.add("floordiv", (n["k"], block), name="blocks", location=at(30, "k // 128"))
    n["wide"] = g.add("gt", (n["b"], limit), type="bool", name="wide", location=at(31, "b > 992"))
    n["some"] = g.add("min", (n["blocks"], eight), location=at(32, "min(blocks, 8) if b <= 992 else 1"))
    n["splits"] = g.add("select", (n["wide"], one, n["some"]), name="splits",
                        location=at(32, "min(blocks, 8) if b <= 992 else 1"))
    n["pin"] = g.add("pin", (n["splits"],), data="splits", name="splits", location=at(32, NASTY))
    n["split"] = g.add("gt", (n["pin"], one), type="bool", name="split", location=at(33, "splits > 1"))
    n["span"] = g.add("mul", (n["pin"], n["stride"]), name="span", location=at(34, "splits * stride"))
    n["mine"] = g.add("min", (n["own"], n["pin"]), name="mine", location=at(35, "min(own, splits)"))
    n["element"] = g.add("constant", data="bf16", type="str")
    g.points = [("splits", n["pin"]), ("split", n["split"]), ("span", n["span"]), ("mine", n["mine"]),
                ("stride", n["stride"]), ("element", n["element"])]
    top = g.add("constant", data=1024, scope=1)
    bound = g.add("le", (n["b"], top), type="bool", scope=1, location=at(40, "b <= 1024"))
    alone = g.add("eq", (n["pin"], one), type="bool", scope=2)
    cover = g.add("mul", (n["pin"], n["stride"]), scope=2)
    context = g.add("constant", data=512, scope=2)
    enough = g.add("ge", (cover, context), type="bool", scope=2)
    covers = g.add("or", (alone, enough), type="bool", scope=2)
    fits = g.add("le", (n["pin"], n["spare"]), type="bool", scope=3)
    g.conditions = [Condition("assume", "", bound, at(40, "b <= 1024")),
                    Condition("require", "the splits cover the context", covers, at(41, NASTY)),
                    Condition("require", "", fits, at(42, "splits <= spare"))]
    return g, n


def holds(splits: int, stride: int) -> bool:
    return (splits == 1 or splits * stride >= 512) and splits <= 6


def solution() -> dict[str, Any]:
    """The document a solve of :func:`selection` would write."""
    g, _ = selection()

    def loc(location: Location) -> dict[str, Any]:
        return location._asdict()

    candidates = list(range(1, 9))
    combos = [[s, t] for s in candidates for t in STRIDES]
    uncovered = [[c, 0] for c in combos if c[0] != 1 and c[0] * c[1] < 512]
    domains = {"b": [1, 1024, 1], "k": [1, 4096, 1], "own": [1, 4096, 1], "spare": [6, 12, 2]}
    point = {"type": "int", "constant": None, "is_constant": False, "knobs": [], "requests": [], "source": loc(at(33))}
    return {
        "format": 1, "detent": "0.1.0", "program": "attention", "family": "attention", "deployment": "small-h100",
        "values": len(g),
        "inputs": [{"name": name, "kind": g.data[i].source, "type": "int", "domain": {"range": domains[name]},
                    "source": loc(at(10 + i))} for i, name in enumerate(domains)],
        "points": [
            point | {"name": "splits", "batch_dependent": True, "pins": ["splits"]},
            point | {"name": "split", "batch_dependent": True, "pins": ["splits"], "type": "bool"},
            point | {"name": "span", "batch_dependent": True, "pins": ["splits"], "knobs": ["stride"]},
            point | {"name": "mine", "batch_dependent": True, "pins": ["splits"], "requests": ["own"]},
            point | {"name": "stride", "batch_dependent": False, "pins": [], "knobs": ["stride"]},
            point | {"name": "element", "batch_dependent": False, "pins": [], "type": "str", "is_constant": True,
                     "constant": "bf16"},
        ],
        "pins": [{"name": "splits", "type": "int", "candidates": candidates, "exact": True, "replaces": NASTY,
                  "source": loc(at(32, NASTY))}],
        "knobs": [{"name": "stride", "type": "int", "values": list(STRIDES), "default": 64, "source": loc(at(20))}],
        "conditions": [
            {"kind": "assume", "message": "", "text": "b <= 1024", "source": loc(at(40)), "pins": [], "knobs": [],
             "inputs": ["b"], "verdict": "domain", "fails": 0},
            {"kind": "require", "message": "the splits cover the context", "text": NASTY, "source": loc(at(41)),
             "pins": ["splits"], "knobs": ["stride"], "inputs": [], "verdict": "exhaustive", "fails": len(uncovered)},
            {"kind": "require", "message": "", "text": "splits <= spare", "source": loc(at(42)), "pins": ["splits"],
             "knobs": [], "inputs": ["spare"], "verdict": "interval", "fails": 2},
        ],
        "candidates": 24, "legal": sum(holds(*c) for c in combos), "legality": {"proved": 24, "sampled": 0},
        "components": [{"names": ["splits", "stride"], "legal": [c for c in combos if holds(*c)]}],
        "refutations": [{"condition": 1, "names": ["splits", "stride"], "cases": uncovered},
                        {"condition": 2, "names": ["splits"], "cases": [[[7], 1], [[8], 1]]}],
        "witnesses": [{"b": 1, "k": 1, "own": 1, "spare": 12}, {"b": 17, "k": 2, "own": 3, "spare": 6}],
        "default": {"splits": 1, "stride": 64}, "template": "", "key": "00", "seconds": 0.1,
    }


def text_of(sections: list[Section], width: int = 100) -> str:
    text = render(sections, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    return text


def folded(text: str) -> str:
    """Without the folding that a table's columns cause."""
    return re.sub(r"\s+", " ", text)


def table(sections: list[Section], title: str) -> Table:
    return next(s for s in sections if isinstance(s, Table) and s.title == title)


# ---- wording ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "expected"), [
    ([], "none"),
    ([7], "7"),
    ([1, 2], "1, 2"),
    ([1, 2, 3, 4, 8, *range(16, 257)], "1-4, 8, 16-256"),
    ([64, 128, 192, 256], "64, 128, 192, 256"),
    (range(64, 513, 64), "64-512 step 64"),
    ([-3, -2, -1, 0], "-3 to 0"),
    ([False, True], "False, True"),
    (["full", None], "'full', None"),
    ([1.0, 2.0, 3.0], "1.0, 2.0, 3.0"),
    ([2**i for i in range(13)], "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096"),
    ([*(2**i for i in range(12)), *range(5000, 5010), 9000],
     "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, … 11 more"),
])
def test_compress(values: list[Any], expected: str) -> None:
    assert wording.compress(values) == expected


@given(st.sets(st.integers(-40, 400), max_size=60))
def test_compress_loses_nothing(values: set[int]) -> None:
    read: list[int] = []
    for piece in wording.compress(sorted(values), limit=100).split(", "):
        run = re.fullmatch(r"(-?\d+)(?:(?:-| to )(-?\d+)(?: step (\d+))?)?", piece)
        if run is not None:
            low, high, step = run.groups()
            read += range(int(low), int(high or low) + 1, int(step or 1))
    assert read == sorted(values)


def test_unknown_name_proposes_the_nearest() -> None:
    message = str(wording.unknown("pin", "num_split", ["one_wg", "num_splits"]))
    assert message == "no pin 'num_split': did you mean 'num_splits'? known: one_wg, num_splits"


# ---- the cut view ----------------------------------------------------------------------------------------------


def test_cut_view_collapses_everything_between_inputs_pins_and_points() -> None:
    view = cut_view(solution(), selection()[0])
    titles = [(box.kind, box.title) for box in view.boxes]
    assert titles == [("unpinnable", "b"), ("runtime", "k"), ("request", "own"), ("knob", "stride"), ("pin", "splits"),
                      ("points", "1 point"), ("points", "1 point"), ("points", "1 point"),
                      ("points", "2 points"), ("constant", "1 constant point")]
    named = {(view.boxes[a].title, ", ".join(view.boxes[b].lines) if b > 4 else "pin") for a, b in view.edges}
    assert named == {("b", "pin"), ("k", "pin"), ("own", "mine"), ("splits", "mine"), ("stride", "span"),
                     ("splits", "span"), ("stride", "stride"), ("splits", "splits, split")}
    pin = next(box for box in view.boxes if box.kind == "pin")
    assert pin.lines == (f"{FILE}:32", "8 candidates", "legal: 1-6")


def test_cut_view_of_an_uncut_graph_shows_what_moves() -> None:
    g = Graph("small", "small")
    x = g.add("input", data=Input("x", "runtime"), name="x")
    g.points = [("twice", g.add("add", (x, x)))]
    view = cut_view(None, g)
    assert [box.kind for box in view.boxes] == ["runtime", "moving"]
    assert view.edges == [(0, 1)]
    assert "n0 -> n1" in dot(None, g)
    assert "n0 --> n1" in mermaid(None, g)


def without_strings(text: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)


def test_dot_is_well_formed() -> None:
    text = dot(solution(), selection()[0])
    bare = without_strings(text)
    assert '"' not in bare.replace('""', "")
    for left, right in ("{}", "[]"):
        assert bare.count(left) == bare.count(right)
    defined = set(re.findall(r"^  (n\d+) \[", bare, re.M))
    assert len(defined) == 10
    assert {i for edge in re.findall(r"(n\d+) -> (n\d+)", bare) for i in edge} <= defined
    assert set(re.findall(r"n\d+(?=;)", bare)) <= defined
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tplain"], input=text, text=True, check=True, capture_output=True)


def nasty_names() -> Graph:
    g = Graph('quo"te\\', "f")
    x = g.add("input", data=Input(NASTY, "request"), name=NASTY)
    g.points = [(NASTY, x)]
    return g


def test_dot_quotes() -> None:
    bare = without_strings(dot(None, nasty_names()))
    assert "script" not in bare
    assert bare.startswith('digraph "" {')


def test_mermaid_is_well_formed() -> None:
    for text in (mermaid(solution(), selection()[0]), mermaid(None, nasty_names())):
        head, title, foot, chart, *lines = text.splitlines()
        assert (head, foot, chart) == ("---", "---", "flowchart LR")
        assert title.startswith('title: "') and title.endswith('"')
        defined, used, classes, styled = set(), set(), set(), set()
        for line in lines:
            node = re.fullmatch(r'  (n\d+)(?:\(\["(.*)"\]\)|\["(.*)"\]):::(\w+)', line)
            edge = re.fullmatch(r"  (n\d+) (?:-->|~~~) (n\d+)", line)
            style = re.fullmatch(r"  classDef (\w+) fill:#\w{6},stroke:#\w{6},color:#000(?:,stroke-width:3px)?", line)
            if node is not None:
                defined.add(node[1])
                classes.add(node[4])
                label = (node[2] or node[3]).replace("<br/>", "")
                assert re.fullmatch(r'(?:[^"#&<>`]|#\d+;)*', label)
            elif edge is not None:
                used |= {edge[1], edge[2]}
            else:
                assert style is not None, line
                styled.add(style[1])
        assert used <= defined
        assert classes == styled


# ---- text ------------------------------------------------------------------------------------------------------


def test_cut_table_reads_at_100_columns() -> None:
    sections = cut_table(solution(), selection()[0])
    text = folded(text_of(sections))
    assert "attention for small-h100: 26 values, 4 inputs, 6 points, 1 pin" in text
    assert "24 candidate assignments, 11 legal; 24 judged by proof, 0 by sample" in text
    assert "4 of 6 points would follow the batch without the pins" in text
    assert table(sections, "Inputs").rows[3] == (
        "spare", "runtime", "int", "6-12 step 2", f"{FILE}:13", "conditions only")
    assert table(sections, "Pins").rows == (("splits", f"{FILE}:32", "8 (exact)", "1-6", "1", "b, k"),)
    assert table(sections, "Decided together").rows == (("splits × stride", "24", "11"),)
    assert [row[2] for row in table(sections, "Required (require)").rows] == [
        "proved, exhaustive: rules out 8 of 24 splits × stride", "proved, intervals: rules out 2 of 8 splits"]
    assert "Constant points (1) element = 'bf16'" in text
    assert "[bold]not" in text  # source text is no markup


def test_narrow_text_keeps_its_width_and_colour_is_a_choice() -> None:
    sections = cut_table(solution(), selection()[0])
    text_of(sections, 60)
    assert "\x1b[" in render(sections, color=True)


def test_pin_table_says_what_rules_out_what() -> None:
    sections = pin_table(solution(), selection()[0], "splits")
    text = folded(text_of(sections))
    assert "candidates: 1-8 (8; exactly the values that can flow here)" in text
    assert "legal: 1-6 (6)" in text
    assert "cuts b, k (9 values before it) from splits, split, span, mine" in text
    assert table(sections, "Legal together").rows == (
        ("1", "stride 64, 128, 256", "3"), ("2, 3", "stride 256", "2"), ("4-6", "stride 128, 256", "6"))
    assert table(sections, "Ruled out").rows == (
        ("1", "2, 3", "stride 64, 128", "everywhere"), ("1", "4-7", "stride 64", "everywhere"),
        ("2", "7, 8", "anything", "w1: spare=6"))
    assert "w1: b=17, k=2, own=3, spare=6" in text
    assert "w0" not in text
    assert "Why splits follows the batch" in text
    with pytest.raises(LookupError, match="no pin 'split': did you mean 'splits'"):
        pin_table(solution(), selection()[0], "split")


def test_point_tables() -> None:
    g, _ = selection()
    split = point_table(solution(), g, "split")
    assert table(split, "Values under legal assignments").rows == (
        ("False", "splits 1", "1"), ("True", "splits 2-6", "5"))
    assert "follows the batch unless pinned" in text_of(split)
    span = table(point_table(solution(), g, "span"), "Values under legal assignments").rows
    assert [row[0] for row in span] == ["64", "128", "256", "512", "640", "768", "1024", "1280", "1536"]
    assert span[3] == ("512", "splits 2, 4; stride 128, 256 (2 of 4 combinations)", "2")
    mine = point_table(solution(), g, "mine")
    assert "may differ by request: own" in text_of(mine)
    assert not [s for s in mine if s.title.startswith("Values")]
    assert "1-6" in text_of(point_table(solution(), g, "splits"))
    assert "always 'bf16'" in text_of(point_table(solution(), g, "element"))
    assert "does not depend on the batch" in text_of(point_table(solution(), g, "stride"))
    with pytest.raises(LookupError, match="no point 'spam': did you mean 'span'"):
        point_table(solution(), g, "spam")


def test_outcomes_are_the_values_over_legal_assignments() -> None:
    g, n = selection()
    legal = [(s, t) for s, t in itertools.product(range(1, 9), STRIDES) if holds(s, t)]
    found = outcomes(solution(), g, n["span"])
    assert found is not None
    assert {value for value, _ in found} == {s * t for s, t in legal}
    assert sum(len(cases) for _, cases in found) == len(legal)
    assert outcomes(solution(), g, n["mine"]) is None


def test_a_pin_without_conditions_keeps_its_candidates() -> None:
    document = solution() | {"components": []}
    assert legal_values(document, "splits") == list(range(1, 9))
    assert legal_values(document, "stride") == list(STRIDES)


def test_no_legal_assignment_is_shown() -> None:
    document = solution() | {"components": [{"names": ["splits", "stride"], "legal": []}], "legal": 0, "default": None}
    sections = pin_table(document, selection()[0], "splits")
    assert "legal: none (0)" in folded(text_of(sections))


def test_select_table() -> None:
    document = solution()
    points = {"splits": 4, "split": True, "span": 256, "mine": 1, "stride": 64, "element": "bf16"}
    free = select_table(document, {"b": 8}, points, failed=[1])
    assert table(free, "Selection points").rows[0] == ("splits", "4", "int", "the batch")
    assert "Does not hold: require #1" in text_of(free)
    pinned = select_table(document, {"b": 8}, points, assignment={"splits": 4, "stride": 64})
    assert "pinned: splits=4, stride=64" in text_of(pinned)
    assert [row[3] for row in table(pinned, "Selection points").rows] == [
        "pin splits", "pin splits", "pin splits, knob stride", "pin splits, input own", "knob stride",
        "deployment facts"]


# ---- why -------------------------------------------------------------------------------------------------------


def test_why_is_the_shortest_path_through_the_pin() -> None:
    g, n = selection()
    steps = why(g, "span")
    assert [step.node for step in steps] == [n["b"], n["wide"], n["splits"], n["pin"], n["span"]]
    assert [step.role for step in steps] == ["input", "operand", "decides", "pinned", "operand"]
    assert (steps[1].place, steps[1].expression, steps[1].name) == (f"{FILE}:31", "b > 992", "wide")
    assert why(g, n["some"])[0].node == n["k"]
    assert [step.node for step in why(g, "splits")] == [n["b"], n["wide"], n["splits"], n["pin"]]


def test_why_as_source_lines() -> None:
    g, n = selection()
    g.locations[n["pin"]] = g.locations[n["splits"]]
    rows = table(why_sections(g, "split"), "Why split follows the batch (shortest of the paths, 4 steps)").rows
    assert rows == (
        (f"{FILE}:10", "b: Unpinnable[int]", "unpinnable input b"), (f"{FILE}:31", "b > 992", "wide (bool)"),
        (f"{FILE}:32", "min(blocks, 8) if b <= 992 else 1", "decides splits (int); cut here: pin splits"),
        (f"{FILE}:33", "splits > 1", "split (bool)"))


def test_why_of_what_does_not_move() -> None:
    g, _ = selection()
    assert why(g, "stride") == [] == why(g, "element")
    with pytest.raises(LookupError, match="no point or pin 'splat': did you mean 'split'"):
        why(g, "splat")


# ---- the page --------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects scripts and everything that would make a browser fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.ids: set[str] = set()
        self.fetches: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids |= {named["id"] or ""} if "id" in named else set()
        self.fetches += [f"{tag} {key}" for key in ("src", "href", "data", "action") if key in named]
        self.fetches += [tag] if tag in ("link", "iframe", "object", "img") else []
        if tag == "script":
            self.inside = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def test_page_is_self_contained_and_holds_the_graph() -> None:
    g, n = selection()
    text = page(solution(), g)
    reader = read(text)
    assert reader.fetches == []
    assert not re.search(r"https?://|@import|url\(", text)
    data, code = reader.scripts
    assert "<" not in data
    assert json.loads(data) == json.loads(json.dumps(payload(solution(), g)))
    assert NASTY in json.loads(data)["strings"]
    assert set(re.findall(r'getElementById\("(\w+)"\)', code)) <= reader.ids
    assert "not markup" not in code


def test_page_escapes_names() -> None:
    g = nasty_names()
    g.name = NASTY
    reader = read(page(None, g))
    assert len(reader.scripts) == 2
    assert "b" not in reader.ids and reader.fetches == []
    assert NASTY in json.loads(reader.scripts[0])["strings"]


def test_payload_columns_agree() -> None:
    g, n = selection()
    data = payload(solution(), g)
    total = len(g) + len(g.points) + len(g.conditions)
    for column in ("kind", "args", "type", "name", "note", "text", "file", "line", "scope", "set", "x", "y"):
        assert len(data[column]) == total, column
    strings = data["strings"]
    for column in ("kind", "type", "name", "note", "text", "file"):
        assert all(0 <= i < len(strings) for i in data[column])
    assert [strings[i] for i in data["name"][len(g):]] == [
        *(name for name, _ in g.points), "assume", "require", "require"]
    assert [list(a) for a in data["args"][len(g):]] == [[i] for _, i in g.points] + [[c.root] for c in g.conditions]
    assert strings[data["note"][n["pin"]]] == "8 candidates; legal: 1-6"
    assert (strings[data["file"][n["split"]]], data["line"][n["split"]]) == (FILE, 33)
    assert {strings[k] for k in data["kind"]} >= {"pin", "unpinnable", "runtime", "request", "knob", "point", "require"}


def test_origins_stop_at_pins() -> None:
    g, n = selection()
    sets, index = origins(g)
    label = {name: sets[index[node]]["label"] for name, node in n.items()}
    assert label["splits"] == "b, k"
    assert label["blocks"] == "k"
    assert label["split"] == label["pin"] == label["stride"] == "pins and knobs only"
    assert label["mine"] == "own"
    assert label["element"] == "deployment facts only"
    assert sum(entry["count"] for entry in sets) == len(g)
    assert [entry["state"] for entry in sets][-2:] == ["fixed", "facts"]


def chain(size: int) -> Graph:
    """About ``size`` values like a reduction over a heuristic's candidates, with names and source texts."""
    g = Graph("large", "large")
    inputs = [g.add("input", data=Input(name, "runtime"), name=name, location=at(1)) for name in "abcdefghi"]
    best = inputs[0]
    for i in range((size - 9) // 4):
        text = f"min(ceil(total / {i}), best) if waves * {i % 50} <= limit else best"
        value = g.add("constant", data=i)
        term = g.add("mul", (inputs[i % 9], value), name=f"term_{i}", location=at(100 + i % 400, text))
        better = g.add("lt", (term, best), type="bool", location=at(100 + i % 400, text))
        best = g.add("select", (better, term, best), name="best", location=at(100 + i % 400, text))
    g.points = [("best", best)]
    return g


def test_page_size() -> None:
    assert len(page(None, chain(3000)).encode()) < 600_000
    assert len(json.loads(read(page(None, chain(8000))).scripts[0])["x"]) > 7900


def test_layers_rise_along_every_edge() -> None:
    for g in (selection()[0], chain(400)):
        placed = layout(g, [node for _, node in g.points], [c.root for c in g.conditions])
        for node, operands in enumerate(g.args):
            for operand in operands:
                assert placed.layer[operand] < placed.layer[node]
                assert placed.x[operand] < placed.x[node]
        assert min(placed.layer[len(g):]) > max(placed.layer[i] for i in range(len(g)) if g.kinds[i] != "constant")
        assert {placed.layer[i] for i in g.of_kind("input")} == {0.0}
        rows: dict[float, list[float]] = {}
        for layer, y in zip(placed.layer, placed.y, strict=True):
            rows.setdefault(layer, []).append(y)
        for column in rows.values():
            assert all(b - a > 1 - 1e-6 for a, b in itertools.pairwise(sorted(column)))


def test_layer_is_the_longest_path_and_row_the_mean() -> None:
    g = Graph("g", "g")
    a, b = (g.add("input", data=Input(name, "runtime")) for name in "ab")
    c = g.add("neg", (a,))
    d = g.add("add", (c, b))
    placed = layout(g, [d])
    assert placed.layer == [0, 0, 1, 2, 3]
    assert placed.y[d] == pytest.approx((placed.y[c] + placed.y[b]) / 2)


@given(st.lists(st.floats(0, 50), max_size=30), st.sampled_from([1.0, 2.5]))
def test_separate(targets: list[float], gap: float) -> None:
    targets.sort()
    rows = separate(targets, gap)
    assert all(b - a > gap - 1e-6 for a, b in itertools.pairwise(rows))
    if targets:  # the least squares solution keeps the mean, and what is apart already stays
        assert math.fsum(rows) == pytest.approx(math.fsum(targets), abs=1e-6)
    if all(b - a > gap for a, b in itertools.pairwise(targets)):
        assert rows == pytest.approx(targets)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to parse JavaScript")
def test_page_script_parses(tmp_path: Path) -> None:
    code = tmp_path / "page.js"
    code.write_text(read(page(solution(), selection()[0])).scripts[1], encoding="utf-8")
    subprocess.run(["node", "--check", str(code)], check=True, capture_output=True)


# ---- the graph as a document -----------------------------------------------------------------------------------


def rich_graph() -> Graph:
    g, n = selection()
    for value in (True, 1, 1.0, -0.0, 0.1, 2**70, "1", None, (1, True, (2.5, None)), math.inf, -math.inf):
        g.add("constant", data=value, type="f32" if isinstance(value, float) else "int")
    g.add("lookup", (n["k"],), data=((1, 2.0), (True, 3), ("x", math.inf)), name="row")
    g.add("lookup", (n["k"],), data=())
    g.add("knob", data=Knob("mode", (True, 1, 1.0, "a"), "a"), type="str")
    g.guards = {n["blocks"]: n["wide"]}
    return g


def spelled(value: Any) -> Any:
    """A value with its types and bits, for comparison: 1, True and 1.0 differ, so do 0.0 and -0.0."""
    if isinstance(value, tuple):
        return (type(value).__name__, *map(spelled, value))
    return (type(value).__name__, struct.pack(">d", value) if isinstance(value, float) else value)


def test_graph_document_round_trip() -> None:
    g = rich_graph()
    text = json.dumps(graph_document(g), allow_nan=False)
    back = graph_from_document(json.loads(text))
    assert back == g
    assert [spelled(v) for v in back.data] == [spelled(v) for v in g.data]
    assert all(type(v) is tuple for v in back.args)
    assert [type(x) for x in back.locations] == [type(x) for x in g.locations]
    assert json.dumps(graph_document(back), allow_nan=False) == text


def test_graph_document_keeps_the_bits_of_a_nan() -> None:
    nan = struct.unpack(">d", bytes.fromhex("7ff800000000beef"))[0]
    g = Graph("g", "g")
    g.add("constant", data=nan, type="float")
    back = graph_from_document(json.loads(json.dumps(graph_document(g))))
    assert struct.pack(">d", back.data[0]) == struct.pack(">d", nan)


def test_graph_document_is_compact() -> None:
    g = chain(3000)
    assert len(json.dumps(graph_document(g), separators=(",", ":"))) < 60 * len(g)


def test_graph_document_refuses_what_it_cannot_hold() -> None:
    g = Graph("g", "g")
    g.add("constant", data={1: 2})
    with pytest.raises(TypeError, match="dict is no value of a graph"):
        graph_document(g)


@pytest.mark.parametrize("damage", [
    lambda d: d.update(format=2), lambda d: d.pop("strings"), lambda d: d["types"].pop(),
    lambda d: d["kinds"].append(10**6), lambda d: d.update(places=[[0, 1]]), lambda d: d["data"].append([0, "x"]),
    lambda d: d["data"].append([5, ["double", "zz"]]), lambda d: d["data"].append([5, ["double", "00"]]),
])
def test_damaged_graph_document(damage: Any) -> None:
    document = copy.deepcopy(json.loads(json.dumps(graph_document(selection()[0]))))
    damage(document)
    with pytest.raises(ValueError):
        graph_from_document(document)


# ---- imports ---------------------------------------------------------------------------------------------------


def test_views_import_no_xdsl_and_rich_only_to_draw() -> None:
    sources = sorted(Path(views.__file__).parent.glob("*.py"))
    assert len(sources) > 10
    for source in sources:
        for statement in ast.parse(source.read_text(encoding="utf-8")).body:
            names = [a.name for a in statement.names] if isinstance(statement, ast.Import) else []
            names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"rich", "xdsl", "click", "networkx", "numpy"}, source
