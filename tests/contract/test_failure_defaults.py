"""What follows from each failure class reads the same in docs/operator.md, in `--help` and in the API."""

import re
from pathlib import Path

from click.testing import CliRunner

from resnetboost_api import failures
from resnetboost_operator.cli.validate import validate

DOCUMENT = Path(__file__).parents[2] / "docs" / "operator.md"


def test_the_document_has_the_table_of_the_api() -> None:
    text = DOCUMENT.read_text()
    assert "| action | classes | what it does |" in text
    rows = re.findall(r"^\| `(\w+)` \|([\w, ]*)\|", text.partition("| action | classes |")[2], re.MULTILINE)
    written = {action: tuple(filter(None, classes.strip().split(", "))) for action, classes in rows}
    assert {action: names for action, names in written.items() if names} == failures.default_rules()
    assert written["ExcludeNode"] == ()


def test_the_help_of_validate_has_it_too() -> None:
    text = " ".join(CliRunner().invoke(validate, ["--help"]).output.split())
    for action, names in failures.default_rules().items():
        assert f"{action}: {', '.join(names)}" in text
