"""Every family of the zoo: its folder as transformers reads it, and every command of dpft on it.

``make families`` runs these tests with ``DPFT_FAMILIES`` set to a folder, where each family leaves
its results for the table in docs/how-to/model-families.md.
"""

import json
import os
import re
from pathlib import Path

import joblib  # noqa: F401  it writes to the environment, which commands are checked to leave alone
import pytest
import sklearn.datasets  # noqa: F401  as joblib
import transformers
from transformers import AutoTokenizer

import dpft.commands.train  # noqa: F401  as joblib
from docs.tools.families import PAGE
from tests.slowness import exhaustive_but, slow_but
from tests.zoo.families import FAMILIES, IMAGE
from tests.zoo.features import LACKS, POOLED, WORKS, tried
from tests.zoo.methods import EXACT, METHOD_SETTINGS, method_result


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("llama3", "bert"), FAMILIES))
def test_transformers_loads_the_published_folder(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    found = (config.get("architectures") or ["DebertaV2Model"])[0]
    _, loading = getattr(transformers, found).from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    if family.kind == IMAGE:
        return
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.chat_template is not None) == family.has_chat_template
    assert tokenizer("the key").input_ids


def test_the_page_has_a_row_for_each_family() -> None:
    page = PAGE.read_text()
    assert all(f"\n| {family.title} |" in page for family in FAMILIES.values())


OF_CI = ("llama3", "qwen3_5", "mamba2", "bart", "vit")
"""One each that attends, mixes attention with another layer, has none, encodes and sees."""


@pytest.mark.slow
@pytest.mark.usefixtures("shared_accounting")
@pytest.mark.parametrize("name", exhaustive_but(OF_CI, FAMILIES))
def test_every_command_works_or_names_the_limit(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    attempt = tried(family, tmp_path)
    features = dict(attempt.results())
    worked = (WORKS, POOLED, LACKS)
    failed = {feature: text for feature, text in features.items() if text not in worked}
    methods: dict[str, str] = {}
    if features["train"] == WORKS:
        model = tmp_path / "model"
        methods = {method: method_result(family, model, method) for method in METHOD_SETTINGS}
    if results := os.environ.get("DPFT_FAMILIES"):
        Path(results).mkdir(parents=True, exist_ok=True)
        found = {"features": features, "methods": methods}
        Path(results, f"{name}.json").write_text(json.dumps(found))
    unexpected = {
        feature: text
        for feature, text in failed.items()
        if not re.search(family.limits.get(feature, family.limits.get("train", r"\Z.")), text)
    }
    assert not unexpected
    assert family.limits.keys() <= failed.keys()
    assert methods.get("full", EXACT) == EXACT
