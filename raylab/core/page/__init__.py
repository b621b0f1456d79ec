"""Pages, tables, charts and progress lines, made of the records that runs leave."""
