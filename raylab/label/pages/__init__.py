"""The pages, tables and progress lines of annotations."""
