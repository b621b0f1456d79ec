"""One training from its inputs to its report, wherever its epochs are run."""
