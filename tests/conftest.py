"""What every test has: no network, one thread per process, answers of accountants that are kept."""

import copy
import gc
import io
import json
import logging
import os
import pickle
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import IO, Any

import absl.logging
import pytest
import yaml
from _pytest.logging import catching_logs
from hydra._internal import config_loader_impl as hydra_loader
from hydra._internal import defaults_list as hydra_defaults
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.defaults_list import Overrides
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Metadata
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from dpft.config.load import config_directory
from dpft.privacy.accounting import accountants
from dpft.privacy.accounting.mechanism import Epsilon, Mechanism
from dpft.reports import rendering as pages
from dpft.strict_model import as_json
from tests import slowness
from tests.kept_values import KeptValues, lasting_folder

# Set before torch or a Hugging Face library is imported, here and in every child process.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)
os.environ.setdefault("OMP_NUM_THREADS", "1")

# absl closes whatever stream was sys.stderr when it was imported, pytest's capture included, as
# soon as Hydra configures logging; it leaves the real one alone.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

HERE = Path(__file__).parent
SHIPPED = str(config_directory())
LONG_FOLDERS = (
    "test_pretended_device.py", "synthesis", "stories", "commands", "training", "cli", "audit",
)  # fmt: skip
ONE_THREAD = int(os.environ["OMP_NUM_THREADS"])
LOOPBACK = ("127.", "::1", "localhost")

PLOTTED = (
    *("epsilon", "epsilon_curve", "steps_taken", "selection", "accountant"),
    *("noise_multiplier", "sample_rate", "delta"),
)
"""What of privacy.json a plot of epsilon shows."""

_attempts: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Before any file of tests is imported: no slow case is made where none is asked for."""
    # A shell starts background processes with interrupts ignored, and the commands that tests
    # start and interrupt would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    slowness.LEFT_OUT = config.option.markexpr == "not slow"
    pages.epsilon_plot = drawn_once(pages.epsilon_plot)
    pages.draw_svg = drawn_in_one_pass(pages.draw_svg)
    catching_logs.__enter__ = attached_to_few  # type: ignore[method-assign]


_others: dict[int, list[logging.Logger]] = {}
"""Loggers but torch's, by how many loggers there are."""


def attached_to_few(self: catching_logs[Any]) -> logging.Handler:
    """Spares each test seven hundred handlers, put on and off sixty loggers of torch's."""
    root, known = logging.getLogger(), logging.root.manager.loggerDict
    if len(known) not in _others:
        loggers = [each for each in known.values() if isinstance(each, logging.Logger)]
        _others[len(known)] = [each for each in loggers if not each.name.startswith("torch")]
    if self.level is not None:
        self.handler.setLevel(self.level)
        self.orig_level = root.level
        root.setLevel(min(root.level, self.level))
    for logger in (root, *(each for each in _others[len(known)] if not each.propagate)):
        logger.addHandler(self.handler)
        self.attached_loggers.append(logger)
    handler: logging.Handler = self.handler
    return handler


def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[Any] | None:
    """Makes no case of a test that is slow as a whole where none is asked for."""
    if not (slowness.LEFT_OUT and name.startswith("test")):
        return None
    marks = (*collector.iter_markers(), *getattr(obj, "pytestmark", ()))
    return [] if any(mark.name == "slow" for mark in marks) else None


def drawn_in_one_pass(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Spares each figure the passes that find where its texts would touch: half of its time."""

    @wraps(draw)
    def draw_plainly(*args: Any, **given: Any) -> Any:
        from matplotlib.figure import Figure

        with pytest.MonkeyPatch.context() as patch:
            lay_out = Figure.set_layout_engine
            patch.setattr(Figure, "set_layout_engine", lambda own, *_, **__: lay_out(own, "none"))
            return draw(*args, **given)

    return draw_plainly


def drawn_once(plot: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Spares the reports of runs that cost the same an eighth of what a tiny run takes.

    A plot is remembered by all that it shows.
    """
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
    """Marks the cases that CI leaves out, and puts long folders first.

    Long folders come first so that both workers end at about the same time.
    """
    slowness.mark_exhaustive(items, HERE)
    place = {name: number for number, name in enumerate(LONG_FOLDERS)}
    depth = len(HERE.parts)
    items.sort(key=lambda item: place.get("".join(item.path.parts[depth : depth + 1]), len(place)))


def pytest_collection_finish() -> None:
    """Spares the garbage collector the libraries and tests, a twelfth of the time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    if "tests.parallel.forked" in sys.modules:
        # Before any test has run, since threads that a test leaves cannot be forked.
        sys.modules["tests.parallel.forked"].start_server()


def _is_loopback(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else str(host or "localhost")
    return name.startswith(LOOPBACK)


def _refuse(host: object) -> None:
    if not _is_loopback(host):
        _attempts.append(str(host))
        raise OSError(f"tests open no network connection, not to {host!r}")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all its test workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def lasting_answers(shared_folder: Path) -> dict[Any, Any]:
    """What these accountants answered, in a run of the tests before as well."""
    libraries = ("dp_accounting", "prv_accountant", "scipy", "numpy")
    sources = Path(accountants.__file__).parent
    return KeptValues(lasting_folder("answers", shared_folder, sources, *libraries), Epsilon)


@pytest.fixture(scope="module")
def shared_accounting(
    request: pytest.FixtureRequest, lasting_answers: dict[Any, Any]
) -> Iterator[None]:
    """Lets every command share the accountants' answers.

    A file of tests of what PRV says of a run says ``PRV_ITSELF = True``.
    """
    with sharing(lasting_answers, prv_itself=getattr(request.module, "PRV_ITSELF", False)):
        yield


@contextmanager
def sharing(answers: dict[Any, Any], *, prv_itself: bool = False) -> Iterator[None]:
    """Lets every command inside the block share these answers of accountants.

    For PRV, which takes half as long as a tiny run to answer, PLD's bound stands in.
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
        found: Epsilon | str = answers[key]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountants, "_answer", answer)
        yield


