"""What is drawn: prompts from a template, a table of each class, or written by a language model."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_curriculum.columns import LABEL
from hf_curriculum.config import digest
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.rows import read_content
from hf_curriculum.scorers.pretrained import load_pretrained
from hf_curriculum.scorers.visual.class_probability import validate_prompt_names
from hf_curriculum.shapes import validate_arguments

Prompts = str | Path | Mapping[str, str | Sequence[str]]
"""A template, a table of class → prompts, or the file of one (.csv, .json)."""
_TRIES = 5


def prompt_choices(data: Dataset, prompts: Prompts, label_column: str = LABEL) -> list[tuple[str, ...]]:
    """The prompts that each row may have, their fields filled in."""
    table = _as_table(prompts)
    names = class_of_rows(data, label_column) if label_column in data.column_names else None
    if isinstance(table, str):
        templates = [(table,)] * len(data)
    else:
        if names is None:
            raise ValueError(
                f"Prompts were given by class, and the data has no column `{label_column}` of classes but "
                f"{data.column_names}. Give `label_column=`, or one template for all rows."
            )
        missing = sorted({name for name in names if not table.get(name)})
        if missing:
            raise ValueError(
                f"{len(missing)} classes have no prompt, the first of them {missing[0]!r}; the table has "
                f"{sorted(table)[:5]} and more. Their hard images could not be drawn. Add them to the table, or give "
                'a template, such as "a photo of {label}".'
            )
        templates = [table[name] for name in names]
    fields = {field for each in set(templates) for template in each for field in _fields(template)}
    if isinstance(table, str) and names is not None and LABEL in fields:
        validate_prompt_names(names, table)
    columns = _columns(data, fields, names)
    return [
        tuple(_filled(template, {field: values[row] for field, values in columns.items()}, row) for template in each)
        for row, each in enumerate(templates)
    ]


def choose_prompt(choices: Sequence[str], image_id: str, seed: int, attempt: int = 0) -> str:
    """The prompt of an image, keyed by (image_id, seed) and so the same at every level; another one at another try."""
    return choices[int(digest(json.dumps(["prompt", image_id, seed, attempt])), 16) % len(choices)]


def class_of_rows(data: Dataset, label_column: str = LABEL) -> list[str]:
    """The name of each row's class, (rows,)."""
    feature, values = data.features[label_column], data[label_column][:]
    names = getattr(feature, "names", None)
    if names is None and getattr(feature, "dtype", "") not in ("string", "large_string"):
        raise ValueError(
            f"`{label_column}` is {feature}, numbers without names, so no prompt can name a class. Cast it: "
            f'`data.cast_column("{label_column}", ClassLabel(names=[...]))`.'
        )
    bad = [row for row, value in enumerate(values) if value is None or value == -1]
    if bad:
        raise ValueError(
            f"{len(bad)} rows have no class (row {bad[0]}), so it is not known what to draw. Leave such rows out."
        )
    return [value if names is None else names[value] for value in values]


