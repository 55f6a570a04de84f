"""Notebooks hold what their pages run, and are run: a cell that fails is found."""

import json

import pytest

from docs.tools.examples import Failed
from docs.tools.notebooks import NOTEBOOKS, check, notebook
from docs.tools.pages import DOCS, File, parts_of
from tests.slowness import slow

PAGE = """# A page

The same is there as a [notebook](../notebooks/page.ipynb).

```python title="numbers.py"
def three():
    return 3
```

```python title="count.py"
from numbers import three

count = three()
print("counted", count)
```

```console
$ python count.py
counted 3
```
<!-- check: counted 3 -->

```console
$ ls *.py
numbers.py
```
<!-- check: numbers -->
""".replace("numbers", "our_numbers")


def code_of(made: str) -> list[str]:
    """Return the code cells of a notebook."""
    cells = json.loads(made)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_a_script_is_a_cell_of_python_and_what_it_imports_a_file() -> None:
    made = notebook(PAGE)
    file, script, command = code_of(made)
    assert file.startswith("%%writefile our_numbers.py\ndef three")
    assert script.startswith("from our_numbers import three\n")
    assert command == "%%bash\nls *.py"
    assert "notebook" not in "".join(json.loads(made)["cells"][0]["source"])
    assert check(made, "page") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return 3", "return 4", "nothing matches 'counted 3' in cell 2"),
        *slow(
            ("count = three()", "count = thirty()", "cell 2 of 3 failed:(.|\n)*NameError"),
            ("$ ls *.py", "$ ls *.none", "cell 3 of 3 failed"),
            ("<!-- check", "<!-- keep", "no cell has a pattern"),
        ),
    ],
)
def test_a_notebook_that_does_not_do_what_its_page_says_fails(
    old: str, new: str, message: str
) -> None:
    with pytest.raises(Failed, match=message):
        check(notebook(PAGE.replace(old, new)), "page")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_all_that_its_page_runs_and_none_of_its_notes(name: str) -> None:
    text = (DOCS / NOTEBOOKS[name]).read_text()
    made = notebook(text)
    code = "\n".join(code_of(made))
    parts = parts_of(text)
    assert parts and all(part.content.strip() in code for part in parts if isinstance(part, File))
    cells = json.loads(made)["cells"]
    prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] != "code")
    assert "<!-- check" not in prose and "```console" not in prose
    assert len({cell["id"] for cell in cells}) == len(cells)


@pytest.mark.exhaustive  # make tutorials, which CI runs, runs the notebooks
@pytest.mark.slow
def test_the_notebook_of_the_clippers_page_runs_as_its_page_says() -> None:
    name = "notebooks/clipper-library.ipynb"
    assert check(notebook((DOCS / NOTEBOOKS[name]).read_text()), name) == 3
