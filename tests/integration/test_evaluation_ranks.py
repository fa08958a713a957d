"""Evaluation by class on real ranks: every image counts once, and all ranks have the predictions of a single one."""

from pathlib import Path

import numpy as np
import pytest

from support import rankgang

pytestmark = pytest.mark.slow


def test_a_gang_has_the_predictions_of_one_rank(tmp_path: Path) -> None:
    folders = {ranks: tmp_path / str(ranks) for ranks in (1, 3)}
    for folder in folders.values():
        folder.mkdir()
    ((alone,), gang) = (rankgang.run("evaluationrank.py", ranks, folder) for ranks, folder in folders.items())
    assert len(set(alone["classes"].tolist())) > 1, "else any prediction would pass"
    for rank in gang:
        assert rank["counted"].all()
        assert len(rank["classes"]) == 360
        np.testing.assert_array_equal(rank["classes"], alone["classes"])
        np.testing.assert_allclose(rank["confidences"], alone["confidences"], rtol=1e-5)
        assert np.mean(rank["classes"] == rank["labels"]) == pytest.approx(float(rank["top1"]), abs=1e-6)
