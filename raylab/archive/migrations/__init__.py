"""The versions of the schema, one module each, in the order of their names.

A released version is never changed; later versions build on it. Migrations share nothing with
`raylab.archive.tables`, which describes only the latest version.
"""
