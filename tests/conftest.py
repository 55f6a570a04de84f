"""What every test has: no network, one thread, known times, and answers of accountants to share."""

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import absl.logging
import pytest

from dpft.privacy.accounting import accountants
from dpft.privacy.accounting.mechanism import Epsilon, Mechanism
from dpft.reports import rendering
from dpft.strict_model import as_json
from tests import slowness
from tests.kept_values import KeptValues, lasting_folder

# Set before torch or a Hugging Face library is imported, here and in every child process.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until all tests are collected: importing them makes millions of lasting objects

# When Hydra configures logging, absl closes the sys.stderr of its import, but not the real one.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

HERE = Path(__file__).parent
LONG_FOLDERS = ("stories", "synthesis", "commands", "training", "cli", "audit", "privacy")
"""They come first, so that both workers end at about the same time."""
ONE_THREAD = int(os.environ["OMP_NUM_THREADS"])
LOOPBACK = ("127.", "::1", "localhost")
PLOTTED = (
    *("epsilon", "epsilon_curve", "steps_taken", "selection", "accountant"),
    *("noise_multiplier", "sample_rate", "delta"),
)
"""The fields of privacy.json that a plot of epsilon shows."""

_attempts: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the session before any test file is imported."""
    # A shell starts background processes with interrupts ignored, and the commands that tests
    # start and interrupt would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    slowness.LEFT_OUT = config.option.markexpr == "not slow"
    rendering.epsilon_plot = drawn_once(rendering.epsilon_plot)


def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[Any] | None:
    """Make no case of a slow test if no slow test is asked for."""
    if not (slowness.LEFT_OUT and name.startswith("test")):
        return None
    marks = (*collector.iter_markers(), *getattr(obj, "pytestmark", ()))
    return [] if any(mark.name == "slow" for mark in marks) else None


def drawn_once(plot: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of a plot that draws equal plots once."""
    drawn = dict[str, Any]()

    @wraps(plot)
    def plot_once(privacy: Any) -> Any:
        shown = {name: as_json(getattr(privacy, name, None)) for name in PLOTTED}
        if (key := json.dumps(shown, sort_keys=True)) not in drawn:
            drawn[key] = plot(privacy)
        return drawn[key]

    return plot_once


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that CI leaves out, and put long folders first."""
    slowness.mark_exhaustive(items, HERE)
    place = {name: number for number, name in enumerate(LONG_FOLDERS)}
    depth = len(HERE.parts)
    items.sort(key=lambda item: place.get("".join(item.path.parts[depth : depth + 1]), len(place)))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking through libraries and tests again and again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
    if "tests.parallel.forked" in sys.modules:
        # Before any test has run, because threads that a test leaves cannot be forked.
        sys.modules["tests.parallel.forked"].start_server()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all its test workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def lasting_answers(shared_folder: Path) -> dict[Any, Any]:
    """The answers of these accountants, also from earlier sessions."""
    libraries = ("dp_accounting", "prv_accountant", "scipy", "numpy")
    sources = Path(accountants.__file__).parent
    return KeptValues(lasting_folder("answers", shared_folder, [sources], *libraries), Epsilon)


@pytest.fixture(scope="module")
def shared_accounting(
    request: pytest.FixtureRequest, lasting_answers: dict[Any, Any]
) -> Iterator[None]:
    """Let every command share the accountants' answers; see ``sharing`` for ``PRV_ITSELF``."""
    with sharing(lasting_answers, prv_itself=getattr(request.module, "PRV_ITSELF", False)):
        yield


@contextmanager
def sharing(answers: dict[Any, Any], *, prv_itself: bool = False) -> Iterator[None]:
    """Let every command inside the block share these answers of accountants.

    PRV takes half as long as a tiny run, so PLD's bound replaces its answer, unless ``prv_itself``.
    """
    ask = accountants._answer

    def answer(
        name: str, mechanism: Mechanism, options: tuple[tuple[str, Any], ...]
    ) -> Epsilon | str:
        if name == "prv" and not prv_itself:
            bound = answer("pld", mechanism, ())
            if isinstance(bound, str):
                return bound
            assert bound.upper is not None
            return replace(bound, lower=max(0.0, bound.upper - 0.01), estimate=bound.upper)
        key = (name, mechanism, options)
        if key not in answers:
            answers[key] = ask(*key)
        shared: Epsilon | str = answers[key]
        return shared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountants, "_answer", answer)
        yield


@pytest.fixture(scope="session", autouse=True)
def known_times() -> Iterator[None]:
    """Let two plans of one machine state the same time, and no test wait for the disk.

    Tests that look at what is synchronized set ``os.fsync`` themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpft.training.step_time._timed", lambda work: (work(), 1e-3)[1])
        patch.setattr("dpft.training.step_time.SECONDS", 0.0)
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Take back the threads that a test gave torch: next to another worker, they would spin."""
    yield
    if (torch := sys.modules.get("torch")) and torch.get_num_threads() != ONE_THREAD:
        torch.set_num_threads(ONE_THREAD)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that looks up or connects to any host but this one, even if it recovers."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def refuse_others(host: object) -> None:
        name = host.decode() if isinstance(host, bytes) else str(host or "localhost")
        if not name.startswith(LOOPBACK):
            _attempts.append(name)
            raise OSError(f"tests open no network connection, not to {name}")

    def guarded_connect(self: socket.socket, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            refuse_others(address[0])
        connect(self, address)

    def guarded_look_up(host: object, *args: object, **kwargs: object) -> object:
        refuse_others(host)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    _attempts.clear()
    yield
    assert not _attempts, f"the test tried to reach {', '.join(_attempts)}"
