"""Puts jobs/ and configs/, which lie beside the package in a checkout, into the package."""

from setuptools import find_namespace_packages, setup

BESIDE = {"raylab.jobs": "jobs", "raylab.configs": "configs"}

setup(packages=[*find_namespace_packages(include=["raylab*"]), *BESIDE], package_dir=BESIDE)
