import pytest
import torch
from torch import Tensor

from dpft.privacy.clipping.separation.fingerprints import (
    adds_up,
    alike,
    fingerprints_of,
    scaled,
    size_of,
)


def gradients(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {
        name: torch.randn(shape, generator=generator)
        for name, shape in (("matrix", (30, 7)), ("bias", (7,)), ("number", ()))
    }
    # Large, since one number may be nearly at right angles to all directions of this process.
    return {**found, "number": 10.0 + found["number"]}


ONE, OTHER = gradients(1), gradients(2)
BOTH = {name: ONE[name] + OTHER[name] for name in ONE}
PARTS = [fingerprints_of(ONE), fingerprints_of(OTHER)]


def changed(of: dict[str, Tensor], name: str, change: object) -> dict[str, Tensor]:
    return fingerprints_of({**of, name: of[name] * change})


def test_the_gradient_of_all_losses_adds_up_from_those_of_parts() -> None:
    assert adds_up(fingerprints_of(BOTH), PARTS, torch.float32)
    assert alike(fingerprints_of(ONE), fingerprints_of(dict(ONE)), torch.float32)


@pytest.mark.parametrize("name", ONE)
def test_one_that_is_another_in_one_parameter_does_not(name: str) -> None:
    assert not adds_up(changed(BOTH, name, 1.1), PARTS, torch.float32)
    assert not alike(fingerprints_of(ONE), changed(ONE, name, 1.1), torch.float32)


def test_one_that_is_turned_within_its_norm_does_not() -> None:
    turned = {**BOTH, "matrix": BOTH["matrix"].roll(1, 0)}
    assert not adds_up(fingerprints_of(turned), PARTS, torch.float32)


def test_a_parameter_that_has_a_gradient_in_parts_alone_does_not() -> None:
    whole = fingerprints_of({name: BOTH[name] for name in ("matrix", "bias")})
    assert not adds_up(whole, PARTS, torch.float32)
    assert adds_up({}, [{}, {}], torch.float32)


def test_a_gradient_that_is_finite_among_others_alone_or_without_them_alone_is_another() -> None:
    lost = changed(ONE, "bias", torch.nan)
    assert alike(lost, fingerprints_of(ONE), torch.float32)
    assert not alike(fingerprints_of(ONE), lost, torch.float32)
    assert alike(fingerprints_of(ONE), lost, torch.bfloat16)
    whole = changed(BOTH, "bias", torch.inf)
    for one, parts in ((whole, PARTS), (fingerprints_of(BOTH), [lost, PARTS[1]])):
        assert not adds_up(one, parts, torch.float32)
        assert adds_up(one, parts, torch.bfloat16)
    assert adds_up(whole, [lost, PARTS[1]], torch.float32)


def test_fingerprints_of_larger_gradients_are_as_much_larger() -> None:
    doubled = fingerprints_of({name: 2.0 * gradient for name, gradient in ONE.items()})
    assert alike(scaled(PARTS[0], 2.0), doubled, torch.float64)
    every = torch.cat([gradient.flatten() for gradient in ONE.values()])
    assert size_of(PARTS[0]) == pytest.approx(float(every.norm()), rel=1e-6)
