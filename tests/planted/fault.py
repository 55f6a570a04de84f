"""What a planted fault is: a small change of the source that breaks one guarantee.

A fault's name says which guarantee it breaks, not which code it changes. Keep the name when the
code is renamed or rewritten, and change only ``edits``. If the new code cannot have the fault,
delete it in the same commit and give the reason in the commit message.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class DoesNotApplyError(Exception):
    """The text that an edit replaces does not occur exactly once in its file."""


@dataclass(frozen=True)
class Edit:
    """Replaces one passage of one file."""

    file: str
    """Path below the repository's root."""
    before: str
    """The passage; it must occur exactly once in the file."""
    after: str
    """The passage with the fault."""

    def apply(self, root: Path) -> None:
        """Plant the change below ``root``, which is a copy of the repository.

        Raises:
            DoesNotApplyError: ``before`` does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (count := text.count(self.before)) != 1:
            raise DoesNotApplyError(
                f"{self.file}: expected the passage once, found it {count} times:\n{self.before}"
            )
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change that no release may contain, and the tests that detect it."""

    name: str
    """AREA/DESCRIPTION in lower case with hyphens. It outlives the code that it changes."""
    breaks: str
    """The guarantee that is lost, in one sentence."""
    edits: tuple[Edit, ...]
    """The change; the edits of one fault are in different places."""
    tests: tuple[str, ...]
    """pytest node ids, FILE::TEST. Each of them is expected to detect the fault by itself."""
    stops_private_runs: bool = False
    """Whether dpft's own checks end every private run that has the fault."""
