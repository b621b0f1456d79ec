"""Charts as inline SVG that follow the theme of their page, and as PNG."""
