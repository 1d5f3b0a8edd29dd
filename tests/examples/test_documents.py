"""What README.md and docs/ say is so: links, tables, commands, messages."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
import shlex
from pathlib import Path

import pytest

from tests.examples.documents import (
    DOCUMENTS,
    ROOT,
    anchors,
    code_blocks,
    commands,
    links,
    table_after,
    texts_of_package,
)
from tfdist import MembershipOptions, errors
from tfdist.data.errors import DataError
from tfdist.launch import run_command

README = ROOT / "README.md"
TROUBLE = ROOT / "docs" / "troubleshooting.md"
ERRORS = {
    name: kind
    for name, kind in {**vars(errors), "DataError": DataError}.items()
    if isinstance(kind, type) and issubclass(kind, errors.TfdistError)
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in links(document):
        file, _, anchor = target.partition("#")
        path = (document.parent / file) if file else document
        assert path.exists(), f"{document.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{document.name} links to {target}, which is no heading"


def test_the_table_of_exit_codes_is_that_of_the_package() -> None:
    rows = {int(code): meaning for code, meaning in table_after(README, "Exit codes", "code")}
    assert rows == errors.EXIT_CODES


def test_the_table_of_options_has_all_of_them_with_their_defaults() -> None:
    rows = {row[0].strip("`"): row for row in table_after(README, "Options", "`MembershipOptions`")}
    fields = {field.name: str(field.default) for field in dataclasses.fields(MembershipOptions)}
    assert {name: row[1] for name, row in rows.items()} == fields


def test_every_environment_variable_named_is_read_by_the_package() -> None:
    known = set(texts_of_package())
    for document in DOCUMENTS:
        for name in set(re.findall(r"TFDIST_[A-Z_]+", document.read_text())):
            assert name in known, f"{document.name} names {name}"


def test_every_tfdist_run_command_is_understood() -> None:
    sources = [*DOCUMENTS, *sorted((ROOT / "examples").glob("*.py"))]
    found = [command for path in sources for command in commands(path.read_text(), "tfdist run")]
    assert len(found) >= 5
    parser = argparse.ArgumentParser(prog="tfdist run", exit_on_error=False)
    run_command.add_arguments(parser)
    for command in found:
        words = shlex.split(command)[2:]
        if words != ["--help"]:
            parser.parse_args(words)


def test_every_script_named_in_a_command_exists() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"examples/\w+\.py", document.read_text()):
            assert (ROOT / name).is_file(), f"{document.name} names {name}"


def test_every_make_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for document in DOCUMENTS:
        for target in commands(document.read_text(), "make"):
            word = target.split()[1]
            assert re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE), f"{document.name} names {target}"


def test_every_public_name_used_in_the_documents_exists() -> None:
    for document in DOCUMENTS:
        for dotted in set(re.findall(r"\btfdist(?:\.[A-Za-z]\w*)+", document.read_text())):
            names = dotted.split(".")[1:]
            place = importlib.import_module("tfdist")
            for name in names:
                assert hasattr(place, name), f"{document.name} names {dotted}"
                place = getattr(place, name)


def test_troubleshooting_has_every_error_with_its_exit_code() -> None:
    rows = table_after(TROUBLE, "Errors", "error")
    told = {match[1]: int(match[2]) for row in rows if (match := re.match(r"`(\w+)` \((\d+)\)", row[0]))}
    # Seen inside, or the base of another.
    silent = {"TfdistError", "StoreError", "TransferError", "TransferRefusedError", "WaitTimeoutError"}
    assert set(told) == set(ERRORS) - silent
    for name, code in told.items():
        kind = ERRORS[name]
        assert errors.exit_code(kind.__new__(kind)) == code, name


def test_troubleshooting_quotes_messages_that_exist() -> None:
    texts = "\n".join(texts_of_package())
    for row in table_after(TROUBLE, "Errors", "error"):
        for quote in re.findall(r"`([^`]+)`", row[1]):
            for part in re.split(r"\.\.\.|worker/1|_timeout|\(|,|:", quote):
                assert part.strip() in texts, f"nothing says {part.strip()!r}"


def test_the_script_in_the_readme_is_the_minimal_example() -> None:
    (script,) = code_blocks(README, "python")
    assert (ROOT / "examples" / "minimal.py").read_text().endswith(script)
