"""What the file for a bug report leaves out: no address and no secret survives, times and paths do."""

import ipaddress
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer.doctor import redact

NAMES = {"ann": "<user>", "gpu-node-17": "<host>", "/home/ann": "~"}
AROUND = (("", ""), ("before ", " after"), ("addr:", ": unreachable"), ("[", "]:8118"), ("inet6 ", "/64"), ("'", "',"))
ALPHABET = string.ascii_letters + string.digits
PREFIXES = ("hf_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-")
# A secret is told by its digits, which the rest of these texts has not.
SECRETS = st.text(ALPHABET, min_size=12, max_size=40).map(lambda found: f"{found}7391")
WORDS = ("token", "HF_TOKEN", "password", "pw", "PASSPHRASE", "db-passwd", "api_key", "AWS_SECRET_ACCESS_KEY", "Serial")
FORMS = (
    "{}={}",
    "{}: {}",
    "{} = {}",
    '{}="two {}"',
    "{}: 'two words {}' on",
    '"{}": "a \\" quote {}"',
    '\\"{}\\": \\"a {}\\"',
)


@given(st.integers(2, 2**128 - 1).map(ipaddress.IPv6Address), st.sampled_from(AROUND))
def test_no_ipv6_address_survives(address: ipaddress.IPv6Address, around: tuple[str, str]) -> None:
    for written in {str(address), address.compressed.upper(), address.exploded, f"{address}%eth0"}:
        shown = redact.text(written.join(around), {})
        assert written not in shown and "<address>" in shown
        assert shown.replace("%eth0", "") == "<address>".join(around)


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=6), st.integers(0, 6), st.sampled_from(AROUND))
def test_no_compressed_address_survives(groups: list[int], left: int, around: tuple[str, str]) -> None:
    words = [f"{group:x}" for group in groups]
    written = f"{':'.join(words[:left])}::{':'.join(words[left:])}"
    if written not in ("::1", "::"):
        assert redact.text(written.join(around), {}) == "<address>".join(around)


@given(st.ip_addresses(v=4).filter(lambda found: not found.is_loopback), st.sampled_from(AROUND))
def test_no_ipv4_address_survives(address: ipaddress.IPv4Address, around: tuple[str, str]) -> None:
    assert redact.text(str(address).join(around), {}) == "<address>".join(around)


@given(SECRETS, st.sampled_from(WORDS), st.sampled_from(FORMS))
def test_no_secret_survives_behind_its_name(secret: str, word: str, form: str) -> None:
    shown = redact.text(form.format(word, secret), {})
    assert secret not in shown and "7391" not in shown and word in shown


@given(SECRETS, st.sampled_from(PREFIXES), st.sampled_from((" ", "=", "/", "'", ":", "_")))
def test_no_known_token_survives_without_a_name(secret: str, prefix: str, before: str) -> None:
    assert redact.text(f"login{before}{prefix}{secret} failed", {}) == f"login{before}*** failed"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fe80::1ff:fe23:4567:890a", "<address>"),
        ("2001:db8::1", "<address>"),
        ("link/ether 02:42:ac:11:00:02 brd", "link/ether <address> brd"),
        ("02-42-AC-11-00-02", "<address>"),
        ("        Serial Number                  : 1023456789", "        Serial Number                  : ***"),
        ("serial 1023456789 of a card", "serial *** of a card"),
        ('{"serialNumber": "10 23"}', '{"serialNumber": ***}'),
        ("S/N: 0123", "S/N: ***"),
        ("pw=abc", "pw=***"),
        ("PASSPHRASE=abc", "PASSPHRASE=***"),
        ('token="ab cd" and more', "token=*** and more"),
        ("token: Bearer abc", "token: ***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("sent eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.c2ln on", "sent *** on"),
        ("ann wrote /home/ann/x, ann_2 and ANN", "<user> wrote ~/x, <user>_2 and ANN"),
    ],
)
def test_what_is_nobody_elses_business_is_replaced(text: str, shown: str) -> None:
    assert redact.text(text, NAMES) == shown


@pytest.mark.parametrize(
    "text",
    [
        "12:30:45",
        "2026-11-25 12:30:45.678 step 20/440",
        "2026-11-25T12:30:45Z",
        "channel 3, annotated, /home/anna/data, Xann",
        "/usr/local/Ascend/driver/version.info",
        "mindspore::dataset::Execute, std::vector<float>, ~Graph::Graph()",
        "listens on ::1 and :: and 127.0.0.1",
        "bus 0000:3b:00.0",
        "no token\nNext line; serial\n1234 images",
        "serial port, serialized 12 tensors",
        "task-0123456789abcdef0123, 64 tasks",
        "0.9998, 1e-05, 5.10.0-8-amd64, MindSpore 2.10.0",
    ],
)
def test_what_helps_stays(text: str) -> None:
    assert redact.text(text, NAMES) == text


@given(st.times(), st.lists(st.text(string.ascii_lowercase, min_size=1), min_size=1, max_size=5).map("/".join))
def test_times_and_paths_stay(time: object, path: str) -> None:
    text = f"{time} /{path}"
    if not any(word in path for word in ("pw", "token", "serial", "ann")):
        assert redact.text(text, NAMES) == text
