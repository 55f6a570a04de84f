"""All generated pages, by the path at which they stand below docs/."""

from docs.tools.reference.commands import command_page
from docs.tools.reference.exit_codes import exit_codes_page
from docs.tools.reference.files import files_page
from docs.tools.reference.groups import group_page, groups
from docs.tools.reference.keys import commands
from docs.tools.reference.metrics import metrics_page
from docs.tools.reference.recipes import recipes_page


def pages() -> dict[str, str]:
    """Returns the Markdown of every generated page, by its path below docs/."""
    made = {f"reference/commands/{name}.md": command_page(name) for name in commands()}
    made |= {f"reference/groups/{group}.md": group_page(group) for group in groups()}
    return made | {
        "reference/recipes.md": recipes_page(),
        "reference/metrics.md": metrics_page(),
        "reference/exit-codes.md": exit_codes_page(),
        "reference/files.md": files_page(),
    }
