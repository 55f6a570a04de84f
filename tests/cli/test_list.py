"""What there is to choose from, listed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dpft.cli.main import main
from dpft.commands.listing import HEADER, LISTED, ListedModel, listed, models
from dpft.commands.plan import describe_run
from dpft.config.load import config_directory
from dpft.config.schema import PlanConfig
from dpft.errors import InputError
from dpft.reports.plan_table import OpenPlan, PrivatePlan
from tests.config.test_conf import loaded
from tests.models.test_language_conf import SIZES as LANGUAGE_MODELS
from tests.slowness import slow_but

MODELS = sorted((config_directory() / "model").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("what", slow_but([*LISTED][:2], LISTED))
def test_everything_is_listed_with_a_line(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(listed(what)) + (what == "models") > 5
    assert all(len(line.split(maxsplit=1)) == 2 and "Run:" not in line for line in lines)


@pytest.mark.slow
def test_a_program_reads_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tasks", "output=json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["sst2"].startswith("SST-2")


@pytest.mark.slow
def test_without_an_argument_the_categories_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["tasks", "models", "methods", "recipes", "metrics"]


@pytest.mark.slow
def test_what_cannot_be_listed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "sheep"]) == 2
    assert "recipes" in capsys.readouterr().err


def test_models_are_a_table_that_needs_no_torch() -> None:
    code = (
        "import sys; from dpft.cli.main import main; code = main(['list', 'models']);"
        "assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    header, *lines = done.stdout.splitlines()
    assert re.split(r"\s{2,}", header) == list(HEADER)
    rows = {line.split()[0]: re.split(r"\s{2,}", line) for line in lines}
    assert rows["smollm2-135m-instruct"][1:3] == ["134.5M", "apache-2.0"]
    assert rows["llama-3.2-3b"][1:3] == ["3.21B", "llama3.2"]
    assert rows["local"][1:4] == ["-", "-", "-"]  # has no architecture, license and weights
    assert rows["resnet18"][3] == "-"  # has no layer that LoRA changes
    columns = [header.index(name) for name in HEADER]
    assert all(line[start - 1] == " " != line[start] for line in lines for start in columns[1:])


def test_models_as_json_have_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models", "output=json"]) == 0
    listing = json.loads(capsys.readouterr().out)["models"]
    assert {*listing} == {file.stem for file in MODELS}
    phi = listing["phi-4-mini"]
    assert (phi["parameters"], phi["license"]) == (3_836_021_760, "mit")
    assert phi["lora_memory_gb"] > 4 * phi["parameters"] / 1e9
    assert {*listing["local"]} == {"description"}


def plan_record(file: Path, *words: str) -> PrivatePlan | OpenPlan:
    """Return a plan for one record at once: 512 tokens, or an image of the YAML's task."""
    task = ["task=e2e", "task.max_length=512"]
    if file.stem not in LANGUAGE_MODELS:
        task = re.findall(r"task=\S+", file.read_text())[:1]
    common = ["privacy.noise_multiplier=1", "plan.measure=false", "train.micro_batch_size=1"]
    config = loaded("plan", [*task, *common, f"model={file.stem}", "train.device=cpu", *words])
    assert isinstance(config, PlanConfig)
    return describe_run(config).record


def computed_facts(file: Path) -> tuple[int, float | None]:
    """Return the number of parameters and the memory of LoRA in GB, as ``dpft plan`` has them."""
    try:
        plan = plan_record(file, "method=lora", "method.rank=8")
    except InputError as error:
        assert error.faults[0].key == "method.targets"
        return plan_record(file, "method=full").parameters.total, None
    parameters = plan.parameters
    return parameters.total - parameters.trainable, plan.memory_per_rank_bytes.total / 1e9


def can_be_planned(file: Path) -> bool:
    """Whether the YAML is enough to plan a run, without a tokenizer and without timm."""
    return OmegaConf.load(file).architecture.get("model_type") not in (None, "t5", "timm_wrapper")


@pytest.mark.slow
@pytest.mark.parametrize("file", MODELS, ids=lambda file: file.stem)
def test_the_facts_of_a_model_are_those_that_dpft_plan_computes(file: Path) -> None:
    model: ListedModel = models()[file.stem]
    if not can_be_planned(file):
        assert (model.parameters, model.lora_memory_gb) == (None, None)
        return
    parameters, memory = computed_facts(file)
    assert model.parameters == parameters
    assert model.lora_memory_gb == (None if memory is None else pytest.approx(memory, abs=0.051))
