"""Draws the rooms of dpft, with an arrow for each import between rooms that no longer way implies.

    python -m docs.tools.rooms        # writes docs/assets/rooms.svg

A room stands one row below the lowest that imports it, so every arrow points down. The picture
follows from the imports alone; ``tests/hygiene/test_rooms_picture.py`` holds it against them.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "rooms.svg"
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 980, 84, 104, 34

LEAF = "dpft.config.section"
"""The base class of sections: every room that has one imports it, and it imports no room."""

Imports = dict[str, set[str]]


@cache
def imported_modules(source: str) -> set[str]:
    """Return every module a source names, inside functions and through importlib too."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            modules.update(
                part.value
                for part in ast.walk(node.args[0])
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )
    return modules


def imports_between_rooms() -> Imports:
    """Return the rooms that each room imports, by whatever import."""
    package = ROOT / "dpft"
    rooms = sorted(path.parent.name for path in package.glob("*/__init__.py"))
    found: Imports = {room: set() for room in rooms}
    for room in rooms:
        for path in (package / room).rglob("*.py"):
            named = imported_modules(path.read_text(encoding="utf-8"))
            inside = [name for name in named if name.startswith("dpft.")]
            others = {name.split(".")[1] for name in inside if not name.startswith(LEAF)}
            found[room] |= (others & found.keys()) - {room}
    return found


def rows(imports: Imports) -> list[list[str]]:
    """Return the rooms from the highest to the lowest row.

    Raises:
        ValueError: Rooms import each other in a circle.
    """
    depth: dict[str, int] = {}
    left = set(imports)
    while left:
        free = {
            room
            for room in left
            if not any(room in imports[above] for above in left if above != room)
        }
        if not free:
            raise ValueError(f"a circle among {sorted(left)}")
        for room in free:
            above = [depth[other] for other in depth if room in imports[other]]
            depth[room] = max(above, default=-1) + 1
        left -= free
    return [
        sorted(room for room in depth if depth[room] == row)
        for row in range(max(depth.values()) + 1)
    ]


def arrows(imports: Imports) -> list[tuple[str, str]]:
    """Return the imports that no way over other rooms implies."""
    below: Imports = {}

    def reached(room: str) -> set[str]:
        if room not in below:
            below[room] = imports[room].union(*(reached(other) for other in imports[room]))
        return below[room]

    return sorted(
        (room, other)
        for room, others in imports.items()
        for other in others
        if not any(other in reached(between) for between in others - {other})
    )


def picture(imports: Imports) -> str:
    """Return the SVG."""
    places: dict[str, tuple[float, float]] = {}
    levels = rows(imports)
    for row, level in enumerate(levels):
        for column, room in enumerate(level):
            places[room] = (WIDTH * (column + 1) / (len(level) + 1), 30 + row * ROW)
    height = 60 + (len(levels) - 1) * ROW
    lines = [_arrow(*places[room], *places[other]) for room, other in arrows(imports)]
    boxes = [_box(room, *place) for room, place in sorted(places.items())]
    style = (
        ".b{fill:#fff;stroke:#3949ab;stroke-width:1.5}.t{font:13px sans-serif;fill:#1a237e;"
        "text-anchor:middle}.a{stroke:#7986cb;stroke-width:1.2;fill:none;marker-end:url(#h)}"
    )
    head = (
        '<marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#7986cb"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'aria-label="The rooms of dpft and their imports">',
            f"<style>{style}</style><defs>{head}</defs>",
            f'<rect width="{WIDTH}" height="{height}" fill="#fafafa"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    start, end = y + BOX_HEIGHT / 2, to_y - BOX_HEIGHT / 2
    bend = (end - start) / 2
    return (
        f'<path class="a" d="M{x:.0f} {start:.0f}C{x:.0f} {start + bend:.0f} '
        f'{to_x:.0f} {end - bend:.0f} {to_x:.0f} {end:.0f}"/>'
    )


def _box(room: str, x: float, y: float) -> str:
    return (
        f'<rect class="b" x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" '
        f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
        f'<text class="t" x="{x:.0f}" y="{y + 4:.0f}">{room}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(imports_between_rooms()), encoding="utf-8")
