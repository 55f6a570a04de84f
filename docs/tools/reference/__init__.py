"""The generated pages of the reference, made from the code and conf/ when the site is built.

``pages`` returns the Markdown of each page and the JSON Schemas that they link to. None of them is
stored as a file, so no page can differ from the code.
"""

from docs.tools.reference.commands import commands_page
from docs.tools.reference.configuration import configuration_page
from docs.tools.reference.files import files_page
from docs.tools.reference.forms import SUFFIX, names, schema_text
from docs.tools.reference.recipes import recipes_page


def pages() -> dict[str, str]:
    """Return every generated page and JSON Schema by its path below docs/."""
    schemas = {f"reference/schemas/{name}{SUFFIX}": schema_text(name) for name in names()}
    return schemas | {
        "reference/commands.md": commands_page(),
        "reference/configuration.md": configuration_page(),
        "reference/recipes.md": recipes_page(),
        "reference/files.md": files_page(),
    }


__all__ = ["pages"]
