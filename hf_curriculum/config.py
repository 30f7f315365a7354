"""YAML as people write it: `1e-5` is a number, which YAML 1.1 and so PyYAML take for a word."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+\Z")


def read_yaml(text: str) -> Any:
    """What a YAML text holds, numbers with an exponent as YAML 1.2 and JSON have them.

    Args:
        text: one document.

    Raises:
        yaml.YAMLError: it is not YAML.

    Example:
        >>> read_yaml("{learning_rate: 1e-5, warmup: 2.5e3, name: 1e}")
        {'learning_rate': 1e-05, 'warmup': 2500.0, 'name': '1e'}
    """
    import yaml

    return yaml.load(text, _loader())


@cache
def _loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        """`SafeLoader` with more numbers."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
    return Loader
