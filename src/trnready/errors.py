"""The root of every error that trnready raises on purpose; the command line turns these into one sentence."""


class TrnreadyError(Exception):
    """An error whose message is a sentence that the person at the keyboard can act on."""

    exit_status: int = 2
