"""`trnready catalog refresh` and `check` against a Hub that answers on localhost."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from trnready.cli import app
from trnready.errors import TrnreadyError
from trnready.hub import catalog, listing
from trnready.hub.checkpoint import HubUnreachable

TASK = "text-generation"


def described(name: str, downloads: int, trend: float | None, **more: Any) -> dict[str, Any]:
    """What the Hub's API says of a model in a list."""
    return (
        {
            "id": name,
            "pipeline_tag": TASK,
            "private": False,
            "gated": False,
            "downloads": downloads,
            "likes": 3,
            "createdAt": "2026-05-04T10:00:00.000Z",
            "tags": ["transformers", "license:mit", TASK],
            "config": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            "safetensors": {"parameters": {"BF16": 1000}, "total": 1000},
        }
        | ({} if trend is None else {"trendingScore": trend})
        | more
    )


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    """The waits, in seconds, which are not waited."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


@pytest.fixture
def hub(hub, monkeypatch, slept):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    hub.listed = [described(f"acme/m{i}", 1000 - i, float(i) if i % 2 else None) for i in range(10)]
    return hub


@pytest.fixture
def run(tmp_path):
    def command(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["catalog", *arguments, "--catalog", str(tmp_path)])
        if isinstance(result.exception, TrnreadyError | KeyboardInterrupt):
            raise result.exception
        assert result.exit_code in (0, 1), result.output
        return result.stdout

    return command


def test_both_orders_are_the_hubs_own(hub, run, tmp_path, slept):
    hub.page_size = 4
    told = run("refresh", "--task", TASK)
    assert told == f"{tmp_path / TASK}.parquet: 10 models, 5 with a place by trend.\n"
    read = catalog.read(tmp_path / f"{TASK}.parquet")
    models = {each.model_id: each for each in catalog.models(read)}
    assert [each.downloads_position for each in models.values()] == list(range(1, 11))
    trending = sorted((m for m in models.values() if m.trending_position), key=lambda m: m.trending_position)
    assert [each.model_id for each in trending] == [f"acme/m{i}" for i in (9, 7, 5, 3, 1)]
    first = models["acme/m0"]
    assert (first.model_type, first.parameters, first.license, first.gated) == ("llama", 1000, "mit", "no")
    assert str(first.created) == "2026-05-04"
    assert read.about.source == f"The Hub's own lists ({hub.address})"
    assert read.about.trending_at == read.about.downloads_at
    assert "pipeline_tag=text-generation" in hub.asked[0]
    # Three pages by downloads, two by trend: what follows has no trend any more. A rest between pages.
    assert len(hub.asked) == 5
    assert slept == [listing.PAUSE_S] * 3
    assert not list(tmp_path.glob(".refresh/*"))


def test_private_gated_untagged_and_moving_models(hub, run, tmp_path):
    hub.listed[1] |= {"private": True}
    hub.listed[2] |= {"gated": "manual"}
    del hub.listed[3]["pipeline_tag"], hub.listed[3]["config"], hub.listed[3]["safetensors"]
    hub.listed.insert(5, hub.listed[4])
    told = run("refresh", "--task", TASK)
    assert "8 models, 3 with a place by trend, 1 without a task, 1 private model left out." in told
    models = {each.model_id: each for each in catalog.models(catalog.read(tmp_path / f"{TASK}.parquet"))}
    assert "acme/m1" not in models
    assert models["acme/m2"].gated == "manual"
    unknown = catalog.models(catalog.read(tmp_path / "unknown.parquet"))
    assert [(each.model_id, each.task, each.parameters) for each in unknown] == [("acme/m3", "unknown", None)]
    # Once the Hub names its task it leaves that list, and what was known of a model stays known.
    hub.listed[3] |= {"pipeline_tag": TASK}
    del hub.listed[0]["safetensors"], hub.listed[0]["tags"]
    run("refresh", "--task", TASK)
    models = {each.model_id: each for each in catalog.models(catalog.read(tmp_path / f"{TASK}.parquet"))}
    assert models["acme/m3"].task == TASK
    assert (models["acme/m0"].parameters, models["acme/m0"].license) == (1000, "mit")
    assert catalog.models(catalog.read(tmp_path / "unknown.parquet")) == []


def test_troubles_on_the_way_are_waited_for(hub, run, slept):
    hub.troubles = [(503, {}), (500, {}), (429, {"Retry-After": "7"}), None]
    assert "10 models" in run("refresh", "--task", TASK)
    assert slept[:4] == [1, 2, 8, 8]


def test_an_interrupted_refresh_goes_on_where_it_stopped(hub, run, tmp_path):
    hub.page_size = 3
    # Two pages, then a Hub that answers no more.
    hub.troubles = []
    original = listing._get
    asked = 0

    def failing(address: str) -> Any:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise HubUnreachable("the Hub does not answer; try again later.")
        return original(address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_get", failing)
        with pytest.raises(HubUnreachable):
            run("refresh", "--task", TASK)
    kept = tmp_path / ".refresh" / f"{TASK}-downloads.jsonl"
    assert len(kept.read_text().splitlines()) == 3
    # A kill in the middle of a line loses that line alone.
    kept.write_text(kept.read_text() + '{"models": [{"model_id": "acm')
    hub.asked.clear()
    assert "10 models" in run("refresh", "--task", TASK)
    assert "cursor=6" in hub.asked[0]
    assert sum("sort=downloads" in address for address in hub.asked) == 2


def test_a_place_that_the_hub_forgot_starts_again(hub, run, tmp_path):
    hub.page_size = 3
    pages = listing.pages(TASK, "downloads", None, tmp_path / ".refresh" / f"{TASK}-downloads.jsonl")
    next(pages), next(pages)
    hub.troubles = [(400, {})]
    assert "10 models" in run("refresh", "--task", TASK)
    assert "cursor" in hub.asked[2]
    assert "cursor" not in hub.asked[3]


def test_ctrl_c_says_that_nothing_is_lost(hub, tmp_path, monkeypatch):
    def interrupted(_: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "_get", interrupted)
    result = CliRunner().invoke(app, ["catalog", "refresh", "--catalog", str(tmp_path)])
    assert result.exit_code == 130
    assert "Interrupted. The same command goes on from here, for a day." in result.stderr


def test_a_limit_takes_the_head_of_both_orders(hub, run, tmp_path):
    assert "4 models, 2 with a place by trend" in run("refresh", "--task", TASK, "--limit", "2")
    models = catalog.models(catalog.read(tmp_path / f"{TASK}.parquet"))
    assert [(m.model_id, m.downloads_position, m.trending_position) for m in models] == [
        ("acme/m0", 1, None),
        ("acme/m1", 2, None),
        ("acme/m7", None, 2),
        ("acme/m9", None, 1),
    ]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ((403, {}), r"the Hub refuses the list \(HTTP status 403\); try again later\."),
        ((404, {}), r"the Hub refuses the list \(HTTP status 404\); try again later\."),
    ],
)
def test_a_hub_that_refuses_is_one_sentence(hub, run, tmp_path, trouble, said):
    hub.troubles = [trouble]
    with pytest.raises(HubUnreachable, match=said):
        run("refresh", "--task", TASK)
    assert catalog.files(tmp_path) == []


def test_a_hub_that_stays_away_is_one_sentence(hub, run, slept):
    hub.status = 503
    with pytest.raises(HubUnreachable, match=r"HTTP status 503\); try again later"):
        run("refresh", "--task", TASK)
    assert slept == [1, 2, 4, 8, 8]


def test_answers_that_make_no_sense(hub, run, tmp_path):
    hub.listed = [{"id": 7, "downloads": 5}, {"downloads": 4}, described("acme/odd", 3, None, likes="many")]
    hub.listed[2] |= {"config": [], "safetensors": {"total": True}, "createdAt": "soon", "gated": "maybe"}
    assert "1 model, 0 with a place by trend." in run("refresh", "--task", TASK)
    (model,) = catalog.models(catalog.read(tmp_path / f"{TASK}.parquet"))
    assert model == catalog.Listed(
        model_id="acme/odd", task=TASK, license="mit", downloads=3, downloads_position=1
    )


def test_names_of_tasks_are_looked_at(run):
    with pytest.raises(TrnreadyError, match=r"'\.\./x' is no task; the Hub's are called such as"):
        run("refresh", "--task", "../x")


def test_check_says_what_has_to_be_mended(hub, run, tmp_path):
    hub.renamed = {"acme/old": "acme/m4"}
    hub.listed[2] |= {"gated": "auto"}
    hub.listed[3] |= {"pipeline_tag": "image-text-to-text"}
    names = ["m0", "old", "m2", "m3", "nothing", "deleted"]
    lines = [f"{{id: acme/{name}, task: {TASK}}}" for name in names]
    lines[-1] = f"{{id: acme/deleted, task: {TASK}, left_out: not_found, because: It is gone.}}"
    (tmp_path / "selected.yaml").write_text("models:\n" + "".join(f"  - {line}\n" for line in lines))
    assert run("check").splitlines() == [
        "acme/old is called acme/m4 now.",
        "acme/m2 is gated, and the list does not say so.",
        "acme/m3 is listed under image-text-to-text on the Hub, not text-generation.",
        "acme/nothing is not on the Hub (deleted, or private).",
        f"4 of 6 models to mend in {tmp_path / 'selected.yaml'}.",
    ]
    (tmp_path / "selected.yaml").write_text(f"models: [{lines[0]}, {lines[-1]}]")
    assert run("check") == f"The Hub has all 2 models of {tmp_path / 'selected.yaml'}.\n"
