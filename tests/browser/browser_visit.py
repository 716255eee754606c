"""One visit of the dashboard, as a user with the token makes it."""

from dataclasses import dataclass, field

from api_support.state import API_TOKEN
from playwright.sync_api import Page


@dataclass
class Visit:
    """A page, and what went wrong on it that a user would not see."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def open(self, view: str = "") -> Page:
        """Open a view as a user does who has the link with the token."""
        self.page.goto(f"{self.url}/#token={API_TOKEN}")
        self.page.get_by_role("heading", name="Profiles").wait_for()
        if view:
            self.page.goto(f"{self.url}/{view}")
        return self.page
