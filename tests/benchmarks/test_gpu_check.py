import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check, gpu_exactness, gpu_speed
from benchmarks.gpu_exactness import Clipped, exactness, noise_bits, tails
from benchmarks.gpu_lines import Given, Line, Verdict
from benchmarks.gpu_runs import same_bits
from dpft.errors import InputError
from dpft.privacy import noise

QUICK = Given(device="cpu", quick=True, folder="unused")


def crash(given: Given) -> Verdict:
    print("what it did before")
    raise ValueError("it broke\nfor good")


def sleep(given: Given) -> Verdict:
    time.sleep(60)
    return Verdict(True, "awake")


def line(work, limit: float = 30.0, **options) -> Line:
    return Line(work=work, limit=limit, says="a limit", **options)


CRAFTED = {
    "crash": line(crash),
    "die": line(lambda given: os._exit(7)),
    "sleep": line(sleep, limit=0.3),
    "good": line(lambda given: Verdict(True, "as it should")),
    "measured": line(lambda given: Verdict(None, "12 ms", {"ms": 12}), alone=True),
}


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(gpu_check, "LINES", CRAFTED)

    def check(*words: str) -> tuple[int, Path]:
        page = tmp_path / "results.md"
        return gpu_check.main(["--device", "cpu", "--to", str(page), *words]), page

    return check


@pytest.mark.slow
def test_lines_fail_by_themselves_and_the_others_go_on(checked, capsys):
    begun = time.monotonic()
    code, page = checked("--together", "2")
    assert code == 1 and time.monotonic() - begun < 30
    rows = {
        row[1].strip(): [cell.strip() for cell in row[2:5]]
        for row in (each.split("|") for each in page.read_text().splitlines())
        if len(row) > 5
    }
    assert rows["crash"] == ["FAILS", "a limit", "ValueError: it broke for good"]
    assert rows["die"] == ["FAILS", "a limit", "ended with code 7, no word said"]
    assert rows["sleep"][0] == "FAILS" and "more than 0 s" in rows["sleep"][2]
    assert rows["good"] == ["holds", "a limit", "as it should"]
    assert rows["measured"] == ["measured", "a limit", "12 ms"]
    log = page.with_suffix(".log").read_text()
    assert "== crash" in log and "what it did before" in log and "== good" not in log
    numbers = [json.loads(each) for each in page.with_suffix(".jsonl").read_text().splitlines()]
    assert {each["line"] for each in numbers} == set(CRAFTED)
    assert "5 lines in" in capsys.readouterr().out


@pytest.mark.slow
def test_what_holds_ends_well_and_what_has_no_time_left_fails(checked):
    assert checked("--only", "good,measured")[0] == 0
    code, page = checked("--only", "good", "--seconds", "1")
    assert code == 1 and "out of the time of all lines" in page.read_text()


def test_a_device_that_is_not_there_is_refused_in_one_sentence(checked, capsys):
    code, page = checked("--device", "npu")
    assert code == 2 and not page.exists()
    assert "needs a device of kind npu" in capsys.readouterr().err


def test_an_unknown_line_is_refused():
    with pytest.raises(SystemExit, match="got 'nothing'"):
        gpu_check.chosen("nothing")
    assert set(gpu_check.chosen("tails_b,step")) == {"tails_bf16", "step_full", "step_lora"}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch):
    """One method and one way of it."""
    monkeypatch.setattr(gpu_exactness, "METHOD_SETTINGS", {"bitfit": {}})
    monkeypatch.setattr(gpu_exactness, "ENGINE_NAMES", ())


@pytest.mark.slow
def test_exactness_holds_and_compares_something(few):
    verdict = exactness(QUICK, shape="gpt2")
    assert verdict.holds and set(verdict.numbers) == {
        f"bitfit/{case}" for case in ("float64", "auto", "checkpointing")
    }
    assert 0 < verdict.numbers["bitfit/auto"] < 1e-5


@pytest.mark.slow
def test_a_sum_that_is_off_by_a_ten_thousandth_fails(few, monkeypatch: pytest.MonkeyPatch):
    own = gpu_exactness.clipped_by_dpft

    def off(*args, **kwargs) -> Clipped:
        found = own(*args, **kwargs)
        return replace(found, gradients={n: g * 1.0001 for n, g in found.gradients.items()})

    monkeypatch.setattr(gpu_exactness, "clipped_by_dpft", off)
    verdict = exactness(QUICK, shape="gpt2")
    assert verdict.holds is False and verdict.seen.startswith("too far: bitfit/float64 1.0e-04")


def test_ways_that_are_all_refused_are_no_exactness(few, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args, **kwargs):
        raise InputError("not that")

    monkeypatch.setattr(gpu_exactness, "clipped_by_dpft", refuse)
    assert exactness(QUICK, shape="gpt2").holds is False


@pytest.mark.slow
def test_a_share_beyond_the_norm_fails(monkeypatch: pytest.MonkeyPatch):
    own = gpu_exactness.clipped_by_dpft

    def beyond(model, layout, batches, norm, **options) -> Clipped:
        return own(model, layout, [batches[0][:2]], norm * 1.0001, **options)

    monkeypatch.setattr(gpu_exactness, "clipped_by_dpft", beyond)
    assert tails(QUICK, precision="bf16").holds is False


@pytest.mark.slow
def test_noise_that_is_not_the_cpus_fails(monkeypatch: pytest.MonkeyPatch):
    assert noise_bits(QUICK).holds
    own = noise.BlockNoise._words
    drawn = []

    def other(blocks, parameter, block, count):
        drawn.append(block)
        words = own(blocks, parameter, block, count)
        return words + 2**20 if len(drawn) % 2 else words

    monkeypatch.setattr(noise.BlockNoise, "_words", other)
    assert noise_bits(QUICK).holds is False


def test_weights_that_are_missing_or_moved_are_not_the_same():
    one = {"a": torch.ones(3)}
    assert same_bits(one, {"a": torch.ones(3)})
    assert not same_bits(one, {}) and not same_bits(one, {"a": torch.ones(3) + 1e-7})


@pytest.mark.slow
def test_private_micro_batches_are_timed_beside_ordinary_ones():
    workload, target = gpu_speed.MEASURED["gpt2_bitfit"]
    verdict = gpu_speed.throughput(QUICK, workload=workload, target=target)
    assert verdict.holds is None and verdict.numbers["costs"][0]["launches"] > 0
    assert len(verdict.numbers["private"]) >= 2 and "tokens/s" in verdict.seen
