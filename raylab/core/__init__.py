"""The core that all products share: errors, files, runs, configuration, output and pages.

It knows no product: no metric of a grid, no label, no benchmark. `errors` and `printable` come
first, then `log`, `live`, `background`, `bounded` and `files`; `config` composes and validates
settings, `runs` keeps run directories, `page` draws tables and pages, `on_ray` joins a cluster.
Begin with `entrypoint`, which runs every job.
"""
