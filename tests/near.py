"""Which tests are near a module: ``python -m tests.near dpft/methods/lora.py`` prints their paths.

Tests mirror modules, so these are the test file of the module's name; where there is none, those in
the folder's mirror that import the module; and a file or folder of tests itself.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def near(path: Path) -> list[Path]:
    """Return the test files near a path that is relative to the repository's root.

    Raises:
        FileNotFoundError: There is no such file, or no test near it.
    """
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"{path}: no such file; give one of dpft/ or tests/")
    if path.parts[0] == "tests":
        return [path]
    mirror = Path("tests", *path.parts[1:])
    if (ROOT / path).is_dir():
        found = [mirror] if (ROOT / mirror).is_dir() else []
    else:
        named = mirror.with_name(f"test_{path.name}")
        module = ".".join(path.with_suffix("").parts)
        found = [named] if (ROOT / named).exists() else _that_name(module)
    if not found:
        raise FileNotFoundError(f"{path}: no test names it; run make test")
    return found


def _that_name(module: str) -> list[Path]:
    return sorted(
        test.relative_to(ROOT)
        for test in (ROOT / "tests").rglob("test_*.py")
        if f"from {module} import" in test.read_text(encoding="utf-8")
    )


if __name__ == "__main__":
    try:
        print(*near(Path(sys.argv[1])))
    except FileNotFoundError as error:
        sys.exit(str(error))
