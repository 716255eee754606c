"""Conditional changes: If-Match against the entity tag of the present settings (RFC 9110, section 13.1.1)."""

from http import HTTPStatus

from paceline.control_api.errors import ProblemError


def require_match(if_match: str | None, etag: str) -> None:
    """Let a change through whose If-Match header fits the present entity tag, or that has none.

    Raises:
        ProblemError: 412, with the present tag in the header ETag.
    """
    if if_match is None or if_match.strip() == "*":
        return
    # A weak tag never matches here: If-Match asks for the strong comparison.
    if etag in [tag.strip() for tag in if_match.split(",")]:
        return
    raise ProblemError(
        HTTPStatus.PRECONDITION_FAILED,
        "precondition-failed",
        f"somebody changed the pacing since it was read: it is now {etag}, not {if_match}. Nothing was changed; "
        "read it again and repeat the change with the new ETag",
        headers={"ETag": etag},
    )
