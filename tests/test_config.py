"""What a person gives as a name, a mapping, JSON, YAML or a file."""

from __future__ import annotations

import pytest

from hf_curriculum import curriculum_from
from hf_curriculum.config import read_config

NAMES = ["phases", "iid"]
SAME = {"type": "phases", "rate": 1e-5}


def test_every_form_gives_the_same(tmp_path):
    texts = ['{"type": "phases", "rate": 1e-5}', "{type: phases, rate: 1e-5}", " type: phases\n rate: 1e-5 "]
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        assert read_config(text, "curriculum", NAMES) == read_config(file, "curriculum", NAMES) == SAME
        assert read_config(str(file), "curriculum") == SAME
    assert read_config(SAME, "curriculum", NAMES) == SAME
    assert read_config(SAME, "curriculum", NAMES) is not SAME
    assert read_config(" iid ", "curriculum", NAMES) == {"type": "iid"}


def test_a_mapping_without_a_type(tmp_path):
    preset = tmp_path / "preset"
    preset.write_text("learning_rate: 2.5e-4\n")
    assert read_config(preset, "preset") == read_config("learning_rate: 2.5e-4", "preset") == {"learning_rate": 2.5e-4}


@pytest.mark.parametrize(
    ("value", "names", "message"),
    [
        (
            "phase",
            NAMES,
            r"no curriculum 'phase'\. The types are \['iid', 'phases'\]\. Did you mean 'phases'\?",
        ),
        ("Phases", NAMES, r"There is no curriculum 'Phases'.* Did you mean 'phases'\?"),
        ("wsod", NAMES, r"There is no curriculum 'wsod'\. The types are \['iid', 'phases'\]\.$"),
        ("rate: 1", NAMES, r"There is no curriculum None in 'rate: 1'"),
        ("3", NAMES, r"'3' is neither a name of \['iid', 'phases'\], nor a mapping with a `type`"),
        ("phase", (), "'phase' is neither a mapping, nor a file that holds one"),
        ("a: [", (), "'a: \\[' is neither a file, JSON nor YAML: "),
        ("lost.yml", (), "The curriculum file 'lost.yml' does not exist"),
        ('{"a": 1, "a": 2}', (), "is not clear: The key 'a' stands twice in one object"),
        ("b:\n  a: 1\n  a: 2", (), "the key 'a' stands twice in the mapping of line 2"),
    ],
)
def test_what_cannot_be_read(value, names, message):
    with pytest.raises(ValueError, match=message):
        read_config(value, "curriculum", names)


def test_files_that_other_programs_save(tmp_path):
    for name, text in (("a.yml", "type: iid"), ("a.json", '{"type": "iid"}')):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_config(tmp_path / name, "curriculum", NAMES) == {"type": "iid"}
    (tmp_path / "a.yml").write_bytes(b"type: caf\xe9")
    with pytest.raises(ValueError, match=r"The curriculum file '.*a\.yml' is not UTF-8"):
        read_config(tmp_path / "a.yml", "curriculum", NAMES)
    assert read_config("base: &a {x: 1}\nmore: {<<: *a, x: 2}", "mapping")["more"] == {"x": 2}


def test_a_class_is_not_what_is_made_of_it():
    with pytest.raises(TypeError, match=r"The curriculum Made is a class\. Give one made of it: Made\(\.\.\.\)"):
        read_config(type("Made", (), {}), "curriculum", NAMES)


def nested(depth):
    value = {"type": "iid"}
    for _ in range(depth):
        value = {"type": "filter", "then": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        "[" * 2_000,
        "[" * 200_000,
        "[" * 90_000 + "]" * 90_000,
        '{"a": ' * 2_000 + "1" + "}" * 2_000,
        nested(300),
        "&a [*a]",
        '{"type": "iid", "epochs": ' + "9" * 5_000 + "}",
    ],
    ids=["list", "long list", "closed", "mapping", "rules", "circle", "digits"],
)
def test_what_is_nested_too_deep_is_refused(value):
    with pytest.raises(ValueError, match=r"nested more than 100 levels deep|nested too deep|is neither .*YAML"):
        curriculum_from(value)


def test_a_deep_rule_and_one_object_named_many_times_are_read():
    assert curriculum_from(nested(20)).to_dict()["type"] == "filter"
    lines = ["a0: &a0 [1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
    assert len(read_config("\n".join(lines), "mapping")) == 30
