"""The versions of the schema, one module each, in the order of their names.

A released version is never changed: the next one says what becomes of it. They share nothing with
`raylab.archive.tables`, which describes the latest version alone.
"""
