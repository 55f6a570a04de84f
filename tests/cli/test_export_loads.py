"""Every exported model loads without dpft, by the code on its model card, with the same logits."""

import json
import re
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import trained_model_of_run
from tests.stories.tiny import Workspace
from tests.zoo.families import FAMILIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
BASES = {"causal": "gpt2", "masked": "bert", "seq2seq": "t5"}
METHODS = {
    "full": ("method=full",),
    "lora": ("method=lora", "method.rank=2"),
    "merged": ("method=lora", "method.rank=2"),
    "prefix": ("method=prefix", "method.length=3", "method.hidden=4"),
    "bitfit": ("method=bitfit",),
    "linear_probe": ("method=linear_probe",),
    "rgp": ("method=rgp",),
}
IMPOSSIBLE = {("prefix", "masked"), ("bitfit", "seq2seq"), ("linear_probe", "masked"),
              ("linear_probe", "seq2seq")}  # fmt: skip
PRIVATE = (
    "train.steps=1", "train.expected_batch_size=8", "train.learning_rate=0.1", "eval.enabled=false",
    "privacy.noise_multiplier=1", "privacy.accountant=rdp",
)  # fmt: skip
CORPUS = ("task=corpus", "task.data_dir=corpus.txt", "task.max_length=24")
REVIEWS = (
    "task=custom", "task.data_dir=reviews.jsonl", 'task.text="{review}"', "task.label=stars",
    "task.labels=[bad,good]", "task.max_length=24",
)  # fmt: skip
RUNS = {
    **{
        f"{base}-{method}": (BASES[base], CORPUS, METHODS[method])
        for base in BASES
        for method in METHODS
        if (method, base) not in IMPOSSIBLE
    },
    **{
        f"classifier-{base}-{method}": (base, REVIEWS, METHODS[method])
        for base in ("bert", "gpt2")
        for method in ("full", "lora")
    },
    "pooled-full": ("bert", (*REVIEWS, "model.pooling=mean"), METHODS["full"]),
    "pooled-merged": ("bert", (*REVIEWS, "model.pooling=mean"), METHODS["lora"]),
}
IDS = torch.tensor([[5, 7, 11, 13, 17], [3, 4, 8, 9, 6]])
LOADER = """
import json, sys
try:
    import dpft.errors
except ImportError:
    pass
else:
    raise SystemExit("dpft is installed")
import torch
from safetensors.torch import save_file
ids = torch.tensor({ids})
with torch.no_grad():
    for code, output in json.load(open(sys.argv[1])):
        names = {{}}
        exec(code, names)
        if "encoder" in names:
            logits = names["logits"]
        else:
            model = names["model"].eval()
            inputs = {{"input_ids": ids, "attention_mask": torch.ones_like(ids)}}
            if model.config.is_encoder_decoder:
                inputs["decoder_input_ids"] = ids
            logits = model(**inputs).logits
        save_file({{"logits": logits.contiguous()}}, output)
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a virtual environment that has the packages of this one, except dpft."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "python"


def usage(card: str) -> str:
    """Return the code on a model card."""
    found = re.search("```python\n(.*?)```", card, re.DOTALL)
    assert found is not None, card
    return found[1]


@torch.no_grad()
def logits_in_dpft(folder: Path) -> Tensor:
    """Return what dpft itself computes with a run's model."""
    config = saved_run(folder)
    trained = trained_model_of_run(folder, config)
    head = trained.head(config.task)
    model = trained.load(head).eval()
    inputs: dict[str, Any] = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    if trained.architecture.pooling is not None:
        inputs = dict(trained.processor(config.task, head)(["TEXT"], return_tensors="pt"))
    elif model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = IDS
    return model(**inputs).logits


def test_every_export_gives_the_same_logits_without_dpft(
    bare_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(tmp_path)
    rows = [{"review": f"the meal number {i} was fine", "stars": "good"} for i in range(24)]
    (tmp_path / "reviews.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "corpus.txt").write_text("".join(f"{row['review']}\n" for row in rows))
    for base in BASES.values():
        (tmp_path / base).mkdir()
        FAMILIES[base].write(tmp_path / base)
    jobs, expected = [], {}
    for name, (base, task, method) in RUNS.items():
        model = ("model=local", f"model.path={base}")
        untie = ("method.untie=true",) if name == "causal-linear_probe" else ()
        words = (*model, *task, *method, *untie, *PRIVATE, f"hydra.run.dir={name}")
        outcome = workspace.run("train", *words)
        assert outcome.code == 0, (name, outcome.err)
        target = f"exported/{name}"
        words = (f"run={name}", f"to={target}", "license=mit", f"base_model=acme/{base}")
        merges = "merge=true" if name.endswith("merged") else "merge=false"
        outcome = workspace.run("export", *words, merges)
        assert outcome.code == 0, (name, outcome.err)
        code = usage((tmp_path / target / "README.md").read_text())
        code = code.replace("PATH/TO/THIS/FOLDER", target).replace(f"acme/{base}", base)
        jobs.append((code, f"{name}.safetensors"))
        expected[name] = logits_in_dpft(Path(name))
        for path in (tmp_path / target).rglob("*"):
            assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes(), path
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    loader = [bare_python, "-c", LOADER.format(ids=IDS.tolist()), "jobs.json"]
    result = subprocess.run(loader, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    errors = {
        name: (load_file(f"{name}.safetensors")["logits"] - logits).abs().max().item()
        for name, logits in expected.items()
    }
    assert {name: error for name, error in errors.items() if error > 1e-5} == {}


@pytest.mark.parametrize(("method", "base"), sorted(IMPOSSIBLE))
def test_a_method_that_does_not_fit_the_model_is_rejected_by_name(
    method: str, base: str, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)
    (tmp_path / "corpus.txt").write_text("a text\n" * 24)
    (tmp_path / "base").mkdir()
    FAMILIES[BASES[base]].write(tmp_path / "base")
    model = ("model=local", "model.path=base")
    sentence = workspace.refusal("train", *model, *CORPUS, *METHODS[method], *PRIVATE)
    assert f"method={method}" in sentence
