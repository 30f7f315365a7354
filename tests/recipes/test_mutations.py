"""The faults that `recipes/benchmarks/mutations.py` plants, and whose fate it tells."""

from __future__ import annotations

import importlib
import json
import sys
import time
from types import SimpleNamespace

import pytest
from benchmarks import mutations

SOURCE = '''"""A module."""


def chosen(values, least=1):
    """Those above a limit."""
    if (first := values[0]) is not None and not least:
        raise ValueError(f"{first + 1} is wrong")
    return [value for value in values if value > least]


class Rule:
    limit: int = 3

    @property
    def wide(self) -> bool:
        self.notify(True, often=2, late=False)
        return self.limit * 2 == 6

    def __init__(self):
        super().__init__()
        self.ready = True

    def write(self, folder):
        """Into a file."""
        (folder / "a").write_text(self.name + "b", encoding="utf-8", newline="c")
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A file of its own in place of the package."""
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rule", raising=False)
    path = tmp_path / "rule.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def test_faults_are_python_and_leave_messages_and_defaults_alone(module):
    planted = {(fault.line, fault.before, fault.after) for fault in mutations.faults(module)}
    assert (6, "(first := values[0]) is not None", "(first := values[0]) is None") in planted
    assert (6, "not least", "(least)") in planted
    assert (8, "value > least", "value >= least") in planted
    assert (16, "self.notify(True, often=2, late=False)", "pass") in planted
    assert (16, "self.notify(True, often=2, late=False)", "self.notify(True, late=False)") in planted
    assert (17, "self.limit * 2", "(self.limit) + (2)") in planted
    assert not {line for line, *_ in planted} & {1, 4, 5, 7, 12}
    without_newline = '(folder / "a").write_text(self.name + "b", encoding="utf-8")'
    assert {after for line, _, after in planted if line == 25} == {"pass", without_newline}
    for fault in mutations.faults(module):
        compile(SOURCE[: fault.start] + fault.after + SOURCE[fault.stop :], "rule.py", "exec")


def test_a_fault_belongs_to_the_innermost_function(module):
    lines = {fault.line: mutations.function_of(fault)[1] for fault in mutations.faults(module)}
    assert lines == {6: 4, 8: 4, 16: 14, 17: 14, 20: 19, 21: 19, 25: 23}  # 14: the decorator


def test_faults_are_drawn_evenly_from_the_files_of_a_folder(module, monkeypatch):
    monkeypatch.setattr(mutations, "PACKAGE", mutations.ROOT)
    (module.parent / "folder").mkdir()
    for name, source in (("long", SOURCE), ("short", "def one():\n    return 1, 2, 3\n")):
        (module.parent / "folder" / f"{name}.py").write_text(source, encoding="utf-8")
    drawn = mutations.drawn(6, 1, ["folder"])
    assert sorted(fault.file for fault in drawn) == ["folder/long.py"] * 3 + ["folder/short.py"] * 3
    assert len(set(drawn)) == 6
    assert drawn == mutations.drawn(6, 1, ["folder"]) != mutations.drawn(6, 2, ["folder"])


@pytest.mark.parametrize("processes", [1, 3])
def test_each_fault_has_its_own_fate(module, processes):
    planted = mutations.faults(module)
    fates = mutations.run(planted, lambda fault, says: int(fault.line in (8, 17)), processes, limit=60)
    assert {fault: fate == "caught" for fault, fate in fates.items()} == {
        fault: fault.line in (8, 17) for fault in planted
    }


def test_a_fault_that_hangs_is_ended_and_told(module, capsys):
    (planted,) = (fault for fault in mutations.faults(module) if fault.before == "not least")
    assert mutations.run([planted], lambda fault, says: time.sleep(60), 1, limit=0.2) == {planted: "hung"}
    assert "1/1 hung: rule.py:6 not least" in capsys.readouterr().err


def test_a_planted_fault_is_in_the_functions_that_are_there(module):
    names = {}
    exec(compile(SOURCE, str(module), "exec"), names)
    chosen, rule = names["chosen"], names["Rule"]()
    names["Rule"].notify = lambda self, *flags, **named: None
    assert (chosen([1, 2]), rule.wide) == ([2], True)
    for fault in mutations.faults(module):
        if (fault.before, fault.after) in (("value > least", "value >= least"), ("6", "7")):
            mutations.plant(fault)
            assert (chosen([1, 2]), rule.wide) == (([1, 2], True) if fault.line == 8 else ([2], False))


def test_a_module_that_is_imported_by_its_first_use_gets_its_fault(module):
    (fault,) = (fault for fault in mutations.faults(module) if fault.after == "value >= least")
    mutations.plant(fault)
    assert importlib.import_module("rule").chosen([1, 2]) == [1, 2]


def test_faults_that_change_what_a_function_closes_over(module):
    source = """
class Base:
    def __init__(self):
        self.limit = 1

class Rule(Base):
    def __init__(self):
        super().__init__()

def outer(seen):
    def inner(value):
        seen.append(value)
    return inner
"""
    module.write_text(source, encoding="utf-8")
    names = {"__name__": "rule"}
    exec(compile(source, str(module), "exec"), names)
    inner = names["outer"]([])
    by_line = {fault.line: fault for fault in mutations.faults(module) if fault.after in ("pass", "__class__")}
    assert hasattr(names["Rule"](), "limit")
    mutations.plant(by_line[8])
    assert not hasattr(names["Rule"](), "limit")
    with pytest.raises(SyntaxError, match="variables of its surroundings"):
        mutations.plant(by_line[12])
    inner(1)


def test_what_tests_call_is_known_for_one_state_of_the_package(module, monkeypatch):
    monkeypatch.setattr(mutations, "PACKAGE", module.parent)
    calls, nothing = module.parent / "calls.json", SimpleNamespace(pluginmanager=SimpleNamespace(register=print))
    planter = mutations.Planter([], calls, 1, 1.0, 1.0)

    def recorded():
        planter.record(SimpleNamespace(items=[], config=nothing))
        return json.loads(calls.read_text())

    first = recorded()
    calls.write_text(json.dumps({**first, "tests": {"test_a": {"seconds": 1, "calls": []}}}))
    assert list(recorded()["tests"]) == ["test_a"]
    module.write_text("\n" + SOURCE, encoding="utf-8")
    assert recorded()["tests"] == {}
    assert recorded()["package"] != first["package"]


def test_every_room_has_faults_and_tests_that_are_there():
    folders = [folder for place in ("", "tasks") for folder in (mutations.PACKAGE / place).iterdir()]
    rooms = {str(one.relative_to(mutations.PACKAGE)) for one in folders if (one / "__init__.py").is_file()} - {"tasks"}
    assert set(mutations.FOLDERS) == {*rooms, "."}
    for room, places in mutations.FOLDERS.items():
        assert all((mutations.ROOT / "tests" / place).exists() for place in places)
        (fault,) = mutations.drawn(1, 0, [room])
        assert [one for one in mutations.FOLDERS if mutations.is_in(one, fault)] == [room]
