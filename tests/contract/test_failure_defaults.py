"""What follows from each failure class reads the same in the documents, in `--help` and in the API."""

import re
from pathlib import Path

from click.testing import CliRunner

from resnetboost_api import failures
from resnetboost_operator.cli.validate import validate

DOCUMENTS = Path(__file__).parents[2] / "docs"


def test_the_document_has_the_table_of_the_api() -> None:
    text = (DOCUMENTS / "operator.md").read_text()
    assert "| action | classes | what it does |" in text
    table = text.partition("| action | classes |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|([\w, ]*)\|", table, re.MULTILINE)
    written = {action: tuple(filter(None, classes.strip().split(", "))) for action, classes in rows}
    assert {action: names for action, names in written.items() if names} == failures.default_rules()
    assert written["ExcludeNode"] == ()


def test_the_help_of_validate_has_it_too() -> None:
    text = " ".join(CliRunner().invoke(validate, ["--help"]).output.split())
    for action, names in failures.default_rules().items():
        assert f"{action}: {', '.join(names)}" in text


def test_the_page_for_people_on_call_has_each_class_with_its_exit_code_and_what_follows() -> None:
    table = (DOCUMENTS / "failures.md").read_text().partition("| reason (exit code) |")[2].partition("\n\n")[0]
    rows: dict[str, tuple[list[str], str, str]] = {}
    for row in table.splitlines()[2:]:
        reasons, _happened, follows, remedy = (cell.strip() for cell in row.strip("|").split(" | "))
        codes = re.findall(r"\d+", reasons)
        rows |= dict.fromkeys(re.findall(r"`(\w+)`", reasons), (codes, follows, remedy))
    assert rows.keys() == failures.BY_NAME.keys() - {"Succeeded"}
    for name, (codes, follows, remedy) in rows.items():
        found = failures.BY_NAME[name]
        assert found.exit_code is None or str(found.exit_code) in codes, name
        assert ("does not count" in follows) == (found.policy == "disruption"), name
        assert ("fails the job" in follows and "twice" not in follows) == (
            found.policy == "fail" or name == "NumericsError"
        ), name
        assert remedy, name
