import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from dpft.privacy.accounting.batch_sizes import BatchSizeNoise
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport
from dpft.records.costs import NoAnswer
from dpft.records.form import as_json
from dpft.reports.epsilon import (
    curve_table,
    failure_notes,
    noise_record,
    noise_table,
    plot_effective_noise,
    plot_epsilon_over_steps,
)
from tests.slowness import slow


def report(steps: int) -> AccountingReport:
    mechanism = SampledGaussian(noise_multiplier=1, sample_rate=0.1, steps=steps, delta=1e-5)
    epsilons = {"rdp": 3.0 * steps, "gdp": 2.0, "pld": 2.0 * steps, "prv": NoAnswer(error="no")}
    return AccountingReport(
        mechanism=mechanism,
        epsilon=2.0 * steps,
        delta=mechanism.delta,
        accountant="pld",
        epsilons=epsilons,
    )


def noise(rate: float, multiplier: float | None) -> BatchSizeNoise:
    return BatchSizeNoise(
        expected_batch_size=rate, sample_rate=rate, steps=1, noise_multiplier=multiplier
    )


def texts(path: Path) -> set[str]:
    """The words in an SVG, which are text and not outlines."""
    return {"".join(node.itertext()).strip() for node in ElementTree.parse(path).iter()}


def test_epsilon_over_steps_names_every_accountant_that_answered(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    plot_epsilon_over_steps([report(1), report(2)], path)
    found = texts(path)
    assert {"steps", "rdp (upper bound)", "pld (upper bound)", "gdp (estimate, no bound)"} <= found
    assert not any(text.startswith("prv") for text in found)


@pytest.mark.slow
def test_the_same_numbers_are_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("svg", "png"):
        paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
        for path in paths:
            plot_epsilon_over_steps([report(1), report(2)], path)
        assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("multipliers", [(2.0, 3.0), *slow(((None, 3.0),), ((None, None),))])
def test_effective_noise_has_a_panel_for_each_thing_fixed(
    tmp_path: Path, multipliers: tuple[float | None, float | None]
) -> None:
    points = [noise(0.1, multipliers[0]), noise(1.0, multipliers[1])]
    path = tmp_path / "noise.svg"
    plot_effective_noise([("fixed steps", points), ("fixed epochs", points)], path)
    assert {"fixed steps", "fixed epochs"} <= texts(path)
    assert ("square-root rule" in texts(path)) is (multipliers[1] is not None)


def test_the_curves_table_rounds_up_and_says_who_failed_where() -> None:
    first = replace(report(1), epsilon=2.00001)
    lines = curve_table([first, report(3)]).splitlines()
    assert lines[1].split() == ["1", "3.0000", "2.0000", "2.0000", "-", "2.0001", "pld"]
    assert failure_notes([first, report(3)]) == [
        "prv gave no bound at 2 of 2 points, steps 1, 3: no"
    ]
    assert "warning: prv gave no bound at 2 of 2 points" in "\n".join(lines)


def test_a_batch_size_without_noise_says_why() -> None:
    failed: BatchSizeNoise = replace(noise(0.1, None), error="eps=1 is out of reach.")
    points = [failed, noise(1.0, 3.0)]
    assert "eps=1 is out of reach." in noise_table({"steps = 1": points})
    assert "noise_multiplier" not in as_json(noise_record(points)[0])
    assert noise_record(points)[1].effective_noise_multiplier == 3.0
