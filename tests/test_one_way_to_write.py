"""Every call that writes a file goes through `hf_curriculum.files`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hf_curriculum

ROOT = Path(hf_curriculum.__file__).parent

METHODS = {
    *("write_text", "write_bytes", "savefig", "save_to_disk", "save_pretrained", "open_memmap", "ParquetWriter"),
    *("write_table", "save_file", "OSFile", "touch", "symlink_to", "hardlink_to", "mkstemp", "mkdtemp"),
}
"""Methods and functions that write, whatever they belong to."""
OF_MODULES = {
    "np": {"save", "savez", "savez_compressed", "savetxt"},
    "torch": {"save"},
    "os": {"open", "replace", "rename", "link", "symlink", "mkdir", "makedirs"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
}
STAGING = {"new_file", "new_files", "complete_folder", "staged_folder", "sealed_parquet", "TemporaryDirectory"}
"""What gives a place under a name that nobody else knows; `TemporaryDirectory` belongs to the process."""

OTHERS = {
    "claims.py:_take": "O_EXCL creates the file, or another process has it",
    "claims.py:_read": "reads, and follows no link",
    "data/regions/detectors.py:save": "into the folder of a staged save",
    "data/regions/processor.py:save_pretrained": "the user's folder, by transformers; links of its names are refused",
    "planning/export.py:_write_datacomp": "a temporary file of `new_files`",
    "planning/export.py:_write_lines": "a temporary file of `new_files`",
    "planning/export.py:_write_parquet": "a temporary file of `new_files`",
    "planning/export.py:_write_rows": "a temporary file of `new_files`",
    "scored_data.py:_copy_others": "into the folder of `complete_folder`",
    "scoring/add_scores.py:map_all": "the cache folder that the user names",
    "streaming/bucketing.py:_write_shard": "a finished file takes its name in the folder of the run",
    "streaming/save.py:remove_work": "a folder gets a name of its own before it is deleted",
    "streaming/shards.py:__init__": "a temporary file of `new_file`",
    "streaming/shards.py:write_parquet": "a temporary file of `new_file`",
    "streaming/shards.py:write_tar": "a temporary file of `new_file`",
    "tasks/babylm/glue.py:_scratch": "a folder of the process",
    "tasks/babylm/miniature.py:_csv": "the folder of `staged_folder`",
    "tasks/babylm/miniature.py:_things": "the folder of `staged_folder`",
    "tasks/babylm/miniature.py:_write": "the folder of `staged_folder`",
    "tasks/babylm/miniature.py:_write_all": "the folder of `staged_folder`",
    "tasks/babylm/miniature.py:draw": "the folder of `staged_folder`",
    "tasks/detection/proposals.py:write_proposals": "a buffer in memory",
    "tasks/long_tail/flyp.py:save_pretrained": "the user's folder, by transformers, which also pushes it",
    "training/publishing.py:_save": "the run's folder, by transformers",
    "views.py:repeat_rows": "a buffer in memory",
}
"""Further functions that write, and why they may."""


def writes(node):
    """Whether a call writes a file."""
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
    if name == "open" and owner not in OF_MODULES:
        texts = [part.value for part in (*node.args, *(word.value for word in node.keywords if word.arg == "mode"))
                 if isinstance(part, ast.Constant) and isinstance(part.value, str)]  # fmt: skip
        return any(len(text) < 5 and set(text) & set("wax+") for text in texts)
    return name in METHODS or name in OF_MODULES.get(owner, ())


def writers(tree):
    """The functions of a module in which a call writes outside of a `with` that gives a place of its own."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and writes(node)):
        around, function = [], None
        while node in parents:
            node = parents[node]
            if isinstance(node, ast.With):
                around += [ast.unparse(item.context_expr).partition("(")[0] for item in node.items]
            if isinstance(node, ast.FunctionDef):
                function = function or node.name
        if not {name.rpartition(".")[2] for name in around} & STAGING:
            yield function


def test_nothing_else_writes():
    found = set()
    for file in sorted(ROOT.rglob("*.py")):
        if file.name != "files.py":
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found |= {f"{file.relative_to(ROOT).as_posix()}:{name}" for name in writers(tree)}
    assert found - OTHERS.keys() == set()
    assert OTHERS.keys() - found == set()


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ('Path("a").write_text("x")', True),
        ('open("file", "w")', True),
        ('open("file", mode="r+b")', True),
        ('np.save("a", x)', True),
        ("figure.savefig(path)", True),
        ('open("file")', False),
        ('archive.open("member")', False),
        ("model.save(path)", False),
    ],
)
def test_what_writes_is_recognised(line, is_found):
    tree = ast.parse(f"def f():\n    {line}")
    assert (list(writers(tree)) == ["f"]) == is_found
    tree = ast.parse(f"def f():\n    with new_file(target) as file:\n        {line}")
    assert list(writers(tree)) == []
