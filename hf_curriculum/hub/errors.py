"""Errors in words: of the Hub what was asked, what it answered, what to do; of libraries what they could not read."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from contextlib import contextmanager

from hf_curriculum.config import redact

_LONGEST = 300

_MEANING = {
    401: (
        "The Hub does not accept the token, or the repository is private and the token does not open it. Log in with "
        "`hf auth login`, or pass `token=`."
    ),
    403: "The token may not do this. Give it the permission to write to this namespace, or name your own namespace.",
    404: (
        "There is no repository or revision of this name that the token may see. Check the name; a private "
        "repository needs its owner's token."
    ),
    409: "The Hub is busy with another change of the same repository. Wait a moment.",
    412: "Somebody else changed the repository in the meantime, and their change is not overwritten unseen.",
    413: "The Hub found it too large. Use smaller shards, or fewer files.",
    429: "The Hub limits how often it may be asked. Wait a few minutes.",
}
_HUB_FAILED = "The Hub itself has failed. Wait a few minutes; https://status.huggingface.co lists incidents."
_NO_ANSWER = "The connection was lost, or could not be made. Check it, and HF_ENDPOINT and HF_HUB_OFFLINE."


class HubError(RuntimeError):
    """The Hub refused, failed or could not be reached.

    Args:
        message: what was tried, what came back, and what to do. It holds no token.
        status: the HTTP status, None where there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


_OF_DATA = ("pyarrow", "_csv", "datasets", "safetensors_rust", "yaml", "zipfile", "zlib", "_lzma", "tarfile")
"""Modules whose errors are about what a file holds."""


def in_words(error: BaseException) -> str | None:
    """What a command says of an error, without secrets; None for a fault of the program, which shows its traceback."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # PyTorch's
        said = (
            "The memory did not suffice. Use a machine, or a job, with more of it, or fewer rows or processes at once."
        )
        return f"{said} ({redact(str(error))})" if str(error) else said
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if modules.intersection(_OF_DATA):
        if error.__cause__ is not None and "datasets" in modules:  # which says no more than that there was an error
            return in_words(error.__cause__) or _unreadable(error.__cause__)
        return _unreadable(error)
    known = isinstance(error, (ValueError, OSError, ImportError, EOFError))
    return redact(str(error)) if known or (isinstance(error, RuntimeError) and _is_ours(error)) else None


def _unreadable(error: BaseException) -> str:
    about = redact(" ".join(str(error).split()))
    return (
        f"A file cannot be read ({type(error).__name__}: {about}). It is damaged, or of another kind. Copy it again."
    )


def _is_ours(error: BaseException) -> bool:
    """Whether a `raise` of this package made a RuntimeError, and not a library that it called."""
    if type(error) is not RuntimeError:
        return type(error).__module__.startswith("hf_curriculum.")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not trace.tb_frame.f_globals.get("__name__", "").startswith("hf_curriculum."):
        return False
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return line.lstrip().startswith("raise ")


def validate_token(token: str | bool | None) -> None:
    """Raises a ValueError for a token that no header can carry, before a library would print it in an error."""
    if isinstance(token, str) and not re.fullmatch(r"[!-~]+", token):
        raise ValueError(
            "The token given is empty, or has a space, a line break or a letter outside ASCII in it: it was not "
            "copied as it is. It is not shown here. Copy it again, or use `hf auth login` and leave out `token=`."
        )


@contextmanager
def explained(doing: str, kept: str, token: str | bool | None = None) -> Iterator[None]:
    """A context in which errors of the Hub or of the connection become a `HubError`; others stay as they are."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import httpx

    try:
        yield
    except HubError:
        raise
    except (HfHubHTTPError, httpx.HTTPError, OSError, RuntimeError) as error:
        explained_error = explain(error, doing, kept, token)
        if explained_error is None:
            raise
        clean = all(redact(str(part), token) == str(part) for part in _chain(error))
        raise explained_error from (error if clean else None)


def explain(error: BaseException, doing: str, kept: str, token: str | bool | None = None) -> HubError | None:
    """The error as a `HubError`, see `explained`; None where it has nothing to do with the Hub."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.utils import httpx

    for part in _chain(error):
        if isinstance(part, HfHubHTTPError) and part.response is not None:
            status = part.response.status_code
            said = " ".join((part.server_message or "").split())[:_LONGEST]
            answer = f"the Hub answered {status}" + (f" (“{said}”)" if said else "")
            meaning = _MEANING.get(status, _HUB_FAILED if status >= 500 else "")
            return HubError(redact(_sentence(doing, answer, meaning, kept), token), status)
        if isinstance(part, (httpx.HTTPError, OfflineModeIsEnabled, LocalTokenNotFoundError)):
            said = " ".join(str(part).split())[:_LONGEST] or type(part).__name__
            return HubError(redact(_sentence(doing, f"no answer ({said})", _NO_ANSWER, kept), token))
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _sentence(doing: str, answer: str, meaning: str, kept: str) -> str:
    return " ".join(part for part in (f"{doing} failed: {answer}.", meaning, kept) if part)
