"""The browser that pages are looked at with, where it is installed."""

import shutil

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
"""Path of the executable; empty where there is none."""
