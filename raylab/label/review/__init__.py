"""The page, and the files, by which people settle open cases; never imports ray or torch."""
