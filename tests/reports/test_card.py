"""The model card of an export: metadata for the Hub, the guarantee, and code that loads it."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from dpft.constants import CLASSIFIER, IMAGE_CLASSIFIER, MASKED, SEQ2SEQ
from dpft.reports.card import HEAD, write_card
from tests.reports.folders import EXPORTED, read, write_run
from tests.reports.test_privacy_record import LEDGER
from tests.reports.test_report import private

PUBLISHED = {"source": "hub", "hub_name": "tuetschek/e2e_nlg", "data_dir": None}


def card(folder: Path, *, file: str = "model.safetensors", changed: Any = None, **changes: object):
    """Return the card of an exported folder with one file."""
    run = write_run(folder / "run", **changes)
    (folder / "export").mkdir()
    (folder / "export" / file).write_text("{}")
    write_card(read(run), EXPORTED.replace(**(changed or {})), folder / "export")
    return ModelCard((folder / "export" / "README.md").read_text())


def test_the_metadata_is_what_the_hub_reads(tmp_path: Path) -> None:
    data = card(tmp_path, file="adapter_config.json", task=PUBLISHED).data
    assert (data.base_model, data.base_model_relation) == ("openai-community/gpt2", "adapter")
    assert (data.library_name, data.pipeline_tag) == ("peft", "text-generation")
    assert (data.license, data.datasets) == ("mit", ["tuetschek/e2e_nlg"])
    assert {"differential-privacy", "dp-sgd", "dpft"} <= set(data.tags)
    assert [result.metric_value for result in data.eval_results] == [60.0]
    metadata = metadata_load(tmp_path / "export" / "README.md")
    assert metadata is not None
    _, (result,) = model_index_to_eval_results(metadata["model-index"])
    assert (result.dataset_type, result.metric_type) == ("tuetschek/e2e_nlg", "bleu")


@pytest.mark.parametrize(
    ("kind", "file", "tag", "library"),
    [
        (MASKED, "model.safetensors", "fill-mask", "transformers"),
        (SEQ2SEQ, "model.safetensors", "text-generation", "transformers"),
        (CLASSIFIER, "adapter_config.json", "text-classification", "peft"),
        (CLASSIFIER, HEAD, "feature-extraction", "transformers"),
        (IMAGE_CLASSIFIER, "model.safetensors", "image-classification", "transformers"),
        (CLASSIFIER, "dpft_adapter.json", "text-classification", None),
    ],
)
def test_the_pipeline_and_the_library_follow_the_model(
    tmp_path: Path, kind: str, file: str, tag: str, library: str | None
) -> None:
    written = card(tmp_path, file=file, changed={"kind": kind})
    assert (written.data.pipeline_tag, written.data.library_name) == (tag, library)
    assert ("```python" in written.text) == (library is not None)


def test_the_card_states_the_guarantee_and_how_the_model_was_trained(tmp_path: Path) -> None:
    text = card(tmp_path).text
    assert "ε = 2.9900" in text and LEDGER.head in text and "Not covered" in text
    assert (
        "| privacy unit | one example |" in text
        and "| learning rate |" in text
        and "bibtex" in text
    )


def test_the_card_names_no_folder_and_no_score_of_a_private_split(tmp_path: Path) -> None:
    """docs/dev/design.md, rule 8."""
    model = {"name": "gpt2", "path": "/home/alice/gpt2", "hub_name": "openai-community/gpt2"}
    task = {"source": "hub", "hub_name": "alice/own", "data_dir": "/home/alice/data"}
    scores = {"bleu": 61.25, "public": False, "publish": True}
    written = card(tmp_path, **scores, model=model, task=task)
    assert written.data.datasets is None and written.data.eval_results is None
    assert "/home/alice" not in written.content and "bleu" not in written.content.lower()
    assert "alice/own" not in written.content and "# gpt2 fine-tuned on E2E" in written.text


def test_a_card_of_a_run_that_is_not_private_does_not_claim_privacy(tmp_path: Path) -> None:
    written = card(tmp_path, privacy=private(reproducible=True))
    assert not {"differential-privacy", "dp-sgd"} & set(written.data.tags)
    assert "NOT PRIVATE" in written.text


def test_the_code_names_the_repository_of_an_upload(tmp_path: Path) -> None:
    text = card(tmp_path, changed={"repository": "acme/mine"}).text
    assert 'folder = "acme/mine"' in text and "from_pretrained(folder)" in text
