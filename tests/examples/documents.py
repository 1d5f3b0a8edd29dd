"""Reads the documents: their code blocks, tables and links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def code_blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


def table_after(document: Path, heading: str, first: str) -> list[list[str]]:
    """The rows, without the head, of the table under a heading whose first column is called `first`."""
    text = document.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first}"):
            next(lines)  # the line of dashes
            rows = []
            for row in lines:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
            return rows
    raise LookupError(f"{document.name} has no table {first!r} under {heading!r}")


def links(document: Path) -> list[str]:
    """Targets of links that are not addresses on the web."""
    found = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    return [target for target in found if not target.startswith("http")]


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def commands(text: str, program: str) -> list[str]:
    """The command lines of a program in a document, in code blocks or between backquotes; continued lines joined."""
    joined = re.sub(r" *\\\n *", " ", text)
    found = re.findall(rf"(?:^\s*|`|&& )({program} [^`\n]*)", joined, re.MULTILINE)
    return [re.split(r"\s{3,}|\s#", command.strip())[0] for command in found]


def texts_of_package() -> Iterator[str]:
    """Every constant text in the sources of tfdist, pieces of f-strings one by one."""
    for path in sorted((ROOT / "tfdist").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