@validate_arguments
def load_prompts(file: str | Path, template: str = "{prompt}") -> dict[str, list[str]]:
    """Reads a table of prompts from JSON `{class: prompts}` or a CSV with the columns `class` and `prompt`.

    Args:
        file: .json or .csv; in CSV a class with several prompts has several lines.
        template: what each prompt is put into, such as "a 8k real photo: {prompt}".

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is neither, lacks a column, holds values other than texts, or is not UTF-8. Or a quotation mark
            stays open, a row has other cells than the header, or a name stands twice in the header or as a key.

    Example:
        >>> load_prompts("prompts.csv", "a 8k real photo: {prompt}")  # doctest: +SKIP
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path} of prompts, which say what is drawn. Name one, or give a template such as "
            '"a photo of {label}".'
        )
    found = read_content(path, kind=".csv" if path.suffix.lower() == ".csv" else ".json")
    if path.suffix.lower() == ".csv":
        if not found or not {"class", "prompt"} <= found[0].keys():
            raise ValueError(
                f"{path} has the columns {found.header} and {len(found)} rows. A table of prompts has the columns "
                "`class` and `prompt`. Rename them."
            )
        rows, found = found, {}
        for row in rows:
            found.setdefault(row["class"], []).append(row["prompt"])
        left_out = LeftOut()
        left_out.add("columns other than `class` and `prompt`", len(rows[0]) - 2, ", ".join(rows[0]))
        left_out.report(path, ())
    table = _validate_table(found, str(path))
    return {name: [template.replace("{prompt}", text) for text in texts] for name, texts in table.items()}


@validate_arguments
def write_prompts(
    class_names: Sequence[str],
    model: str,
    *,
    per_class: int = 10,
    instruction: str = "Describe a photo of {label} in one sentence of at least 15 words.",
    template: str = "{prompt}",
    seed: int = 0,
    max_new_tokens: int = 60,
    revision: str | None = None,
) -> dict[str, list[str]]:
    """Writes prompts of each class with a text-generation model.

    Args:
        class_names: the classes.
        model: a causal language model of `transformers`, a folder or a name; its chat template is used if it has one.
        per_class: prompts of each class.
        instruction: the instruction to the model, with `{label}` for the class.
        template: what each prompt is put into, such as "a 8k real photo: {prompt}".
        seed: of the sampling; each prompt is sampled from a generator of its own.
        max_new_tokens: of one prompt.
        revision: of the model.

    Returns:
        class → prompts, as `generate_spectrum(prompts=...)` takes it; save it with `json.dump`.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: the model writes nothing for a class, or a number is out of range.

    Source: Liang et al. 2024 (DisCL), released code: ten sentences of at least 15 words of each class by GPT-3.5.

    Example:
        >>> write_prompts(["fox", "owl"], "HuggingFaceTB/SmolLM2-360M-Instruct")  # doctest: +SKIP
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if per_class < 1 or max_new_tokens < 1:
        raise ValueError(f"`per_class={per_class}` and `max_new_tokens={max_new_tokens}` are at least 1.")
    tokenizer = load_pretrained(AutoTokenizer, model, revision)
    language_model = load_pretrained(AutoModelForCausalLM, model, revision).eval()
    table: dict[str, list[str]] = {}
    for name in class_names:
        asked = instruction.replace("{label}", name)
        if tokenizer.chat_template:
            asked = tokenizer.apply_chat_template(
                [{"role": "user", "content": asked}], tokenize=False, add_generation_prompt=True
            )
        inputs = tokenizer(asked, return_tensors="pt")
        for number in range(per_class):
            written = ""
            for attempt in range(_TRIES):
                with torch.random.fork_rng(devices=[]), torch.inference_mode():
                    torch.manual_seed(int(digest(json.dumps([name, number, attempt, seed])), 16) >> 1)
                    ids = language_model.generate(**inputs, do_sample=True, max_new_tokens=max_new_tokens)
                text = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
                written = next((line.strip(" \t\"'") for line in text.splitlines() if line.strip(" \t\"'")), "")
                if written:
                    break
            if not written:
                raise ValueError(
                    f"{model} wrote nothing about {name!r} in {_TRIES} tries, so that class would have too few. "
                    "Give another `instruction=`, more `max_new_tokens=`, or a table of your own."
                )
            table.setdefault(name, []).append(template.replace("{prompt}", _escaped(written)))
    return table


def _escaped(text: str) -> str:
    """Braces doubled: they are no fields."""
    return text.replace("{", "{{").replace("}", "}}")


def _as_table(prompts: Prompts) -> str | dict[str, tuple[str, ...]]:
    """A template, or class → templates."""
    if isinstance(prompts, Path) or (isinstance(prompts, str) and prompts.lower().endswith((".csv", ".json"))):
        prompts = load_prompts(prompts)
    if isinstance(prompts, str):
        return prompts
    return {name: tuple(texts) for name, texts in _validate_table(prompts, "The table of prompts").items()}


def _validate_table(found: Any, what: str) -> dict[str, list[str]]:
    """class → prompts as lists; a `ValueError` for anything that is no text."""
    table = found if isinstance(found, Mapping) else {}
    table = {name: [texts] if isinstance(texts, str) else texts for name, texts in table.items()}
    if not table or not all(
        isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in texts) for texts in table.values()
    ):
        raise ValueError(
            f'{what} does not map classes to prompts. Write {{"tench": ["a tench in a river", ...], ...}}: for each '
            "class one text or a list of them."
        )
    return {str(name): list(texts) for name, texts in table.items()}


def _fields(template: str) -> list[str]:
    """The names in braces; a `ValueError` for anything else than plain names."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"The prompt {template!r} has an odd brace ({error}). Fields are written {{label}}; double other braces."
        ) from error
    for _, field, spec, conversion in parsed:
        if field is not None and (not field.isidentifier() or spec or conversion):
            raise ValueError(
                f"The prompt {template!r} has the field {{{field}}}, which is no plain name. Fields are {{label}} and "
                "the names of columns; double any other brace."
            )
    return [field for _, field, _, _ in parsed if field is not None]


def _columns(data: Dataset, fields: set[str], names: list[str] | None) -> dict[str, Sequence[Any]]:
    """Field → value of each row."""
    columns: dict[str, Sequence[Any]] = {}
    for field in sorted(fields):
        if field == LABEL and names is not None:
            columns[field] = names
        elif getattr(data.features.get(field), "dtype", "").startswith(("string", "large_string", "int", "float")):
            columns[field] = data[field][:]
        else:
            raise ValueError(
                f"A prompt has the field {{{field}}}, which is no column of texts or numbers in {data.column_names}. "
                "Name one of them, or {label} for the class."
            )
    return columns


def _filled(template: str, values: Mapping[str, Any], row: int) -> str:
    """A template with its fields filled in; a `ValueError` if nothing is left."""
    empty = [field for field in _fields(template) if values[field] is None or not str(values[field]).strip()]
    text = "" if empty else template.format(**values).strip()
    if not text:
        raise ValueError(
            f"The prompt {template!r} of row {row} is empty{f': it has no {empty[0]}' if empty else ''}. Nothing says "
            "what to draw. Fill it, or leave the row out."
        )
    return text
