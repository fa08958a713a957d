"""Files of others that once broke a reader: each is refused in a sentence, and none costs more than it is."""

import gzip
import json
import logging
import resource
from pathlib import Path

import pytest

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.distributed import ranktable
from resnetboost_trainer.failures import CommunicationError, ConfigError
from support import smallcheckpoints

BOMB_BYTES = 256 << 20


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe", b'{"jobUid": "\xff"}', b'{"config": ' + b"[" * 100_000],
    ids=["no text", "a name that is none", "nested without end"],
)
def test_a_damaged_manifest_costs_one_checkpoint_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    earlier, newest = (smallcheckpoints.save(tmp_path, step) for step in (20, 40))
    (newest / store.MANIFEST).write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        found = store.newest(tmp_path, "uid", "base", [smallcheckpoints.MODEL])
    assert found is not None
    assert found.path == earlier
    assert "is damaged (manifest.json: " in caplog.text


def test_aliases_of_aliases_in_a_config_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{now}: &{now} [{', '.join([f'*{before}'] * 9)}]" for before, now in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"aliases \(\*name\) are not read; write the values out"):
        config.load(path)


@pytest.mark.parametrize("text", ["seed: 2001-99-99", "seed: " + "9" * 5000, "x: " + "x" * (1 << 20)])
def test_a_config_with_values_that_python_refuses_is_a_config_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a YAML file: ") as caught:
        config.load(path)
    assert str(caught.value).isprintable()


def test_control_characters_of_a_field_s_name_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"\x1b[2J": 1}))
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert "\\x1b" in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_packed_rank_table_that_unpacks_to_more_than_any_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / ranktable.RANKS).write_text(json.dumps({"sha256": "0" * 64, "ranks": [0]}))
    (tmp_path / ranktable.PACKED).write_bytes(gzip.compress(bytes(BOMB_BYTES), 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CommunicationError, match="unpacks to more than"):
        ranktable.read(tmp_path, 1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < BOMB_BYTES


@pytest.mark.parametrize("packed", [b"\x1f\x8b\x08\x00" + b"\xff" * 40, b"no gzip"])
def test_a_damaged_packed_rank_table_is_refused(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / ranktable.RANKS).write_text(json.dumps({"sha256": "0" * 64, "ranks": [0]}))
    (tmp_path / ranktable.PACKED).write_bytes(packed)
    with pytest.raises(CommunicationError, match="the rank table cannot be read: "):
        ranktable.read(tmp_path, 1)
