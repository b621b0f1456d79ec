"""The networks, one file per architecture.

The architectures follow Ingram & Merrit 2025, *An Empirical Answer to re-arc*. Every module here
is imported, which registers its network.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
