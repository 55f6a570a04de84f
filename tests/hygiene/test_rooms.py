"""Dependencies point one way, as the layout of the package promises."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import dpft
from docs.tools.rooms import LEAF, imported_modules

PACKAGE = Path(dpft.__file__).parent
LEVELS = (
    {"cli"},
    {"audit"},
    {"synthesis"},
    {"commands"},
    {"reports"},
    {"config", "estimates"},
    {"training"},
    {"evaluation"},
    {"tasks", "data", "models", "methods", "tokenizers", "generation", "privacy"},
    {"parallel"},
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
ALLOWED_BETWEEN_EQUALS = {("data", "dpft.tasks.base")}
LIBRARY = ("dpft.privacy.clipping.clipper", "dpft.models.batch_norm")
"""What those import who train by a loop of their own, and have no configuration."""
KEY = re.compile(r"(?<![\w.])(privacy|train|model|method|task|eval|optimizer|scheduler)\.[a-z_]+")
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str | None:
    """Return the room a module of dpft is in; None for what stands outside the rooms."""
    if module.startswith(LEAF):
        return None
    parts = module.split(".")
    return parts[1] if parts[0] == "dpft" and len(parts) > 1 and parts[1] in LEVEL else None


def back_edges(room: str, source: str) -> list[str]:
    """Return the imports of a source in ``room`` that point up or across."""
    edges = []
    for module in imported_modules(source):
        target = room_of(module)
        if target is None or target == room or LEVEL[target] > LEVEL[room]:
            continue
        allowed = (
            origin == room and module.startswith(to) for origin, to in ALLOWED_BETWEEN_EQUALS
        )
        if not any(allowed):
            edges.append(f"{room} -> {module}")
    return edges


@pytest.mark.parametrize("room", sorted(LEVEL))
def test_a_module_imports_only_rooms_below_its_own(room: str) -> None:
    paths = [path for path in FILES if path.relative_to(PACKAGE).with_suffix("").parts[0] == room]
    found = {str(path): back_edges(room, path.read_text()) for path in paths}
    assert {path: edges for path, edges in found.items() if edges} == {}


def modules_of_package() -> dict[str, Path]:
    """Return every module of the package by its name."""
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES
    }
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imports_between(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the modules that each source imports, of those given, anywhere in it."""
    found = {}
    for name, source in sources.items():
        imported = imported_modules(source)
        imported = {  # Of "module.name" the module, not the package that holds it.
            each if each in sources else each.rpartition(".")[0] for each in imported
        }
        found[name] = imported & set(sources) - {name, "dpft"}
    return found


def circles(imports: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that import each other in a loop, and those between such loops."""
    left = {name: set(targets) for name, targets in imports.items()}
    while True:
        ends = {name for name, targets in left.items() if not targets & left.keys()}
        ends |= left.keys() - set().union(*left.values())
        if not ends:
            return set(left)
        left = {name: targets for name, targets in left.items() if name not in ends}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor inside functions, nor for types alone: each module is read after those it imports."""
    sources = {name: path.read_text() for name, path in modules_of_package().items()}
    imports = imports_between(sources)
    assert sum(map(len, imports.values())) > len(sources), "imports are seen"
    assert circles(imports) == set()


def test_a_circle_is_seen() -> None:
    sources = {
        "a.one": "from a.two import x",
        "a.two": "def late():\n    from a import three",
        "a.three": "if TYPE_CHECKING:\n    import a.one",
        "a.four": "import a.one",
    }
    assert circles(imports_between(sources)) == {"a.one", "a.two", "a.three"}
    assert circles(imports_between({**sources, "a.three": ""})) == set()


def test_the_leaf_imports_no_room() -> None:
    modules = imported_modules(modules_of_package()[LEAF].read_text())
    assert not {module for module in modules if room_of(module)}


def test_every_room_has_a_level() -> None:
    assert {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")} <= set(LEVEL)


def test_what_stands_outside_the_rooms_imports_none_of_them() -> None:
    for path in set(PACKAGE.glob("*.py")) - {PACKAGE / "__main__.py", PACKAGE / "__init__.py"}:
        assert not {module for module in imported_modules(path.read_text()) if room_of(module)}


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("privacy", "from dpft.training import loop"),
        ("models", "def late():\n    import dpft.data.batches"),
        ("data", "from dpft.tasks import e2e"),
        ("training", 'importlib.import_module(f"dpft.cli.{name}")'),
    ],
)
def test_an_edge_up_or_across_is_seen(room: str, source: str) -> None:
    assert len(back_edges(room, source)) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("data", "from dpft.tasks.base import Example"),
        ("audit", "from dpft.training.loop import train"),
        ("cli", "from dpft.privacy.plan import PrivacyPlan"),
    ],
)
def test_an_edge_down_is_allowed(room: str, source: str) -> None:
    assert back_edges(room, source) == []


def test_one_room_alone_speaks_to_other_processes() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] != "parallel":
            modules = imported_modules(path.read_text())
            assert not any(name.startswith("torch.distributed") for name in modules), path


@pytest.mark.parametrize("room", ["privacy/accounting", "config"])
def test_a_torch_free_room_imports_no_torch(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        roots = {module.split(".")[0] for module in imported_modules(path.read_text())}
        assert not roots & {"torch", "transformers"}, path


def library_files() -> set[Path]:
    """Return the clipper's files, those that ``LIBRARY`` imports, and what they import."""
    modules = modules_of_package()
    found: set[str] = set()
    new = set(LIBRARY)
    while new:
        found |= new
        new = {name for each in new for name in imported_modules(modules[each].read_text())}
        new |= {name.rpartition(".")[0] for name in new}  # of "module.name"
        new = (new & set(modules)) - found
    return {modules[name] for name in found} | {*(PACKAGE / "privacy/clipping").rglob("*.py")}


def named_keys(source: str) -> list[str]:
    """Return the configuration keys in a source's texts but for its docstrings."""
    tree = ast.parse(source)
    bodies = [node.body for node in ast.walk(tree) if hasattr(node, "body")]
    statements = [each for body in bodies if isinstance(body, list) for each in body]
    docs = {id(each.value) for each in statements if isinstance(each, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]
    return [found.group() for text in texts for found in KEY.finditer(text)]


def test_the_library_names_its_arguments_and_no_configuration_key() -> None:
    files = library_files()
    assert len(files) > 20 and PACKAGE / "independence_check.py" in files
    found = {str(path): named_keys(path.read_text()) for path in files}
    assert {path: keys for path, keys in found.items() if keys} == {}


def test_a_configuration_key_in_a_text_is_seen() -> None:
    assert named_keys('raise E(f"{x} fails; choose privacy.engine=loop.")') == ["privacy.engine"]
    assert named_keys('def f():\n    """privacy.engine."""\n    import dpft.privacy.plan') == []
