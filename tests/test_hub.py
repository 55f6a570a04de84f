"""Whether the Hugging Face hub answers, asked once and quickly."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from huggingface_hub import constants

from dpft.hub import hub_is_reachable


@pytest.fixture
def unasked_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    hub_is_reachable.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield
    hub_is_reachable.cache_clear()


@pytest.mark.usefixtures("unasked_hub")
def test_a_port_where_nobody_listens_is_not_reachable(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert not hub_is_reachable()


@pytest.mark.usefixtures("unasked_hub")
def test_an_answer_of_any_kind_counts(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.HTTPError("http://x", 403, "no", None, None)

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    assert hub_is_reachable()


@pytest.mark.usefixtures("unasked_hub")
def test_offline_mode_asks_nothing(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("asked the network"))
    assert not hub_is_reachable()
