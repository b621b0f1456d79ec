"""The sections and the page of a judged benchmark."""
