"""The notebooks in examples/notebooks run from top to bottom in a Jupyter kernel, and are stored without outputs.

Outputs are not stored because they would be large, would differ between machines (one notebook measures a live
gateway), and would grow old without being noticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, SOURCE

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]  # type: ignore[no-any-return]


def test_there_are_three_notebooks_and_the_page_of_examples_links_to_them() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 3
    assert all(f"../examples/notebooks/{notebook.name}" in page for notebook in NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_stored_without_outputs_and_says_what_to_install(notebook: Path) -> None:
    cells = cells_of(notebook)
    assert "pip install 'headway[" in "".join(cells[0]["source"])
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), f"strip the outputs of {notebook.name}"
        assert len("".join(cell["source"])) < 2000


@pytest.mark.full
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_in_a_kernel(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install 'headway[notebook]'")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install 'headway[notebook]'")
    if "gateway" in notebook.stem:
        pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    document = nbformat.read(notebook, as_version=4)
    nbformat.validate(document)
    client = nbclient.NotebookClient(
        document, kernel_name="python3", timeout=300, resources={"metadata": {"path": FOLDER}}
    )
    client.execute()
    shown = [output for cell in document.cells if cell.cell_type == "code" for output in cell.outputs]
    errors = [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
    assert not errors, errors
    data = [output.data for output in shown if output.output_type in ("display_data", "execute_result")]
    assert any("text/html" in each for each in data), "a result shows itself as HTML"
    assert any(each["text/plain"].startswith("alt.") for each in data), "a result has a chart"
