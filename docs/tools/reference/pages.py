"""All generated pages, and the schemas they link to, by their paths below docs/."""

from docs.tools.reference.commands import command_page
from docs.tools.reference.exit_codes import exit_codes_page
from docs.tools.reference.files import files_pages, schema_files
from docs.tools.reference.groups import group_page, groups
from docs.tools.reference.keys import commands
from docs.tools.reference.metrics import metrics_page
from docs.tools.reference.recipes import recipes_pages


def pages() -> dict[str, str]:
    """Returns the Markdown of every generated page and the JSON schemas, by path below docs/."""
    made = {f"reference/commands/{name}.md": command_page(name) for name in commands()}
    made |= schema_files()
    made |= {f"reference/groups/{group}.md": group_page(group) for group in groups()}
    made |= recipes_pages() | files_pages()
    return made | {
        "reference/metrics.md": metrics_page(),
        "reference/exit-codes.md": exit_codes_page(),
    }
