"""What running a program's tests came to."""

from __future__ import annotations

from dataclasses import dataclass


class NoSuite(ValueError):
    """Tests that cannot be read or run here; its text up to a colon names the kind of reason."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of all tests of one program."""

    status: str
    """correct, wrong, no_answer, timeout, resource or crashed, as in `score.STATUSES`."""
    passed: int = 0
    """Tests that passed."""
    total: int = 0
    """Tests that count."""
    detail: str = ""
    """What was wrong first, for people."""

    @property
    def share(self) -> float:
        """Of the tests, those passed; never all of them unless the status is correct."""
        if self.status == "correct":
            return 1.0
        return min(self.passed, self.total - 1) / self.total if self.total else 0.0
