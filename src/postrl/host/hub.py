"""Whether the hub of models and data sets can be asked."""

from __future__ import annotations


def hub_is_reachable() -> bool:
    """Whether the hub may be asked (HF_HUB_OFFLINE is off) and answers."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and hub_answers()


def hub_answers(seconds: float = 5.0) -> bool:
    """Whether a connection to the hub can be opened within `seconds`; behind a proxy it is taken for granted."""
    import socket
    import threading
    from contextlib import suppress
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub.constants import ENDPOINT

    if getproxies().get("https") or getproxies().get("all"):
        return True
    url, answered = urlsplit(ENDPOINT), threading.Event()

    def connect() -> None:
        port = url.port or (80 if url.scheme == "http" else 443)
        with suppress(OSError), socket.create_connection((url.hostname or "", port), timeout=seconds):
            answered.set()

    # A name look-up has no timeout of its own.
    thread = threading.Thread(target=connect, daemon=True, name="hub_answers")
    thread.start()
    thread.join(seconds)
    return answered.is_set()
