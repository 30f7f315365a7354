"""METEOR and SPICE: formulas on recorded output, command lines under a stand-in `java`, and Java itself."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from hf_curriculum.tasks.captioning.metrics.jars import (
    JavaError,
    find_java,
    meteor_statistics,
    meteor_values,
    parse_scores,
    read_spice,
    run_java,
    spice,
    spice_command,
    validate_spice,
)

METEOR = [  # what the jar answers to a SCORE line, and its own score of it
    ("10 11 4 5 4 4 3 3 0 0 0 0 0 0 0 0 0 0 0 0 2 7 7", 0.3498759354940685),
    ("9 8 3 4 2 2 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 3 3", 0.2166259964541511),
    ("8 10 3 4 2 2 3 3 0 0 0 0 0 0 0 0 1 1 0 0 5 6 6", 0.21271180252630728),
    ("10 9 5 4 3 3 3 3 0 0 0 0 0 0 0 0 2 2 2 1 1 10 9", 0.8507126781695423),
    ("10 10 5 5 4 4 4 4 0 0 0 0 0 0 0 0 1 1 1 1 1 10 10", 0.9200000000000003),  # matches as a whole: no chunk
]
METEOR_CORPUS = 0.37375780038275574


def test_meteor_of_recorded_numbers():
    statistics = parse_scores([line for line, _ in METEOR], 5)
    np.testing.assert_allclose(meteor_values(statistics)[:, 0], [score for _, score in METEOR], rtol=1e-12)
    assert meteor_values(statistics.sum(0))[0] == pytest.approx(METEOR_CORPUS, rel=1e-12)
    assert meteor_values(np.zeros(23))[0] == 0


def test_what_meteor_answers_is_checked():
    with pytest.raises(JavaError, match="answered 1 lines for 2 captions, the first"):
        parse_scores([METEOR[0][0]], 2)
    with pytest.raises(JavaError, match=r"one line of 23 numbers each was expected. Is meteor-1.5.jar version 1.5?"):
        parse_scores(["Error: no paraphrase table"], 1)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A `java` that says a version, keeps what it was given, and answers with a file; and a folder of jars."""

    def make(version="17.0.15", answer="", status=0):
        home = tmp_path / f"java-{version}"
        (home / "bin").mkdir(parents=True, exist_ok=True)
        (home / "answer").write_text(answer)
        program = home / "bin" / "java"
        program.write_text(
            "#!/bin/sh\n"
            f'if [ "$1" = -version ]; then echo \'openjdk version "{version}" 2026\' >&2; exit 0; fi\n'
            f'printf "%s\\n" "$@" > {home}/arguments; pwd > {home}/folder; cat > {home}/stdin\n'
            f'for last; do if [ "$before" = -out ]; then cp {home}/answer "$last"; fi; before="$last"; done\n'
            f'echo "java.lang.OutOfMemoryError" >&2\ncat {home}/answer\nexit {status}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(home))
        return home

    jars = tmp_path / "jars"
    (jars / "lib").mkdir(parents=True)
    (jars / "data").mkdir()
    monkeypatch.setenv("HF_CURRICULUM_JARS", str(jars))
    monkeypatch.setattr("hf_curriculum.tasks.captioning.metrics.jars.find_spec", lambda name: None)
    make.jars = jars
    return make


def with_spice(jars, nashorn):
    """Empty files by the names of all that SPICE needs."""
    from hf_curriculum.tasks.captioning.metrics import jars as module

    (jars / "spice-1.0.jar").touch()
    for name in (*module._LIBRARIES, "stanford-corenlp-3.6.0", "stanford-corenlp-3.6.0-models"):
        (jars / "lib" / f"{name}.jar").touch()
    for name in module._NASHORN if nashorn else ():
        (jars / "lib" / f"{name}.jar").touch()


def test_meteor_reads_what_java_prints(stand_in):
    home = stand_in(answer="\n".join(line for line, _ in METEOR[:2]) + "\n")
    (stand_in.jars / "meteor-1.5.jar").touch()
    (stand_in.jars / "data" / "paraphrase-en.gz").touch()
    found = meteor_statistics(["a|||cat", ""], [["a cat", "großer bär"], ["b"]])
    np.testing.assert_allclose(meteor_values(found)[:, 0], [score for _, score in METEOR[:2]], rtol=1e-12)
    assert (home / "stdin").read_text("utf-8").splitlines() == [
        "SCORE ||| a cat ||| großer bär ||| a cat",
        "SCORE ||| b ||| ",
    ]
    jar = str(stand_in.jars / "meteor-1.5.jar")
    expected = ["-Dfile.encoding=UTF-8", "-Xmx2G", "-jar", jar, "-", "-", "-stdio", "-l", "en", "-norm"]
    assert (home / "arguments").read_text().split() == expected
    folder = Path((home / "folder").read_text().strip())
    assert folder.name.startswith("hf_curriculum_java_")
    assert not folder.exists()


SPICE = json.dumps(  # as spice-1.0.jar writes it, not in the order of the images
    [
        {
            "image_id": 1,
            "scores": {
                "All": {"pr": 0.5, "re": 0.1, "f": 0.16666666666666669, "fn": 9, "numImages": 1, "fp": 1, "tp": 1},
                "Color": {"pr": None, "re": None, "f": None, "fn": 0, "numImages": 1, "fp": 0, "tp": 0},
            },
        },
        {
            "image_id": 0,
            "scores": {"All": {"pr": 0.0, "re": 0.0, "f": 0.0, "fn": 4, "numImages": 1, "fp": 2, "tp": 0}},
        },
    ]
)


@pytest.mark.parametrize(("version", "opened"), [("1.8.0_292", 0), ("14.0.2", 0), ("15.0.1", 0), ("21.0.2", 7)])
def test_the_command_line_of_spice(stand_in, version, opened, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    home = stand_in(version, answer=SPICE)
    with_spice(stand_in.jars, nashorn=version[:2] in ("15", "21"))
    assert spice(["a dog", "a red dog"], [["a cat"], ["a red dog", "dogs"]]).tolist() == [0, 0.16666666666666669]
    said = (home / "arguments").read_text().splitlines()
    assert sum(option.startswith("--add-opens=java.") for option in said) == opened
    jars = said[said.index("-cp") + 1].split(":")
    assert jars[0] == str(stand_in.jars / "spice-1.0.jar")
    assert [Path(jar).name for jar in jars if "corenlp" in jar] == [
        "stanford-corenlp-3.6.0.jar",
        "stanford-corenlp-3.6.0-models.jar",
    ]
    assert any("nashorn" in jar for jar in jars) == (version[:2] in ("15", "21"))
    assert said[said.index("-cp") + 2] == "edu.anu.spice.SpiceScorer"
    assert said[said.index("-cache") + 1] == str(stand_in.jars / "spice_cache")
    assert said[-2:] == ["-subset", "-silent"]
    assert "-Xmx8G" in said


def test_spice_keeps_nothing_where_its_database_has_no_native_code(stand_in, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    home = stand_in("11.0.2", answer=SPICE)
    with_spice(stand_in.jars, nashorn=False)
    spice(["a", "b"], [["a"], ["b"]])
    assert "-cache" not in (home / "arguments").read_text().splitlines()


def test_what_spice_is_given(stand_in, tmp_path):
    java, jars = find_java_of(stand_in), [tmp_path / "one.jar"]
    command = spice_command(java, jars, tmp_path / "in.json", tmp_path / "out.json", None)
    assert command[-5:] == [str(tmp_path / "in.json"), "-out", str(tmp_path / "out.json"), "-subset", "-silent"]


def find_java_of(stand_in):
    stand_in("11.0.2")
    return find_java("SPICE")


def test_what_is_missing_is_named_with_the_command_that_gets_it(stand_in):
    stand_in("17.0.1")
    with pytest.raises(
        JavaError, match=r"METEOR needs meteor-1.5.jar, data/paraphrase-en.gz(.|\n)*pip install pycoco"
    ):
        meteor_statistics(["a"], [["a"]])
    (stand_in.jars / "spice-1.0.jar").touch()
    with pytest.raises(JavaError, match=r"SPICE needs lib/ejml-0.23.jar(.|\n)*pip install pycocoevalcap"):
        validate_spice()
    with_spice(stand_in.jars, nashorn=False)
    with pytest.raises(JavaError, match="SPICE in Java 17, which has no JavaScript engine") as error:
        spice(["a"], [["a"]])
    assert "org/openjdk/nashorn/nashorn-core/15.4/nashorn-core-15.4.jar" in str(error.value)
    (stand_in.jars / "lib" / "stanford-corenlp-3.6.0-models.jar").unlink()
    with pytest.raises(
        JavaError, match=r"SPICE needs lib/stanford-corenlp-3.6.0-models.jar, and it is not in"
    ) as error:
        validate_spice()
    assert "curl -L -o corenlp.zip https://nlp.stanford.edu/software/stanford-corenlp-full-2015" in str(error.value)


def test_a_jar_without_its_paraphrases_beside_it(stand_in, tmp_path, monkeypatch):
    stand_in()
    (stand_in.jars / "meteor-1.5.jar").touch()
    other = tmp_path / "package"
    (other / "meteor" / "data").mkdir(parents=True)
    (other / "meteor" / "data" / "paraphrase-en.gz").touch()

    class Package:
        submodule_search_locations = (str(other),)

    monkeypatch.setattr("hf_curriculum.tasks.captioning.metrics.jars.find_spec", lambda name: Package)
    with pytest.raises(JavaError, match=r"the jar looks for data/paraphrase-en.gz beside itself"):
        meteor_statistics(["a"], [["a"]])


def test_java_absent_too_old_or_silent(stand_in, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(JavaError, match=r"METEOR runs in Java, and there is no `java` in JAVA_HOME=.*nothing"):
        find_java("METEOR")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="no `java` on the PATH, and JAVA_HOME is not set"):
        find_java("SPICE")
    stand_in("1.7.0_80")
    with pytest.raises(JavaError, match=r"SPICE needs Java 8 or newer, and .*java is Java 7"):
        find_java("SPICE")
    home = stand_in("1.8.0_292")
    assert find_java("SPICE").version == 8
    (home.parent / "mute" / "bin").mkdir(parents=True)
    shutil.copy("/bin/true", home.parent / "mute" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(home.parent / "mute"))
    with pytest.raises(JavaError, match="does not say a version but ''"):
        find_java("SPICE")


def test_a_failure_quotes_what_java_said(stand_in):
    stand_in("11.0.9", status=1)
    with_spice(stand_in.jars, nashorn=False)
    with pytest.raises(
        JavaError, match=r"SPICE failed in Java 11 \(.*java\) with exit status 1: …java.lang.OutOfMemoryError"
    ):
        spice(["a"], [["a"]])


def test_results_of_spice_are_complete(stand_in):
    with pytest.raises(JavaError, match="SPICE's result has no score for 1 of 3 images"):
        read_spice(SPICE, 3)
    home = stand_in("12.0.1")
    with_spice(stand_in.jars, nashorn=False)
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'version \"12.0.1\"' >&2\n")
    with pytest.raises(JavaError, match="SPICE ended in Java 12 without an error and wrote no result"):
        spice(["a"], [["a"]])


def needs_meteor():
    package = pytest.importorskip("pycocoevalcap")
    if not shutil.which("java"):
        pytest.skip("needs Java")
    return Path(package.__file__ or package.__path__[0])


@pytest.mark.slow
def test_meteor_by_its_jar_and_several_runs_at_once():
    """Also of an empty caption. What the jar says itself is compared by its recorded lines and for 5,000 images."""
    needs_meteor()
    captions = ["a cat is on the mat", "", "a cat sits on a mat", "großer bär", "two dogs runing"]
    references = [["a cat sits on a mat", "there is a cat on the mat"]] * 3 + [["ein großer bär"], ["dogs run", "two"]]
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(meteor_statistics(captions, references))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(*found)
    values = meteor_values(found[0])[:, 0]
    assert values[1] == 0
    assert values[2] == 1


@pytest.mark.slow
def test_the_flags_open_what_spices_database_needs(tmp_path):
    """On a new Java the database of parsed references works with the flags, and not without: it is all of SPICE that
    can run without CoreNLP."""
    home = needs_meteor()
    spice_home = (home if home.is_dir() else home.parent) / "spice"
    if not shutil.which("javac") or find_java("SPICE").version < 16:
        pytest.skip("needs a JDK, 16 or newer")
    (tmp_path / "Keep.java").write_text(
        "import java.util.*;\nimport edu.anu.spice.LmdbTupleDB;\npublic class Keep {\n"
        "  public static void main(String[] given) {\n    LmdbTupleDB kept = new LmdbTupleDB(given[0]);\n"
        "    ArrayList<ArrayList<String>> tuples = new ArrayList<>();\n"
        '    tuples.add(new ArrayList<>(Arrays.asList("dog", "red")));\n'
        '    kept.putTransaction(Collections.singletonMap("a red dog", tuples));\n'
        '    System.out.println(kept.get("a red dog"));\n  }\n}\n'
    )
    jars = [spice_home / "spice-1.0.jar", *sorted((spice_home / "lib").glob("*.jar")), tmp_path]
    subprocess.run(["javac", "-cp", os.pathsep.join(map(str, jars)), "Keep.java"], cwd=tmp_path, check=True)
    (tmp_path / "kept").mkdir()
    command = spice_command(find_java("SPICE"), jars, tmp_path / "kept", tmp_path / "out", None)
    start = command[: command.index("edu.anu.spice.SpiceScorer")]
    assert run_java("SPICE", find_java("SPICE"), [*start, "Keep", str(tmp_path / "kept")]).strip() == "[[dog, red]]"
    without = [option for option in start if not option.startswith("--add-opens")]
    with pytest.raises(JavaError, match="InaccessibleObjectException"):
        run_java("SPICE", find_java("SPICE"), [*without, "Keep", str(tmp_path / "kept")])