@pytest.fixture(scope="session", autouse=True)
def new_parameters_found_once() -> Iterator[None]:
    """Spare each run three models without storage, made for the names of new parameters."""
    from dpft.models import loading

    find, found = loading.new_parameters, dict[str, Any]()

    @wraps(find)
    def find_once(config: Any, *more: Any, **given: Any) -> Any:
        key = repr((config.architectures, _words_of(config), more, given))
        if key not in found:
            found[key] = find(config, *more, **given)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "new_parameters", find_once)
        yield


def _words_of(config: Any) -> object:
    """Return the values of a configuration: its own repr leaves out defaults, which is slower."""
    own = getattr(config, "__dict__", config)
    if not isinstance(own, dict):
        return own
    return (type(config), {name: own[name] for name in own if name != "_name_or_path"})


@pytest.fixture(scope="session", autouse=True)
def yaml_read_once() -> Iterator[None]:
    """Spares parsing the same files a thousand times: each text is parsed once, and copied."""
    parse, parsed = yaml.load, dict[tuple[str, str], bytes]()

    def of_c(Loader: type) -> type:
        """Returns the same loader with libyaml's parser, eight times as fast, where it is there."""
        if not yaml.__with_libyaml__:
            return Loader
        from yaml.cyaml import CParser

        def begin(self: Any, stream: str) -> None:
            CParser.__init__(self, stream)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

        return type(Loader.__name__, (CParser, Loader), {"__init__": begin})

    def load(stream: IO[str] | str, Loader: type) -> Any:
        if Loader.__name__ not in ("OmegaConfLoader", "SafeLoader"):
            return parse(stream, Loader)
        text = stream if isinstance(stream, str) else stream.read()
        if not isinstance(text, str):
            return parse(text, Loader)
        if (key := (Loader.__name__, text)) not in parsed:
            named = io.StringIO(text)
            named.name = getattr(stream, "name", "<unicode string>")
            try:
                found = parse(text, of_c(Loader))
            except yaml.YAMLError:  # which the slow parser says in more words
                found = parse(named, Loader)
            parsed[key] = pickle.dumps(found)
        return pickle.loads(parsed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "load", load)
        yield


