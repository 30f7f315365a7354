"""Runs the notebooks of this folder and stores their outputs: `python docs/notebooks/run.py [NAME ...]`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted(Path(__file__).parent.glob("*.ipynb"))
ROOT = Path(__file__).parents[2]
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook as it comes out of an empty folder, offline and on the CPU."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        own = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "HF_DATASETS_CACHE": f"{folder}/cache"}
        own["PYTHONWARNINGS"] = "ignore:IProgress not found"  # of tqdm, without ipywidgets
        where = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where, record_timing=False)
        client.execute(env={**os.environ, **own, "PYTHONPATH": str(ROOT)})
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if "text/html" in output.get("data", {}):
            output["data"].pop("text/plain", None)  # which names a place in memory
    notebook.metadata = METADATA
    return notebook


if __name__ == "__main__":
    for path in NOTEBOOKS:
        if path.stem in sys.argv[1:] or not sys.argv[1:]:
            nbformat.write(executed(path), path)
