"""PCA basis from the snapshots on a volume: which are used, checked, cached and refused."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from resnetboost_trainer.checkpoint import snapshots, store
from resnetboost_trainer.checkpoint.resume import Source
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.failures import ConfigError, StorageError
from resnetboost_trainer.optim.pca import basis as bases
from resnetboost_trainer.optim.pca.subspace import Basis
from support import pcabases

ALONE = Communicator(0, 1)
ROWS = pcabases.trajectory()
Place = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A volume with nine snapshots."""
    pcabases.leave(tmp_path, ROWS)
    return tmp_path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Basis, str]:
    root = tmp_path_factory.mktemp("expected")
    pcabases.leave(root, ROWS)
    return prepared(pcabases.source(root))


def prepared(source: Source, components: int = 5) -> tuple[Basis, str]:
    return bases.prepare(source, pcabases.shape(components), ALONE)


def kept(root: Path) -> Path:
    (place,) = (root / bases.PRODUCTS).iterdir()
    return place


def products(place: Path) -> NDArray[np.float64]:
    inner: NDArray[np.float64] = safetensors.numpy.load_file(place)["products"]
    return inner


def piped(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def write(place: Path, inner: NDArray[np.float64]) -> None:
    place.write_bytes(safetensors.numpy.save({"products": inner}))


def test_it_spans_the_snapshots_principal_directions(expected: tuple[Basis, str]) -> None:
    basis, digest = expected
    centred = ROWS.astype(np.float64) - ROWS.mean(0, dtype=np.float64)
    _, singular, right = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs((basis.columns * right[:5]).sum(1)), 1, rtol=1e-5)
    assert basis.explained == pytest.approx((singular[:5] ** 2).sum() / (singular**2).sum(), rel=1e-6)
    assert basis.numbers == pcabases.NUMBERS
    assert len(digest) == 64


def test_other_files_are_ignored(root: Path, expected: tuple[Basis, str]) -> None:
    """Foreign file names, half-written files, and a snapshot of steps after the stage's last checkpoint."""
    attempt = root / "uid/base/attempt-0"
    (attempt / "network-1_10.ckpt").write_bytes(b"weights")
    shutil.copytree(attempt / "snapshot-00000004", attempt / ".snapshot-00000005.partial")
    pcabases.leave(root, ROWS[:1], stage="other")
    later = pcabases.told(step=400, layout=pcabases.LAYOUT)
    store.write(attempt, later, snapshots.contents(ROWS[3]), "snapshot")
    basis, digest = prepared(pcabases.source(root))
    assert digest == expected[1]
    assert basis.columns.tobytes() == expected[0].columns.tobytes()


class TestRefused:
    """Errors that a user has to fix."""

    def test_too_few_snapshots(self, root: Path) -> None:
        with pytest.raises(ConfigError, match=r"pca\.components: 9 needs more .* stage base left 9; ask for fewer"):
            prepared(pcabases.source(root), components=9)

    def test_snapshots_that_do_not_differ(self, tmp_path: Path) -> None:
        pcabases.leave(tmp_path, np.repeat(ROWS[:2], 4, axis=0))
        with pytest.raises(ConfigError, match=r"pca\.components: 5 components .* 8 snapshots have 1 directions"):
            prepared(pcabases.source(tmp_path))

    def test_snapshots_of_another_network(self, root: Path) -> None:
        with pytest.raises(ConfigError, match="stage base are of another network"):
            bases.prepare(pcabases.source(root), pcabases.shape(layout="other"), ALONE)

    def test_a_stage_that_starts_from_none(self, root: Path) -> None:
        source = pcabases.source(root)
        alone = Source(root=root, ours=source.ours, rule="Never", start_from=None, total=20)
        with pytest.raises(ConfigError, match="name it in startFrom"):
            prepared(alone)

    def test_snapshots_other_than_those_the_stage_began_with(self, root: Path, expected: tuple[Basis, str]) -> None:
        pcabases.begun(root, 1, expected[1])
        shutil.rmtree(root / "uid/base/attempt-0/snapshot-00000008")
        with pytest.raises(ConfigError, match="stage pca began with other snapshots than are there now"):
            prepared(pcabases.source(root, attempt=2))


class TestDamage:
    """Damaged snapshots are named, and no basis is made of them."""

    def changed(self, path: Path) -> None:
        contents = bytearray(path.read_bytes())
        contents[-30000] ^= 1
        path.write_bytes(contents)

    def truncated(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-4])

    def linked(self, path: Path) -> None:
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))

    def pipe(self, path: Path) -> None:
        piped(path)

    @pytest.mark.parametrize("damage", ["changed", "truncated", "linked", "pipe"])
    @pytest.mark.parametrize("again", [False, True], ids=["before the products are known", "after"])
    def test_of_a_snapshot(self, damage: str, again: bool, root: Path) -> None:
        if again:
            prepared(pcabases.source(root))
        snapshot = root / "uid/base/attempt-0/snapshot-00000012/weights.safetensors"
        getattr(self, damage)(snapshot)
        with pytest.raises(StorageError, match=str(snapshot)):
            prepared(pcabases.source(root))
        if not again:
            assert not (root / bases.PRODUCTS).exists(), "products of damaged snapshots are kept"


