"""A user of the Hub in a process of its own: runs the code it is sent, with the real clients.

`huggingface_hub` reads its settings when it is imported, so HF_ENDPOINT has to be set before. The process stays, as
importing the clients takes longer than most of the tests.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time
import traceback


def main() -> None:
    """Reads a line of JSON at a time: code in, what came of it out."""
    answers = sys.stdout
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))  # between two tries of a client
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    space: dict[str, object] = {}
    for line in sys.stdin:
        out = io.StringIO()
        answer: dict[str, object] = {"error": None}
        with contextlib.redirect_stdout(out):
            try:
                exec(json.loads(line)["code"], space)
            except BaseException as error:
                chain = traceback.format_exc()
                status = getattr(error, "status", None)
                answer["error"] = {"type": type(error).__name__, "text": str(error), "all": chain, "status": status}
        print(json.dumps({**answer, "out": out.getvalue()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
