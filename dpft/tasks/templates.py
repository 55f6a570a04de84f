"""Infilling templates: text around a record, with a place for the answer.

As in Li et al. 2022, Table 10.

``<S1>`` and ``<S2>`` stand for the record's texts, ``[MASK]`` for the label word.

>>> template = Template.parse("<S1> It was [MASK] .", texts=1)
>>> [part.text for part in template.parts]
['<S1>', ' It was', '[MASK]', ' .']
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.errors import InputError
from dpft.tasks.records import Piece

MASK = "[MASK]"
_PLACES = re.compile(r"(<[^<>\s]*>|\[MASK\])")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of a template: a record's text, the mask, or the template's own words."""

    text: str
    """The template's own words, the blank before them included; or the name of the place."""
    source: int | None = None
    """Which of the record's texts it stands for, from 0; None for the mask and for words."""
    after_blank: bool = False
    """Whether a blank stands before it."""

    @property
    def is_mask(self) -> bool:
        """Whether it is the place of the answer."""
        return self.text == MASK and self.source is None


@dataclass(frozen=True, kw_only=True)
class Template:
    """A template in its parts, in order."""

    parts: tuple[Part, ...]

    @classmethod
    def parse(cls, text: str, *, texts: int, key: str = "task.template") -> "Template":
        """Returns the template that ``text`` spells.

        Blanks belong to what follows them, as byte-level tokenizers have it; a blank at the end
        is dropped.

        Args:
            text: Words with ``<S1>``, ``<S2>`` and one ``[MASK]``.
            texts: How many texts a record has.
            key: What the template is called in messages.

        Raises:
            InputError: The mask or a field is missing, there twice, or unknown.
        """
        fields = [f"<S{number}>" for number in range(1, texts + 1)]
        pieces = _PLACES.split(text)
        for place in pieces[1::2]:
            if place not in (*fields, MASK):
                known = " and ".join((*fields, MASK))
                raise InputError(f"{key} may name {known}, got the unknown field {place}.")
        for place in (*fields, MASK):
            if pieces[1::2].count(place) != 1:
                raise InputError(
                    f"{key} must hold {place} once, got it {pieces[1::2].count(place)} times in"
                    f" {text!r}."
                )
        return cls(parts=tuple(_parts(pieces, fields)))

    def fill(self, texts: Sequence[str]) -> tuple[Piece, ...]:
        """Returns the template with a record's texts in their places."""
        return tuple(_piece(part, texts) for part in self.parts)

    @property
    def ends_with_mask(self) -> bool:
        """Whether the answer continues the text."""
        return self.parts[-1].is_mask

    @property
    def blank_before_mask(self) -> bool:
        """Whether the answer is a word of its own."""
        return next(part.after_blank for part in self.parts if part.is_mask)


def _piece(part: Part, texts: Sequence[str]) -> Piece:
    if part.is_mask:
        return Piece(text="", is_mask=True)
    if part.source is None:
        return Piece(text=part.text)
    return Piece(text=" " * part.after_blank + texts[part.source], may_be_cut=True)


def _parts(pieces: list[str], fields: list[str]) -> list[Part]:
    parts: list[Part] = []
    blank = False
    for number, piece in enumerate(pieces):
        if number % 2:
            source = fields.index(piece) if piece in fields else None
            parts.append(Part(text=piece, source=source, after_blank=blank))
            blank = False
            continue
        words = piece.rstrip()
        if words:
            parts.append(Part(text=words, after_blank=words[0].isspace()))
        blank = piece != words
    return parts
