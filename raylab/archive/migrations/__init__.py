"""The versions of the schema, one module each, in the order of their names.

A released version is never changed; later versions build on it. Migrations share no table with
`raylab.archive.tables`, which describes only the latest version; they may share the types of its
columns and the hashes of `raylab.archive.chain`, which never change.
"""
