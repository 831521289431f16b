"""What a reader may ask for: the errors for what cannot be answered, and the addresses of models."""

from __future__ import annotations

from urllib.parse import quote

from trnready.errors import TrnreadyError


class BadQuery(TrnreadyError):
    """A question that cannot be answered; the message is for the reader."""

    status = 400
    """The HTTP status to answer it with."""


class NotThere(BadQuery):
    """A question that makes sense, for something that there is not."""

    status = 404


def model_url(model_id: str) -> str:
    """Give the address of a model's page. Names with empty or dotted parts, such as those of local folders,
    are written so that no browser takes them for steps up and down the tree."""
    if model_id in (".", ".."):
        return f"/models/?id={model_id}"
    return "/models/" + quoted(model_id)


def quoted(model_id: str) -> str:
    """Give a model's name as a part of an address; slashes stay unless a browser would resolve them."""
    dotted = any(part in ("", ".", "..") for part in model_id.split("/"))
    return quote(model_id, safe="" if dotted else "/")