class TestProducts:
    """The Gram matrix of the snapshots, cached by content."""

    def test_they_are_used_again(self, root: Path, expected: tuple[Basis, str]) -> None:
        """A cached matrix four times too large gives components of half the length, so it was used."""
        prepared(pcabases.source(root))
        write(kept(root), 4 * products(kept(root)))
        basis, _ = prepared(pcabases.source(root))
        assert (basis.columns == expected[0].columns / 2).all()

    def test_they_are_used_whoever_wrote_them(self, root: Path, expected: tuple[Basis, str]) -> None:
        prepared(pcabases.source(root))
        pcabases.leave(root, ROWS, job_uid="another")
        write(kept(root), 4 * products(kept(root)))
        basis, _ = prepared(pcabases.source(root, job_uid="another"))
        assert (basis.columns == expected[0].columns / 2).all()

    def test_they_grow_by_a_snapshot(self, tmp_path: Path, expected: tuple[Basis, str]) -> None:
        pcabases.leave(tmp_path, ROWS[:-1])
        prepared(pcabases.source(tmp_path))
        small = kept(tmp_path)
        pcabases.leave(tmp_path, ROWS)
        basis, digest = prepared(pcabases.source(tmp_path))
        assert digest == expected[1]
        np.testing.assert_allclose(basis.columns, expected[0].columns, atol=1e-6)
        (grown,) = set((tmp_path / bases.PRODUCTS).iterdir()) - {small}
        assert (products(grown)[:-1, :-1] == products(small)).all()
        grown.unlink()
        write(small, 4 * products(small))
        prepared(pcabases.source(tmp_path))
        assert (products(grown)[:-1, :-1] == products(small)).all(), "they were computed anew"

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda place: place.write_bytes(place.read_bytes()[:-8]),
            lambda place: place.write_bytes(b""),
            lambda place: place.write_bytes(b"\xff" * 700),
            lambda place: write(place, products(place)[:-1, :-1].copy()),
            lambda place: write(place, products(place) + np.triu(np.ones((9, 9)))),
            lambda place: write(place, np.full((9, 9), np.nan)),
            lambda place: write(place, products(place).astype(np.float32)),
            lambda place: place.write_bytes(safetensors.numpy.save({"other": products(place)})),
            lambda place: place.write_bytes(bytes(1 << 20)),
            lambda place: (place.rename(place.parent / "moved"), place.symlink_to("moved")),
            piped,
        ],
        ids=[
            "torn",
            "empty",
            "garbage",
            "fewer",
            "uneven",
            "nan",
            "single",
            "of another name",
            "large",
            "link",
            "pipe",
        ],
    )
    def test_invalid_products_are_recomputed(self, spoil: Place, root: Path, expected: tuple[Basis, str]) -> None:
        prepared(pcabases.source(root))
        place = kept(root)
        right = place.read_bytes()
        spoil(place)
        basis, digest = prepared(pcabases.source(root))
        assert digest == expected[1]
        assert basis.columns.tobytes() == expected[0].columns.tobytes()
        assert not place.is_symlink() and place.read_bytes() == right
        assert not list((root / bases.PRODUCTS).glob(".*")), "half of a file is left"


class TestAnotherJob:
    """Snapshots of another job are copied into this stage when it begins."""

    def source(self, root: Path, attempt: int) -> Source:
        return pcabases.source(root, attempt, "digits", job_uid="mine")

    def test_they_outlive_that_job(self, root: Path, expected: tuple[Basis, str]) -> None:
        first = self.source(root, 0)
        basis, digest = prepared(first)
        assert digest == expected[1]
        pcabases.begun(root, 0, digest, job_uid="mine")
        shutil.rmtree(root / "uid")
        again, same = prepared(self.source(root, 1))
        assert same == digest
        assert again.columns.tobytes() == basis.columns.tobytes()

    def test_an_attempt_without_a_checkpoint_adopts_them_again(self, root: Path) -> None:
        """The other job has continued meanwhile."""
        prepared(self.source(root, 0))
        shutil.rmtree(root / "uid")
        pcabases.leave(root, pcabases.trajectory(12))
        _, digest = prepared(self.source(root, 1))
        pcabases.begun(root, 1, digest, job_uid="mine")
        shutil.rmtree(root / "uid")
        assert prepared(self.source(root, 2))[1] == digest


def test_a_resumed_stage_keeps_its_subspace(root: Path, expected: tuple[Basis, str]) -> None:
    pcabases.begun(root, 1, expected[1])
    basis, digest = prepared(pcabases.source(root, attempt=2))
    assert digest == expected[1]
    assert basis.columns.tobytes() == expected[0].columns.tobytes()