@pytest.fixture(scope="session", autouse=True)
def shipped_configuration_composed_once(shared_folder: Path) -> Iterator[None]:
    """Spares composing most of its time: Hydra is given a copy of what it made of these choices.

    It made it here, in another test worker or in a run of the tests before. Nothing else is
    remembered: keys that are overridden are set anew, and a folder of a user's own
    configurations, which may change, is read each time.
    """
    make_list = hydra_loader.create_defaults_list
    libraries = ("hydra", "omegaconf", "yaml", "hydra_plugins")
    folder = lasting_folder("compositions", shared_folder, Path(SHIPPED), *libraries)
    known = KeptValues(folder, bytes)
    merge = hydra_loader.ConfigLoaderImpl._compose_config_from_defaults_list

    def remembered(make: Callable[[], Any], repo: Any, *asked: object) -> Any:
        sources = [(each.scheme(), each.provider, each.path) for each in repo.get_sources()]
        if any(path != SHIPPED for scheme, _, path in sources if scheme == "file"):
            return make()
        key = (repr(sources), *map(repr, asked))
        if key not in known:
            known[key] = pickle.dumps(make())
        return pickle.loads(known[key])

    @wraps(make_list)
    def list_once(
        repo: Any, config_name: str, overrides_list: Any, prepend_hydra: bool, skip_missing: bool
    ) -> Any:
        choices = (config_name, prepend_hydra, skip_missing)
        asked = Overrides(repo, overrides_list)
        changed = (asked.override_choices, asked.append_group_defaults, asked.deletions)

        def make() -> Any:
            return make_list(repo, config_name, overrides_list, prepend_hydra, skip_missing)

        made = remembered(make, repo, "list", choices, changed)
        made.config_overrides = asked.config_overrides
        return made

    @wraps(merge)
    def merge_once(self: Any, defaults: Any, repo: Any) -> Any:
        return remembered(lambda: merge(self, defaults, repo), repo, "merged", defaults)

    make_map = hydra_defaults._create_interpolation_map

    def map_if_asked(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
        """Makes what interpolations among defaults are looked up in where there are any."""
        asked = any(each.is_interpolation() for each in defaults if not each.is_self())
        return make_map(overrides, defaults, self_added) if asked else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydra_defaults, "_create_interpolation_map", map_if_asked)
        patch.setattr(hydra_loader, "create_defaults_list", list_once)
        patch.setattr(
            hydra_loader.ConfigLoaderImpl, "_compose_config_from_defaults_list", merge_once
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def configurations_copied_quickly() -> Iterator[None]:
    """Spares each command a quarter of its time before its task: Hydra copies it all six times.

    OmegaConf makes each copied value anew, with checks, and copy.deepcopy takes apart by names what
    is known of it, which is fields of plain values and two mappings. Values themselves are shared,
    as OmegaConf shares them. A repository's copy begins with new sources. What a text says is made
    once, and copied.
    """
    load, loaded = OmegaConf.load, dict[Any, Any]()

    def load_once(file: Any) -> Any:
        if not hasattr(file, "read"):
            return load(file)
        text = file.read()
        if text not in loaded:
            file.seek(0)
            loaded[text] = load(file)
        return copy.deepcopy(loaded[text])

    def copied(known: Metadata) -> Metadata:
        made: Metadata = object.__new__(type(known))
        vars(made).update(vars(known), flags=None if known.flags is None else dict(known.flags))
        cached = {name: dict(values) for name, values in known.resolver_cache.items()}
        made.resolver_cache = defaultdict(dict, cached)
        return made

    def copied_under(parent: Any, node: Any) -> Any:
        made = object.__new__(type(node))
        own = vars(made)
        own.update(vars(node), _parent=parent, _metadata=copied(vars(node)["_metadata"]))
        inside = own.get("_content")
        own["_flags_cache"] = copy.copy(own["_flags_cache"]) if "_content" in own else None
        if isinstance(inside, dict):
            own["_content"] = {name: copied_under(made, each) for name, each in inside.items()}
        elif isinstance(inside, list):
            own["_content"] = [copied_under(made, each) for each in inside]
        return made

    def copier(copy_slowly: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(copy_slowly)(lambda own, _: copied_under(vars(own)["_parent"], own))

    def delegate_to(self: CachingConfigRepository, delegate: ConfigRepository) -> None:
        self.delegate, self.cache = copy.copy(delegate), {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Metadata, "__deepcopy__", lambda own, _: copied(own), raising=False)
        for kind in (DictConfig, ListConfig):
            patch.setattr(kind, "__deepcopy__", copier(kind.__deepcopy__))
        patch.setattr(CachingConfigRepository, "__init__", delegate_to)
        patch.setattr(OmegaConf, "load", staticmethod(load_once))
        yield


@pytest.fixture(scope="session", autouse=True)
def a_machine_of_known_speed() -> Iterator[None]:
    """Makes two plans of one machine state the same time, whatever else it does."""

    def timed(work: Callable[[], object]) -> float:
        work()
        return 1e-3

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpft.training.step_time._timed", timed)
        patch.setattr("dpft.training.step_time.SECONDS", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_seed_for_devices_that_are_not_there() -> Iterator[None]:
    """Spares each seed of torch three texts of the whole stack, kept for devices to come."""
    import torch

    kinds = [kind for kind in (torch.cuda, torch.xpu, torch.mtia) if not kind.is_available()]
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            patch.setattr(kind, "manual_seed_all", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Spares each tiny run some sixty waits for the disk; what they guard against is a power cut.

    Tests that look at what is synchronized set ``os.fsync`` themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Takes back the threads that a test gave torch: beside another worker they wait spinning."""
    yield
    if (torch := sys.modules.get("torch")) and torch.get_num_threads() != ONE_THREAD:
        torch.set_num_threads(ONE_THREAD)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that looks up or connects to any host but this one, even if it recovers."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse(address[0])
        connect(self, address)

    def guarded_look_up(host: object, *args: object, **kwargs: object) -> object:
        _refuse(host)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    _attempts.clear()
    yield
    assert not _attempts, f"the test tried to reach {', '.join(_attempts)}"
