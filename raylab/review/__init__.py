"""The page on which people settle open cases; never imports ray or torch."""
