"""Source positions of a stored solution, moved to where a reformatted file has them.

Reformatting changes no syntax node, only where it stands. When an entry is written each place it mentions
is tied to its node's number (:func:`index_places`); when a lookup finds the same program text laid out
differently, the places are derived again from the new file (:func:`relocate`). This is off the usual
path: only here is a file parsed.

A place is ``{"file", "line", "column", "text"}`` anywhere in a document, a row of a graph document's
``places`` (file and text by their number in its ``strings``), or ``file:line`` in generated source.
"""

from __future__ import annotations

import ast
import re

from detent.runtime.sources import nodes, normalise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    Place = tuple[str, int, int, str]
    Move = Callable[[Place], Place]


class Source:
    """The nodes of one file by number and by position. Lines count from 1, columns from 0 in characters."""

    def __init__(self, text: str | bytes) -> None:
        self.nodes = list(nodes(ast.parse(text)))
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig", "replace")
        # Python's lines, not str.splitlines': that one also splits at form feeds and Unicode separators.
        self.lines = decoded.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self.at: dict[tuple[int, int], list[int]] = {}
        self.on: dict[int, int] = {}
        for number, node in enumerate(self.nodes):
            if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias):
                self.at.setdefault((node.lineno, self._column(node.lineno, node.col_offset)), []).append(number)
                self.on.setdefault(node.lineno, number)

    def _column(self, line: int, offset: int) -> int:
        return len(self.lines[line - 1].encode()[:offset].decode("utf-8", "replace"))

    def segment(self, number: int) -> str:
        """The node's text as the file has it."""
        node: Any = self.nodes[number]
        first: int = node.lineno - 1
        last: int = node.end_lineno - 1
        start, end = self._column(node.lineno, node.col_offset), self._column(node.end_lineno, node.end_col_offset)
        if first == last:
            return self.lines[first][start:end]
        return "\n".join([self.lines[first][start:], *self.lines[first + 1:last], self.lines[last][:end]])

    def number(self, line: int, column: int, text: str) -> int:
        """The node that starts there and reads so, else the outermost that starts there or on the line, else -1."""
        there = self.at.get((line, column))
        if there is None:
            return self.on.get(line, -1)
        if len(there) > 1:
            for number in there:
                if self.segment(number) == text:
                    return number
        return there[0]

    def place(self, number: int, text: str) -> tuple[int, int, str]:
        """Line, column and text of a node; ``text`` is kept unless it is the node's own, spelt differently."""
        node: Any = self.nodes[number]
        segment = self.segment(number)
        if segment != text and _same(segment, text):
            text = segment
        return node.lineno, self._column(node.lineno, node.col_offset), text


def _same(a: str, b: str) -> bool:
    try:
        return normalise(f"({a}\n)") == normalise(f"({b}\n)")
    except SyntaxError:
        return False


def index_places(document: Any, graph: Any, texts: Mapping[str, str | bytes]) -> list[list[Any]]:
    """Every place the document and the graph mention, as ``[file, line, column, text, node number]``.

    ``texts``: the files by the names that places use. Places of conditions come first: where two places share
    a line that reformatting splits, it is conditions that generated source speaks of.
    """
    sources = {name: Source(text) for name, text in texts.items()}
    found: dict[Place, None] = {}
    for part in (document.get("conditions", []), document):
        found.update((_place(item), None) for item in _dicts(part))
    if graph is not None:
        found.update((place, None) for place in _graph_places(graph))
    return [[*place, sources[place[0]].number(*place[1:]) if place[0] in sources else -1] for place in found]


def relocate(document: Any, graph: Any, unpinned: str | None, places: list[list[Any]],
             texts: Mapping[str, str | bytes]) -> tuple[Any, Any, str | None, list[list[Any]]]:
    """Document, graph, unpinned source and places as they read for the new ``texts`` of the changed files."""
    sources = {name: Source(text) for name, text in texts.items()}
    moves: dict[Place, Place] = {}
    lines: dict[tuple[str, str], str] = {}
    for file, line, column, text, number in places:
        if file in sources and number >= 0:
            moves[file, line, column, text] = new = (file, *sources[file].place(number, text))
            lines.setdefault((file, str(line)), str(new[1]))

    def move(place: Place) -> Place:
        return moves.get(place, place)

    def rename(text: str) -> str:
        return pattern.sub(lambda m: f"{m[1]}:{lines.get((m[1], m[2]), m[2])}", text)

    pattern = re.compile(f"({'|'.join(map(re.escape, sources))}):([0-9]+)(?![0-9])")
    document = _moved(document, move)
    document["template"] = rename(document["template"])
    moved_places = [[*move((file, line, column, text)), number] for file, line, column, text, number in places]
    return (document, None if graph is None else _moved_graph(graph, move),
            None if unpinned is None else rename(unpinned), moved_places)


def _is_place(value: Any) -> bool:
    return isinstance(value, dict) and "file" in value and "line" in value and "column" in value


def _place(value: dict[str, Any]) -> Place:
    return value["file"], value["line"], value["column"], value.get("text", "")


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if _is_place(value):
            yield value
        for item in value.values():
            yield from _dicts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _dicts(item)


def _moved(value: Any, move: Move) -> Any:
    if isinstance(value, dict):
        if _is_place(value):
            file, line, column, text = move(_place(value))
            return {**value, "file": file, "line": line, "column": column, "text": text}
        return {key: _moved(item, move) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, move) for item in value]
    return value


def _graph_places(graph: Any) -> Iterator[Place]:
    strings = graph["strings"]
    for file, line, column, text in graph["places"]:
        yield strings[file], line, column, strings[text]


def _moved_graph(graph: Any, move: Move) -> Any:
    strings = list(graph["strings"])
    numbers = {text: number for number, text in enumerate(strings)}
    rows = []
    for file, line, column, text in _graph_places(graph):
        new_file, new_line, new_column, new_text = move((file, line, column, text))
        if new_text not in numbers:
            numbers[new_text] = len(strings)
            strings.append(new_text)
        rows.append([numbers[new_file], new_line, new_column, numbers[new_text]])
    return {**graph, "strings": strings, "places": rows}
