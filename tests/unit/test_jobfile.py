"""Parsing a job file, and the one-sentence error for a file that cannot be parsed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_operator.validation import jobfile
from resnetboost_operator.validation.jobfile import JobFileError

VALUES = {
    "an exponent is a number": ("1e-4", 1e-4),
    "an exponent with a dot is a number": ("1.5E+3", 1500.0),
    "a fraction may lack its zero": (".5", 0.5),
    "a dot may end a number": ("5.", 5.0),
    "a whole number is no fraction": ("12", 12),
    "a sign is allowed": ("-3", -3),
    "zero is not octal": ("0", 0),
    "octal of YAML 1.2 is read": ("0o17", 15),
    "hexadecimal is read": ("0x1F", 31),
    "a fraction may start with zeros": ("00.5", 0.5),
    "true is true": ("true", True),
    "False is false": ("False", False),
    "nothing is null": ("", None),
    "a tilde is null": ("~", None),
    "quotes make text of a number": ('"1e-4"', "1e-4"),
    "quotes make text of yes": ("'yes'", "yes"),
    "a tag makes text of a number": ("!!str 5", "5"),
    "a block is text": ("|\n  no\n", "no\n"),
    "a date is text": ("2026-01-31", "2026-01-31"),
    "a time is not a number to base 60": ("1:30", "1:30"),
    "a version is text": ("1.2.3", "1.2.3"),
    "an image is text": ("resnetboost/trainer-cpu:0.1.0", "resnetboost/trainer-cpu:0.1.0"),
    "a word with an underscore is text": ("GLOG_v", "GLOG_v"),
    "infinity in words is text": ("inf", "inf"),
    "an alias repeats a value": ("[&a {b: 1}, *a]", [{"b": 1}, {"b": 1}]),
    "merged fields give way to own ones": (
        "- &a {b: 1, c: 2}\n- {<<: *a, c: 3}",
        [{"b": 1, "c": 2}, {"b": 1, "c": 3}],
    ),
    "of merged mappings the first wins": (
        "{<<: [{b: 1}, {b: 2, d: 4}]}",
        {"b": 1, "d": 4},
    ),
    "a number as a name is text": ("{1: a}", {"1": "a"}),
}


@pytest.mark.parametrize(("text", "value"), VALUES.values(), ids=VALUES.keys())
def test_values(text: str, value: Any) -> None:
    found = jobfile.parse(text)
    assert (found, type(found)) == (value, type(value))


ERRORS = {
    "yes": ("a: 1\nb: yes", ', line 2: yes is true for some readers of YAML and text for others; write true or "yes"'),
    "no": ("b: no", ', line 1: no is false for some readers of YAML and text for others; write false or "no"'),
    "on as a name": ("on: 1", ', line 1: on is true for some readers of YAML and text for others; write true or "on"'),
    "octal of YAML 1.1": ("a: 010", ", line 1: 010 is not the same number for all readers of YAML;"),
    "a leading zero": ("a: 08", ", line 1: 08 is not the same number"),
    "an underscore in a number": ("a: 1_000", ", line 1: 1_000 is not the same number"),
    "a binary number": ("a: 0b11", ", line 1: 0b11 is not the same number"),
    "a signed hexadecimal number": ("a: -0x1F", ", line 1: -0x1F is not the same number"),
    "infinity": ("a: .inf", ", line 1: .inf is not a finite number; use one that is"),
    "not a number": ("a: .NaN", ", line 1: .NaN is not a finite number; use one that is"),
    "a number beyond all": ("a: 1e999", ", line 1: 1e999 is too large for a number"),
    "a very long number": ("a: " + "9" * 5000, ", line 1: this number is too large"),
    "a field given twice": ("a: 1\nb: 2\na: 3", ", line 3: a is given twice; keep one of the two"),
    "a field without a name": ("{~: 1}", ", line 1: the name of a field must be text;"),
    "a mapping as a name": ("{{a: 1}: 1}", ", line 1: the name of a field must be text;"),
    "a tag of a program": ("!!python/name:os.system x", ", line 1: the tag !!python/name:os.system is not known;"),
    "a tag on a list": ("!!set [a]", ", line 1: the tag !!set is not known; leave it out"),
    "two documents": ("a: 1\n---\nb: 1", ", line 3: a second document starts here; put each job into a file"),
    "a tab as indentation": ("a:\n\tb: 1", ", line 2: not valid YAML: a tab or a reserved character"),
    "a colon too many": ("a: b: c", ", line 1: not valid YAML: mapping values are not allowed"),
    "an open bracket": ("a: [1\n\n", ", line 1: the bracket that opens here lacks a comma or its end"),
    "a missing comma": ("a: {b: 1\n  c: 2}", ", line 1: the bracket that opens here lacks a comma or its end"),
    "an alias of nothing": ("a: *b", ", line 1: not valid YAML: "),
    "a list that holds itself": ("&a [*a]", ", line 1: aliases (*name) expand without end; write the values out"),
    "a merge of a number": ("{<<: 5}", ", line 1: << takes the fields of another mapping;"),
    "a control character": ("a: \x00", ": not valid YAML: "),
}


@pytest.mark.parametrize(("text", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors(text: str, message: str) -> None:
    with pytest.raises(JobFileError) as caught:
        jobfile.parse(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_nested_aliases_are_limited() -> None:
    lists = ["- &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lists += [f"- &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(JobFileError, match="aliases"):
        jobfile.parse("\n".join(lists))


@pytest.mark.parametrize("depth", [60, 5000])
def test_deep_nesting_is_an_error(depth: int) -> None:
    with pytest.raises(JobFileError, match="nested too deeply"):
        jobfile.parse("[" * depth + "]" * depth)


@pytest.mark.parametrize("level", ["[", "- ", "{a: ", "? "])
def test_endless_nesting_does_not_crash(level: str) -> None:
    with pytest.raises(JobFileError, match=", line 2: nested too deeply"):
        jobfile.parse("a:\n  " + level * 50_000)


def test_text_is_loaded_with_a_general_name() -> None:
    assert jobfile.load("---\na: 1\n---\n") == {"a": 1}
    with pytest.raises(JobFileError, match=r"^the job file, line 1: a is given twice"):
        jobfile.load("{a: 1, a: 2}")


UNFIT = {
    "empty": (b"", "is empty; write a ResNetBoostJob into it"),
    "only comments": (b"# soon\n", "is empty; write a ResNetBoostJob into it"),
    "a list": (b"- a", "holds no fields; a job file starts with apiVersion, kind, metadata and spec"),
    "a word": (b"hello", "holds no fields; a job file starts with apiVersion, kind, metadata and spec"),
    "not text": (b"\xff\xfe\x00", "is not UTF-8 text; save it as such"),
    "far too large": (b"#" * (1 << 20) + b"#", "is larger than 1 MiB; this cannot be a job file"),
}


@pytest.mark.parametrize(("content", "message"), UNFIT.values(), ids=UNFIT.keys())
def test_unusable_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(JobFileError) as caught:
        jobfile.load(path)
    assert str(caught.value) == f"{path} {message}"


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert jobfile.load(path) == {"a": 1}


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"nothing\.yaml does not exist; check the path of the job file"):
        jobfile.load(tmp_path / "nothing.yaml")
    with pytest.raises(JobFileError, match="is a folder; name the job file in it"):
        jobfile.load(tmp_path)
    with pytest.raises(JobFileError, match="cannot be read"):
        jobfile.load(Path("a\0b"))


@given(st.text() | st.text(alphabet="ab1:-[]{}&*!|>'\"%@`,#? \n\t_.e"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        value = jobfile.parse(text)
    except JobFileError as error:
        assert str(error)
    else:
        assert value is None or isinstance(value, str | int | float | list | dict)
