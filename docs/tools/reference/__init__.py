"""The generated pages of the reference, made of the code and of conf/ when the site is built.

``pages()`` returns the Markdown of each, and the JSON schemas that they link to; nothing of it is
kept as a file. What a key is for comes from the text below its field, what it takes from its type,
and its range from what the code itself says when it refuses a value, so that no page can differ
from the code.
"""

from docs.tools.reference.pages import pages

__all__ = ["pages"]
