"""A dataset on the Hub, kept in a folder: what is new comes, what is gone goes, what was there stays when
the Hub is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnready.hub.checkpoint import HubUnreachable
from trnready.results import dataset, journal
from trnready.space import mirror
from trnready.space.index import Ask, Index
from trnready.space.mirror import Address, BadAddress, Mirror, NoDataset


@pytest.fixture
def hub(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    return hub


@pytest.fixture
def followed(hub, tmp_path: Path, make_row) -> Mirror:
    folder = hub.datasets["acme/results"] = tmp_path / "served"
    journal.write(folder, make_row())
    dataset.compact(folder)
    (folder / "big.bin").write_bytes(b"x" * 1000)
    return Mirror(Address("acme/results", None), tmp_path / "mirror")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf://datasets/acme/results", Address("acme/results", None)),
        ("hf://datasets/acme/my.results@v1", Address("acme/my.results", "v1")),
        ("results", None),
        ("/srv/hf:/x", None),
    ],
)
def test_addresses_are_told_from_folders(text, address):
    assert mirror.parse(text) == address
    if address:
        assert str(address) == text


@pytest.mark.parametrize(
    "text", ["hf://acme/results", "hf://datasets/x", "hf://datasets/../..", "hf://datasets/a/b/../c", "hf://"]
)
def test_addresses_of_nothing_are_refused(text):
    with pytest.raises(BadAddress, match="names no dataset; one is written hf://datasets/owner/name"):
        mirror.parse(text)


def test_a_dataset_comes_with_what_the_space_reads_and_follows_changes(hub, followed, make_row, tmp_path):
    folder = followed.open()
    assert sorted(
        path.name for path in folder.rglob("[!.]*") if ".cache" not in path.parts and path.is_file()
    ) == ["neuronxcc-soft-0.1.0_transformers-5.24.0.parquet"]
    index = Index(folder, tmp_path, tmp_path / "index", look_every_s=0, patience_s=30)
    assert [entry.model_id for entry in index.list(Ask(view="results")).entries] == ["acme/tiny-1b"]
    served = hub.datasets["acme/results"]
    other = journal.write(served, make_row(model_id="acme/other", run_id="other"))
    hub.downloads.clear()
    followed.update()
    assert hub.downloads == [other.name]
    assert index.list(Ask(view="results")).total == 2
    other.unlink()
    followed.update()
    assert index.list(Ask(view="results")).total == 1
    # A commit that is known is not asked for again.
    hub.downloads.clear()
    followed.update()
    assert hub.downloads == []


def test_what_was_brought_is_shown_while_the_hub_is_away(hub, followed, caplog, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.status = 500
    with pytest.raises(HubUnreachable, match=r"the Hub does not give the dataset acme/results \("):
        followed.open()
    hub.status = None
    folder = followed.open()
    hub.status = 500
    assert Mirror(followed.address, folder).open() == folder
    assert "What was brought before is shown." in caplog.text
    assert (folder / "data").is_dir()


def test_a_dataset_that_is_not_there(hub, tmp_path):
    with pytest.raises(NoDataset, match="there is no dataset acme/none on the Hub for you"):
        Mirror(Address("acme/none", None), tmp_path / "none").open()
